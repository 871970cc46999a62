"""What the tests of field cases share (docs/field_cases.md)."""

import dataclasses

import torch

from helpers import run
from monomoe import Group, MoELayer, Weights, backward, forward, reference, schedule, testing
from monomoe.testing import Case, Inputs

BF16 = torch.bfloat16
WEIGHT_GRADS = ("dgate", "dup", "ddown")


def inputs_with(case: Case, **changed) -> Inputs:
    return dataclasses.replace(testing.make_inputs(case), **changed)


def ids_of(counts, seed=0) -> torch.Tensor:
    """[sum, 1] ids that give each expert its count of rows, in random order."""
    ids = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
    return ids[torch.randperm(len(ids), generator=torch.Generator().manual_seed(seed))][:, None]


def agrees(case: Case, inputs: Inputs | None = None, ranks=(1, 2), config=None):
    """Error rule and equal bits; returns the results of the first number of ranks."""
    inputs = inputs or testing.make_inputs(case)
    exact = testing.run_reference(inputs, case, reference.EXACT)
    twin = testing.run_reference(inputs, case, reference.TWIN)
    first = None
    for num_ranks in ranks:
        got = run(case, num_ranks, config, inputs)
        testing.assert_close(got, twin, exact)
        first = first or got
        testing.assert_same_bits(got, first, testing.RANK_INVARIANT)
    return first


def with_counts(counts, hidden=16, inter=24, **options):
    case = Case(sum(counts), hidden, inter, len(counts), 1, **options)
    return case, inputs_with(case, topk_ids=ids_of(counts))


def is_plus_zero(t: torch.Tensor) -> bool:
    return not testing.bits(t).any()


def ones_problem(top_k, experts, tokens=1, hidden=8, inter=8) -> Inputs:
    """The ONE trick: gate 32 and up 1/32 give hidden values of exactly 1; y = 1 for each expert."""
    x = torch.zeros(tokens, hidden, dtype=BF16)
    x[:, 0] = 1
    gate, up = torch.zeros(2, experts, inter, hidden, dtype=BF16)
    gate[:, 0, 0], up[:, 0, 0] = 32, 1 / 32
    down = torch.zeros(experts, hidden, inter, dtype=BF16)
    down[:, :, 0] = 1
    ids = torch.arange(top_k).repeat(tokens, 1)
    return Inputs(x, ids, torch.ones(tokens, top_k), Weights(gate, up, down), torch.ones_like(x))


def split_agrees(case, *splits, group=None):
    """Calls with these tokens of each rank, on one group, against one rank."""
    made = group or Group.local(len(splits[0]), timeout_s=60)
    for n, split in enumerate(splits):
        now = dataclasses.replace(case, tokens=sum(split), seed=n)
        inputs = testing.make_inputs(now)
        sched = schedule(inputs.topk_ids, now.experts, made, tokens_per_rank=split)
        y, ctx = forward(inputs.x, inputs.topk_weights, inputs.weights, sched)
        got = testing.named(y, backward(inputs.dy, ctx))
        testing.assert_same_bits(got, agrees(now, inputs, (1,)), testing.RANK_INVARIANT)


def context_of(inputs, experts, group, **options):
    sched = schedule(inputs.topk_ids, experts, group)
    return forward(inputs.x, inputs.topk_weights, inputs.weights, sched, **options)[1]


def layer_run(case=Case(33, 16, 24, 4, 2), group=None):
    inputs = testing.make_inputs(case)
    torch.manual_seed(0)
    layer = MoELayer(case.hidden, case.intermediate, case.experts, case.top_k, group=group)
    return layer, inputs.x.requires_grad_(), inputs.topk_ids, inputs.topk_weights, inputs.dy
