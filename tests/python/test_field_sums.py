"""Field cases of combine, router gradients and values: one rounding, zero and tiny values.

Each test is named after its case; docs/field_cases.md lists them all. Unless a test says otherwise,
results agree with float64 by the error rule and every number of ranks gives the same bits."""

import dataclasses
import threading

import pytest
import torch

from field_problems import agrees, inputs_with, is_plus_zero, ones_problem
from helpers import run
from monomoe import Group, MoELayer, forward, reference, schedule, testing
from monomoe.testing import Case
from test_memory import run_poisoned

# ---------------------------------------------------------------------------------- combine


def test_F38_twenty_runs_beside_other_work_have_the_same_bits():
    case = Case(256, 16, 24, 16, 8)
    inputs = testing.make_inputs(case)
    wanted = run(case, 2, inputs=inputs)
    stop = threading.Event()

    def busy():
        a = torch.randn(1 << 20)
        while not stop.is_set():
            a.add_(1.0)

    other = threading.Thread(target=busy, daemon=True)
    with Group.local(2) as group:
        for n in range(20):
            if n == 10:
                other.start()
            testing.assert_same_bits(testing.run_layer(inputs, group, case), wanted)
    stop.set()
    other.join()


@pytest.mark.parametrize("ranks", [1, 2, 8])
def test_F39_the_sum_over_k_is_rounded_once(ranks):
    inputs = ones_problem(8, 8)
    inputs.topk_weights[0] = torch.tensor([256.0, 1, 0, 0, 1, 0, 0, 0])
    got = run(Case(1, 8, 8, 8, 8), ranks, inputs=inputs)
    assert (got["y"] == 258).all()


@pytest.mark.parametrize("ranks", [1, 2])
def test_F40_router_weights_stay_fp32_until_the_product(ranks):
    case = Case(4, 16, 24, 2, 2)
    inputs = testing.make_inputs(case)
    weights = inputs.weights.map(lambda w: w[:1].expand(w.shape).contiguous())
    ids = torch.tensor([[0, 1]] * 4)
    alone = torch.tensor([[1.0, 0]] * 4)
    one = inputs_with(case, weights=weights, topk_ids=ids, topk_weights=alone)
    y = run(case, ranks, inputs=one)["y"].float()
    two = dataclasses.replace(one, topk_weights=torch.tensor([[1 + 2**-9, -1.0]] * 4))
    assert torch.equal(run(case, ranks, inputs=two)["y"], (2**-9 * y).bfloat16())


@pytest.mark.parametrize("ranks", [2, 4])
def test_F42_only_one_rank_has_tokens_that_go_somewhere(ranks):
    """Scaled: 100 rounds of 64 tokens a rank for 1,024 of 256."""
    tokens = 64
    case = Case(tokens * ranks, 16, 24, 2 * ranks, 2)
    inputs = testing.make_inputs(case)
    for w in (inputs.weights.gate, inputs.weights.up, inputs.weights.down):
        w[1] = w[0]
    inputs.topk_ids[:] = -1
    inputs.topk_ids[:tokens] = torch.tensor([0, 1])
    inputs.topk_weights[:] = 1
    alone = inputs.topk_ids.clone()
    alone[:, 1] = -1
    y = run(case, 1, inputs=dataclasses.replace(inputs, topk_ids=alone))["y"]
    with Group.local(ranks) as group:
        sched = schedule(inputs.topk_ids, case.experts, group)
        for _ in range(100):
            got, _ = forward(inputs.x, inputs.topk_weights, inputs.weights, sched)
            assert torch.equal(got[:tokens], 2 * y[:tokens]) and is_plus_zero(got[tokens:])


def test_F44_the_router_weight_is_applied_once():
    case = Case(8, 16, 24, 2, 1, values="integer")
    base = testing.make_inputs(case)

    def y_of(*weights, ids=None):
        top_k = len(weights)
        inputs = dataclasses.replace(
            base, topk_weights=torch.tensor([weights] * 8),
            topk_ids=torch.tensor([ids or [0] * top_k] * 8),
        )  # fmt: skip
        return run(Case(8, 16, 24, 2, top_k), inputs=inputs)["y"].float()

    one, other = y_of(1.0), y_of(1.0, ids=[1])
    assert torch.equal(y_of(3.0), 3 * one) and not y_of(0.0).any()
    assert torch.equal(y_of(5.0, 7.0, ids=[0, 1]), 5 * one + 7 * other)
    wanted = torch.tensor(0.2) * one + torch.tensor(0.3) * other
    assert torch.equal(y_of(0.2, 0.3, ids=[0, 1]), wanted.bfloat16().float())


@pytest.mark.parametrize("ranks", [1, 2])
def test_F45_tokens_without_a_valid_expert(ranks):
    case = Case(8, 16, 24, 4, 2)
    inputs = testing.make_inputs(case)
    inputs.topk_ids[[2, 5]] = -1
    wanted = agrees(case, inputs, (ranks,))
    for byte in (0xFF, 0x3C, 0x00):
        got = run_poisoned(case, ranks, byte, inputs)
        testing.assert_same_bits(got, wanted)
        for name in ("y", "dx", "dtopk_weights"):
            assert is_plus_zero(got[name][[2, 5]])


