"""Field cases of routes: tables, uneven ranks, tokens that go nowhere.

Each test is named after its case; docs/field_cases.md lists them all. Unless a test says otherwise,
results agree with float64 by the error rule and every number of ranks gives the same bits."""

import math

import pytest
import torch

from field_problems import agrees, inputs_with, is_plus_zero, split_agrees
from helpers import run
from monomoe import Config, Group, schedule, testing
from monomoe.functional import native, new_tables
from monomoe.testing import Case

# -------------------------------------------------------------------------------- schedule


def test_F01_minus_one_does_not_shift_the_others():
    case = Case(4, 16, 24, 4, 2)
    inputs = inputs_with(case, topk_ids=torch.tensor([[0, -1], [-1, -1], [3, 1], [-1, 2]]))
    got = agrees(case, inputs)
    assert is_plus_zero(got["y"][1]) and is_plus_zero(got["dx"][1])
    assert is_plus_zero(got["dtopk_weights"][inputs.topk_ids < 0])


@pytest.mark.parametrize("bad, dtype", [
    *((bad, torch.int32) for bad in (-2, -(2**31), 4, 5, 2**31 - 1)),
    *((bad, torch.int64) for bad in (-2, -(2**31), 4, 5, 2**31 - 1)),
    (2**32 + 1, torch.int64), (-(2**63), torch.int64),
])  # fmt: skip
def test_F02_ids_out_of_range_touch_nothing(bad, dtype):
    ids = torch.zeros(8, 1, dtype=dtype)
    ids[5] = bad
    with Group.local(2) as group:
        words = new_tables(group.id, ids, 4).numel()
        memory = torch.full((words + 128,), 0x5A5A5A5A, dtype=torch.int32)
        with pytest.raises(ValueError, match=rf"topk_ids: .* {bad} found at \[5, 0\]"):
            native().schedule(group.id, ids, memory[64:-64], 4, 1, [4, 4])
        assert (memory == 0x5A5A5A5A).all()
        native().schedule(group.id, ids.clamp(0, 3), memory[64:-64], 4, 1, [4, 4])
        assert (memory[:64] == 0x5A5A5A5A).all() and (memory[-64:] == 0x5A5A5A5A).all()


def test_F04_an_expert_twice_in_one_token():
    case = Case(9, 16, 24, 16, 6)
    inputs = testing.make_inputs(case)
    inputs.topk_ids[3] = torch.tensor([5, 2, 7, 2, 0, 3])
    got = agrees(case, inputs)
    assert torch.equal(got["dtopk_weights"][3, 1], got["dtopk_weights"][3, 3])
    assert got["dtopk_weights"][3, 1] != 0


@pytest.mark.parametrize("save_rows", [None, 512, 511, 384, 0])
def test_F06_all_tokens_to_one_rank_whatever_was_saved(save_rows):
    """There is no capacity: what does not fit the saved rows is computed again."""
    case = Case(256, 16, 24, 8, 2)
    inputs = inputs_with(case, topk_ids=testing.make_inputs(Case(256, 16, 24, 4, 2)).topk_ids)
    config = Config(save_rows=save_rows, ring_rows=256)
    testing.assert_same_bits(run(case, 2, config, inputs), agrees(case, inputs, (1,)))


def test_F07_rank_with_one_token():
    split_agrees(Case(0, 16, 24, 32, 8), [1, 64], [64, 1], [1, 0])


@pytest.mark.parametrize("experts", [1, 3, 5, 9, 33, 257])
def test_F10_rows_of_each_expert_are_counted_once(experts):
    case = Case(64, 8, 8, experts, min(2, experts))
    inputs = testing.make_inputs(case)
    with Group() as group:
        tables = schedule(inputs.topk_ids, experts, group).tables
    header = 12  # words of TableHeader; then home_start [E, R + 1]
    counts = tables[header : header + 2 * experts].view(experts, 2)[:, 1]
    assert torch.equal(counts.long(), torch.bincount(inputs.topk_ids.flatten(), minlength=experts))


@pytest.mark.parametrize("experts", [255, 256, 257, 511, 512, 513, 1024])
def test_F11_many_experts(experts):
    agrees(Case(128, 8, 8, experts, 8))


@pytest.mark.parametrize("top_k", [1, 2, 3, 5, 6, 8, 9, 10, 16, 22, 32, 64])
def test_F12_any_top_k(top_k):
    agrees(Case(33, 8, 8, 64, top_k))


@pytest.mark.parametrize("top_k", [0, 65])
def test_F12_top_k_beyond_the_experts_is_refused(top_k):
    with pytest.raises(ValueError, match=f"top_k: 1 <= K <= E = 64 wanted, {top_k} given"):
        schedule(torch.zeros(33, top_k, dtype=torch.int64), 64)


@pytest.mark.parametrize("ranks, experts", [(3, 9), (3, 8), (2, 5), (2, 1)])
def test_F13_ranks_need_not_divide_experts(ranks, experts):
    agrees(Case(40, 16, 24, experts, min(2, experts), shared=8), ranks=(1, ranks))


# -------------------------------------------------------------------------------- dispatch


def test_F16_rank_without_tokens():
    split_agrees(Case(0, 16, 24, 8, 2), [0, 64], [64, 0], [0, 64])


def test_F17_tokens_per_rank_change_every_step():
    split_agrees(Case(0, 16, 24, 8, 2), [1, 0, 255, 64], [64, 255, 0, 1])


@pytest.mark.parametrize("tokens", [1, 63, 65, 127, 128, 129, 255, 256, 257, 672])
def test_F19_any_number_of_tokens_about_the_chunk_and_the_ring(tokens):
    agrees(Case(tokens, 16, 24, 2, 1), config=Config(minibatch_rows=128, ring_rows=256))


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("ranks", [1, 2])
def test_F21_bad_token_that_goes_nowhere(bad, ranks):
    case = Case(64, 16, 24, 8, 2)
    inputs = testing.make_inputs(case)
    for t in (inputs.x, inputs.dy, inputs.topk_weights):
        t[63] = 0
    inputs.topk_ids[63] = -1
    wanted = run(case, ranks, inputs=inputs)
    for t in (inputs.x, inputs.dy, inputs.topk_weights):
        t[63] = bad
    got = run(case, ranks, inputs=inputs)
    testing.assert_same_bits(got, wanted)
    assert all(is_plus_zero(got[name][63]) for name in ("y", "dx", "dtopk_weights"))


@pytest.mark.parametrize("local", [1, 2, 3, 8])
@pytest.mark.parametrize("ranks", [1, 2])
def test_F22_several_experts_a_rank_with_top_1(local, ranks):
    case = Case(257, 16, 24, local * ranks, 1)
    first = agrees(case, ranks=(ranks,))
    inputs = testing.make_inputs(case)
    with Group.local(ranks) as group:
        for _ in range(10):
            testing.assert_same_bits(testing.run_layer(inputs, group, case), first)
