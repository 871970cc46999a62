"""Field cases of weight gradients: empty experts, passes, shapes, main_grad.

Each test is named after its case; docs/field_cases.md lists them all. Unless a test says otherwise,
results agree with float64 by the error rule and every number of ranks gives the same bits."""

import pytest
import torch

from field_problems import BF16, WEIGHT_GRADS, agrees, context_of
from field_problems import is_plus_zero, ones_problem, with_counts
from helpers import run
from monomoe import Config, Grads, Group, MoELayer, backward, ops, reference, schedule, testing
from monomoe.functional import launch_backward
from monomoe.testing import Case
from test_memory import run_poisoned

# ------------------------------------------------------------------------ weight gradients


@pytest.mark.parametrize("ranks", [1, 3])
def test_F47_gradient_of_experts_without_tokens_is_plus_zero(ranks):
    counts = [5, 0, 40, 9, 0, 3]
    case, inputs = with_counts(counts)
    run(Case(60, 16, 24, 6, 2), ranks)  # all busy; its memory is used again
    wanted = agrees(case, inputs, (ranks,))
    for byte in (0xFF, 0x3C):
        got = run_poisoned(case, ranks, byte, inputs)
        testing.assert_same_bits(got, wanted)
        for name in WEIGHT_GRADS:
            assert is_plus_zero(got[name][1]) and is_plus_zero(got[name][4])


def test_F48_overwriting_clears_and_accumulating_leaves_experts_without_tokens():
    case, inputs = with_counts([5, 0, 3])
    wide = run(case, inputs=inputs, config=Config(weight_grad="fp32"))
    with Group() as group:
        ctx = context_of(inputs, 3, group)
        main = inputs.weights.map(lambda w: torch.full(w.shape, 7.0))
        backward(inputs.dy, ctx, accumulate=main)
        assert (main.down[1] == 7).all() and torch.equal(main.down[::2], 7 + wide["ddown"][::2])
        into = inputs.weights.map(lambda w: torch.full(w.shape, 7.0).bfloat16())
        route = (ctx.schedule.tables, 3, 1, ctx.schedule.tokens_per_rank)
        launch_backward(
            group.id, inputs.dy, ctx.x, ctx.topk_weights, ctx.weights, route, Config().pack(), None,
            ctx.saved, Grads(None, None, into), False,
        )  # fmt: skip
        assert is_plus_zero(into.down[1]) and torch.equal(into.down, wide["ddown"].bfloat16())


def test_F50_padding_rows_inside_a_group():
    case, inputs = with_counts([3, 5])
    wanted = agrees(case, inputs)
    for byte in (0xFF, 0x3C, 0x00):
        got = run_poisoned(case, 1, byte, inputs)
        testing.assert_same_bits(got, wanted)
        assert all(torch.isfinite(t).all() for t in got.values())


def test_F52_sums_over_several_ring_passes_stay_fp32():
    """384 rows of one expert through a ring of 256: three passes of 128 rows in backward."""
    inputs = ones_problem(1, 1, tokens=384)
    inputs.dy.zero_()
    inputs.dy[0], inputs.dy[128], inputs.dy[256] = 256, 1, 1
    config = Config(ring_rows=256, minibatch_rows=128)
    got = run(Case(384, 8, 8, 1, 1), 1, config, inputs)
    assert (got["ddown"][0, :, 0] == 258).all()
    testing.assert_same_bits(got, run(Case(384, 8, 8, 1, 1), inputs=inputs))


@pytest.mark.parametrize("counts", [[384, 256], [1, 512]])
def test_F53_odd_numbers_of_tiles_per_expert(counts):
    """Scaled by 8: 176 wide in tiles of 16, the same 121 tiles an expert; [1, 512] for 4,096."""
    case, inputs = with_counts(counts, 176, 176)
    wanted = run(case, inputs=inputs)
    with Group.local(2, timeout_s=60) as group:
        testing.set_tile(group, 16, 16, 2)
        got = testing.run_layer(inputs, group, case)
    # (Router gradients are added by column tiles: other tiles, other bits.)
    testing.assert_same_bits(got, wanted, ["y", "dx", *WEIGHT_GRADS])