# -------------------------------------------------------------------------- router gradient


@pytest.mark.parametrize("byte", [0xFF, 0x3C, 0x00])
def test_F62_skipped_slots_scatter_nothing(byte):
    case = Case(3, 16, 24, 2, 2)
    inputs = inputs_with(case, topk_ids=torch.tensor([[0, -1], [-1, 0], [0, -1]]))
    got = run_poisoned(case, 1, byte, inputs)
    testing.assert_same_bits(got, agrees(case, inputs))
    flat = got["dtopk_weights"].flatten()
    assert is_plus_zero(flat[[1, 2, 5]]) and (flat[[0, 3, 4]] != 0).all()


def test_F64_router_weights_have_the_gradient_of_finite_differences():
    case = Case(5, 16, 24, 4, 2)
    inputs = testing.make_inputs(case)
    layer = MoELayer(16, 24, 4, 2)
    with torch.no_grad():
        layer.gate_up[:, 0], layer.gate_up[:, 1] = inputs.weights.gate, inputs.weights.up
        layer.down.copy_(inputs.weights.down)
    weights = inputs.topk_weights.requires_grad_()
    (layer(inputs.x, inputs.topk_ids, weights) * inputs.dy).sum().backward()
    assert weights.grad is not None and weights.grad.dtype == torch.float32

    def loss(topk_weights):
        y, _ = reference.forward(
            inputs.x, topk_weights, inputs.weights, inputs.topk_ids, arithmetic=reference.EXACT
        )
        return (y * inputs.dy.double()).sum().item()

    with torch.no_grad():
        for t in range(5):
            for k in range(2):
                step = torch.zeros(5, 2)
                step[t, k] = 2**-6
                numeric = (loss(weights + step) - loss(weights - step)) / 2**-5
                assert abs(weights.grad[t, k].item() - numeric) < 0.02 * (1 + abs(numeric))


def test_F65_router_gradient_does_not_divide_by_the_weight():
    case = Case(1, 16, 24, 1, 1)
    inputs = testing.make_inputs(case)
    seen = {}
    for w in (0.0, -0.0, 1e-30, 1e-12, -0.5, 5.0):
        seen[w] = run(case, inputs=dataclasses.replace(inputs, topk_weights=torch.tensor([[w]])))
        assert torch.equal(seen[w]["dtopk_weights"], seen[0.0]["dtopk_weights"])
        assert torch.isfinite(seen[w]["dx"]).all()
    assert seen[0.0]["dtopk_weights"].item() != 0 and not seen[0.0]["dx"].any()
    scale = seen[5.0]["dx"].double().norm() / seen[-0.5]["dx"].double().norm()
    assert abs(scale - 10) < 0.05


def test_F67_contributions_of_experts_on_other_ranks():
    """Every token has one expert on each of two ranks."""
    case = Case(32, 16, 24, 4, 2)
    ids = torch.stack([torch.randint(0, 2, (32,)), torch.randint(2, 4, (32,))], 1)
    got = agrees(case, inputs_with(case, topk_ids=ids), (2, 1))
    assert (got["dtopk_weights"] != 0).all()


# ------------------------------------------------------- quantisation: what holds for bf16


def test_F68_blocks_of_zeros():
    case = Case(8, 64, 64, 2, 1)
    inputs = testing.make_inputs(case)
    inputs.x[0, :32] = 0
    inputs.x[1] = 0
    inputs.dy[2] = 0
    inputs.weights.down[0, :32] = 0
    got = agrees(case, inputs)
    for name in ("y", "dx"):
        assert not got[name][1].any()
    assert not got["dx"][2].any() and not got["dtopk_weights"][2].any()
    assert not got["y"][inputs.topk_ids[:, 0] == 0, :32].any()


@pytest.mark.parametrize("size", [1e-30, 1e-37, 1.2e-38, 1e-39, 9.2e-41])
def test_F74_tiny_values(size):
    case = Case(8, 64, 64, 2, 1)
    inputs = testing.make_inputs(case)
    wanted = run(case, inputs=inputs)
    for t in (inputs.x, inputs.dy):
        t[3] = (t[3].double() / t[3].double().abs().max() * size).bfloat16()
    got = run(case, inputs=inputs)
    assert all(torch.isfinite(t).all() for t in got.values())
    others = torch.arange(8) != 3
    for name in ("y", "dx", "dtopk_weights"):
        testing.assert_same_bits({name: got[name][others]}, {name: wanted[name][others]})
    # Two products of the size are beyond fp32: the result is 0 or as tiny.
    assert got["y"][3].float().abs().max() <= 4 * size
    assert got["dx"][3].float().abs().max() <= 4 * size


def test_F76_weights_changed_without_a_version_are_seen():
    case = Case(8, 16, 24, 2, 1)
    inputs = testing.make_inputs(case)
    with Group() as group:
        sched = schedule(inputs.topk_ids, 2, group)
        before, _ = forward(inputs.x, inputs.topk_weights, inputs.weights, sched)
        inputs.weights.down.data.mul_(2)
        after, _ = forward(inputs.x, inputs.topk_weights, inputs.weights, sched)
    assert torch.equal(after, 2 * before)
