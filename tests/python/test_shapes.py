"""Every shape a user may have, against float64 and over numbers of ranks."""

import pytest
import torch

from helpers import ALL_RANKS, case_id, check, oracle, run
from monomoe import Group, backward, forward, schedule, testing
from monomoe.testing import Case

TOKENS = [Case(t, 64, 40, 8, 2) for t in (0, 1, 2, 7, 31, 33, 64, 127, 128, 129, 257)]
WIDTHS = [
    Case(33, hidden, inter, 5, 2)
    for hidden, inter in ((8, 8), (8, 136), (136, 8), (24, 56), (72, 64), (64, 72), (104, 264),
                          (264, 120), (520, 40), (40, 520))
]  # fmt: skip
EXPERTS = [
    Case(33, 64, 40, experts, top_k)
    for experts, top_k in ((1, 1), (2, 1), (2, 2), (3, 2), (5, 5), (7, 3), (9, 1), (16, 6),
                           (33, 4), (257, 8))
]  # fmt: skip
RAGGED = [
    Case(t, 64, 40, experts, 2, split="ragged", shared=shared)
    for t, experts, shared in ((0, 4, 0), (1, 4, 8), (5, 3, 0), (33, 8, 24), (200, 7, 0))
]


@pytest.mark.parametrize("case", TOKENS + WIDTHS + EXPERTS, ids=case_id)
def test_shape_agrees_with_float64_and_with_itself_over_ranks(case):
    check(case)


@pytest.mark.parametrize("case", RAGGED, ids=case_id)
def test_tokens_may_differ_per_rank(case):
    check(case)


@pytest.mark.parametrize("ranks", [4, 6, 7, 16])
def test_any_number_of_ranks_gives_the_bits_of_one(ranks):
    case = Case(50, 64, 40, 9, 3, shared=24, score=True)
    testing.assert_same_bits(run(case, ranks), run(case), testing.RANK_INVARIANT)


def test_more_ranks_than_experts_and_tokens():
    check(Case(3, 64, 40, 2, 1), ranks=(1, 3, 8))


@pytest.mark.parametrize("split", [[33, 0, 0], [0, 0, 33], [0, 33, 0], [11, 1, 21]])
def test_split_of_the_tokens_does_not_change_a_bit(split):
    case = Case(33, 64, 40, 5, 2)
    inputs = testing.make_inputs(case)
    with Group.local(3) as group:
        sched = schedule(inputs.topk_ids, 5, group, tokens_per_rank=split)
        assert sched.tokens_per_rank == tuple(split)
        y, ctx = forward(inputs.x, inputs.topk_weights, inputs.weights, sched)
        got = testing.named(y, backward(inputs.dy, ctx))
    testing.assert_same_bits(got, run(case), testing.RANK_INVARIANT)


def test_first_ranks_hold_the_tokens_that_are_left_over():
    with Group.local(5) as group:
        sched = schedule(torch.zeros(33, 1, dtype=torch.int32), 4, group)
    assert sched.tokens_per_rank == (7, 7, 7, 6, 6)


@pytest.mark.parametrize("case", [
    Case(33, 64, 40, 5, 2, values="integer"),
    Case(129, 72, 136, 3, 2, values="integer", shared=24, score=True),
    Case(65, 136, 64, 6, 2, values="integer", routing="unrouted"),
    Case(65, 136, 64, 6, 2, values="integer", routing="duplicates", split="ragged"),
], ids=case_id)  # fmt: skip
@pytest.mark.parametrize("ranks", ALL_RANKS)
def test_integer_values_are_exact(case, ranks):
    inputs, exact, _ = oracle(case)
    for name, tensor in run(case, ranks, inputs=inputs).items():
        wanted = testing.nearest_integers(exact[name]).to(tensor.dtype)
        assert torch.equal(tensor, wanted), name