def test_F55_128_tokens_and_a_channel_of_zeros():
    case, inputs = with_counts([256, 128, 128, 256])
    inputs.x[inputs.topk_ids[:, 0] == 1, 5] = 0
    wanted = agrees(case, inputs)
    assert not wanted["dgate"][1, :, 5].any() and not wanted["dup"][1, :, 5].any()
    with Group() as group:
        for _ in range(20):
            testing.assert_same_bits(testing.run_layer(inputs, group, case), wanted)


F56_WIDTHS = [16, 24, 32, 48, 64, 88, 96, 128, 184, 192]


@pytest.mark.parametrize("hidden", F56_WIDTHS)
def test_F56_shapes_of_weight_gradients(hidden):
    """Scaled by 16: widths, tile (8 x 8) and about 8 tokens an expert."""
    for inter in F56_WIDTHS:
        case, inputs = with_counts([7, 9], hidden, inter)
        exact = testing.run_reference(inputs, case, reference.EXACT)
        twin = testing.run_reference(inputs, case, reference.TWIN)
        with Group.local(2, timeout_s=60) as group:
            testing.set_tile(group, 8, 8, 1)
            testing.assert_close(testing.run_layer(inputs, group, case), twin, exact)


def main_grad_layer(tokens=1):
    inputs = ones_problem(1, 1, tokens)
    layer = MoELayer(8, 8, 1, 1)
    with torch.no_grad():
        layer.gate_up[:, 0], layer.gate_up[:, 1] = inputs.weights.gate, inputs.weights.up
        layer.down.copy_(inputs.weights.down)
    for p in layer.parameters():
        p.main_grad = torch.zeros(p.shape)
    return layer, inputs


def test_F57_every_micro_batch_reaches_main_grad():
    layer, inputs = main_grad_layer()
    for size in (1, 10, 100):
        layer(inputs.x, inputs.topk_ids, inputs.topk_weights).backward(size * inputs.dy)
    assert (layer.down.main_grad[0, :, 0] == 111).all()
    assert all(p.grad is None for p in layer.parameters())


def test_F59_low_bits_are_kept_when_accumulating():
    layer, inputs = main_grad_layer()
    for size in (256, 1):
        layer(inputs.x, inputs.topk_ids, inputs.topk_weights).backward(size * inputs.dy)
    assert (layer.down.main_grad[0, :, 0] == 257).all()
    layer.down.main_grad = layer.down.main_grad.bfloat16()  # the rule: fp32 or refused
    y = layer(inputs.x, inputs.topk_ids, inputs.topk_weights)
    with pytest.raises(TypeError, match="down.main_grad: float32 wanted, bfloat16 given"):
        y.backward(inputs.dy)


def test_F60_weights_as_one_parameter_a_slice_or_many():
    case = Case(33, 16, 24, 4, 2)
    inputs = testing.make_inputs(case)
    wanted = run(case)
    gate_up = torch.stack([inputs.weights.gate, inputs.weights.up], dim=1)
    with Group() as group:
        tables = schedule(inputs.topk_ids, 4, group).tables

        def grads(make):
            """Gradients of leaves from which `make` builds gate_up and down."""
            leaves, (first, second) = make()
            y = ops.apply(inputs.x, inputs.topk_weights, (first, second, None, None, None), tables,
                          group, None, Config().pack(), None)  # fmt: skip
            return torch.autograd.grad(y, leaves, inputs.dy)

        def whole():
            made = gate_up.clone().requires_grad_(), inputs.weights.down.clone().requires_grad_()
            return made, made

        def slices():
            big = torch.zeros(9, 2, 24, 16, dtype=BF16)
            big[3:7] = gate_up
            down = torch.zeros(9, 16, 24, dtype=BF16)
            down[3:7] = inputs.weights.down
            made = big.requires_grad_(), down.requires_grad_()
            return made, tuple(t[3:7] for t in made)

        def separate():
            first = [t.clone().requires_grad_() for t in gate_up]
            second = [t.clone().requires_grad_() for t in inputs.weights.down]
            return first + second, (torch.stack(first), torch.stack(second))

        one = grads(whole)
        assert torch.equal(one[0][:, 0], wanted["dgate"]) and torch.equal(one[1], wanted["ddown"])
        for got, want in zip(grads(slices), one):
            assert torch.equal(got[3:7], want) and not got[:3].any() and not got[7:].any()
        many = grads(separate)
        assert torch.equal(torch.stack(many[:4]), one[0])
        assert torch.equal(torch.stack(many[4:]), one[1])
