"""Field cases of products and the activation: tails, empty experts, clamp, dirty rows.

Each test is named after its case; docs/field_cases.md lists them all. Unless a test says otherwise,
results agree with float64 by the error rule and every number of ranks gives the same bits."""

import dataclasses
import math

import pytest
import torch

from field_problems import BF16, WEIGHT_GRADS, agrees, inputs_with, is_plus_zero, with_counts
from helpers import run
from monomoe import Config, Group, MoELayer, Weights, backward, forward, schedule, testing
from monomoe.testing import Case

# ------------------------------------------------------------------------------- GEMM tails


def test_F23_counts_below_and_about_the_tile():
    case, inputs = with_counts(
        [0, 1, 7, 8, 15, 16, 31, 32, 33, 63, 64, 65, 127, 128, 129, 255, 256, 257]
    )
    agrees(case, inputs, (1, 3))


@pytest.mark.parametrize("counts", [
    [0, 3, 0, 0, 5, 0, 0, 0], [0, 0, 0, 0, 0, 0, 0, 1], [1, 0, 0, 0, 0, 0, 0, 0],
], ids=str)  # fmt: skip
def test_F24_experts_without_tokens(counts):
    case, inputs = with_counts(counts)
    got = agrees(case, inputs, (1, 2, 8))
    for name in WEIGHT_GRADS:
        assert all(is_plus_zero(got[name][e]) for e, n in enumerate(counts) if n == 0)


@pytest.mark.parametrize("expert", [3, 7])
@pytest.mark.parametrize("ranks", [1, 2])
def test_F25_all_tokens_to_one_expert_through_a_small_ring(expert, ranks):
    case = Case(4 * 256 // ranks, 16, 24, 8, 1)
    inputs = inputs_with(case, topk_ids=torch.full((case.tokens, 1), expert))
    got = agrees(case, inputs, (ranks,), Config(ring_rows=256))
    for name in WEIGHT_GRADS:
        assert is_plus_zero(torch.cat([got[name][:expert], got[name][expert + 1 :]]))


@pytest.mark.parametrize("hidden, inter", [(64, 192), (192, 64), (192, 192)])
def test_F26_width_smaller_than_the_tile_with_nan_behind_every_row(hidden, inter):
    case = Case(64, hidden, inter, 4, 2, shared=inter)
    inputs = testing.make_inputs(case)
    wanted = agrees(case, inputs)

    def fenced(t):
        wide = torch.full((*t.shape[:-1], t.shape[-1] + 128), math.nan, dtype=t.dtype)
        wide[..., : t.shape[-1]] = t
        return wide[..., : t.shape[-1]]

    tight = {"x": fenced(inputs.x), "dy": fenced(inputs.dy), "weights": inputs.weights.map(fenced)}
    got = run(case, 2, inputs=dataclasses.replace(inputs, **tight))
    testing.assert_same_bits(got, wanted, testing.RANK_INVARIANT)


@pytest.mark.parametrize("hidden, inter", [
    *((1536, i) for i in (176, 224, 352, 448, 704)), (256, 1408), (256, 2880), (2880, 176),
    (5120, 176),
])  # fmt: skip
def test_F28_widths_of_real_models(hidden, inter):
    agrees(Case(16, hidden, inter, 2, 1))


def test_F30_stale_rows_of_a_shared_tile_do_not_bleed():
    case, inputs = with_counts([5, 3, 1])
    wanted = agrees(case, inputs)
    for byte in (0x7F, 0xFF):
        for ranks in (1, 2):
            with Group.local(ranks) as group:
                testing.poison(group, byte)
                got = testing.run_layer(inputs, group, case)
            testing.assert_same_bits(got, wanted, testing.RANK_INVARIANT)


# ------------------------------------------------------------------------------- activation


def test_F33_every_row_of_the_activation_backward():
    case = Case(3, 16, 24, 1, 1)
    inputs = testing.make_inputs(case)
    inputs.x.mul_(torch.tensor([[1.0], [-2.0], [0.5]]))
    inputs.dy.mul_(torch.tensor([[0.25], [1.0], [-3.0]]))
    got = agrees(case, inputs)
    for row in range(3):
        one = Case(1, 16, 24, 1, 1)
        alone = dataclasses.replace(
            inputs, x=inputs.x[row : row + 1], dy=inputs.dy[row : row + 1],
            topk_ids=inputs.topk_ids[row : row + 1],
            topk_weights=inputs.topk_weights[row : row + 1],
        )  # fmt: skip
        assert torch.equal(run(one, inputs=alone)["dx"][0], got["dx"][row])


@pytest.mark.parametrize("shared", [False, True])
def test_F34_clamped_swiglu(shared):
    limit = 10.0
    grid = torch.tensor([-20.0, -10.0, -1.0, 0.0, 1.0, 10.0, 20.0])
    gate, up = torch.meshgrid(grid, grid, indexing="ij")
    gate, up = gate.flatten(), up.flatten()
    x = torch.zeros(49, 8, dtype=BF16)
    x[:, 0], x[:, 1] = gate, up
    wg, wu, wd = (torch.zeros(1, 8, 8, dtype=BF16) for _ in range(3))
    wg[0, 0, 0] = wu[0, 0, 1] = wd[0, 0, 0] = 1
    weights = Weights(wg, wu, wd)
    ids = torch.zeros(49, 1).long()
    if shared:
        weights = Weights(wg * 0, wu * 0, wd * 0, wg[0], wu[0], wd[0])
    dy = torch.zeros(49, 8, dtype=BF16)
    dy[:, 0] = 1
    with Group() as group:
        sched = schedule(ids, 1, group)
        y, ctx = forward(x, torch.ones(49, 1), weights, sched, swiglu_limit=limit)
        dx = backward(dy, ctx).x
    silu = torch.nn.functional.silu(gate.clamp(max=limit))
    assert torch.equal(y[:, 0], (silu * up.clamp(-limit, limit)).bfloat16())
    assert (dx[gate > limit, 0] == 0).all() and (dx[up.abs() > limit, 1] == 0).all()
    assert (dx[(gate == limit) & (up != 0), 0] != 0).all()
    assert (dx[(up.abs() == limit) & (gate != 0), 1] != 0).all()


def test_F36_dirty_tails_over_three_training_steps():
    case = Case(37, 16, 24, 8, 2, routing="unrouted", router="signed")

    def train(byte):
        torch.manual_seed(0)
        results = []
        with Group.local(2) as group:
            layer = MoELayer(16, 24, 8, 2, group=group)
            for n in range(3):
                testing.poison(group, byte)
                freed = [torch.full((1 << k,), byte, dtype=torch.uint8) for k in range(8, 20)]
                del freed
                inputs = testing.make_inputs(dataclasses.replace(case, seed=n))
                inputs.x.requires_grad_(), inputs.topk_weights.requires_grad_()
                layer.zero_grad()
                layer(inputs.x, inputs.topk_ids, inputs.topk_weights).backward(inputs.dy)
                made = (inputs.x, inputs.topk_weights, layer.gate_up, layer.down)
                results += [t.grad.clone() for t in made]
                with torch.no_grad():
                    for p in layer.parameters():
                        p -= 0.1 * p.grad
        return results

    wanted = train(0x00)
    assert all(torch.isfinite(t).all() for t in wanted)
    for byte in (0xFF, 0x3C):
        for got, want in zip(train(byte), wanted, strict=True):
            assert torch.equal(testing.bits(got), testing.bits(want))
