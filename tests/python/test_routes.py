"""What a router may send: id types, strides, missing, repeated and crowded routes."""

import dataclasses
import math

import pytest
import torch

from helpers import case_id, check, run
from monomoe import Group, Weights, backward, forward, schedule, testing
from monomoe.testing import Case


@pytest.mark.parametrize(
    "routing", ["skewed", "unrouted", "even_only", "duplicates", "one", "none"]
)
@pytest.mark.parametrize("extra", [{}, {"shared": 24, "score": True}, {"split": "ragged"}],
                         ids=["plain", "shared", "ragged"])  # fmt: skip
def test_routing_agrees_with_float64_and_over_ranks(routing, extra):
    check(Case(67, 64, 40, 6, 3, routing=routing, **extra))


@pytest.mark.parametrize("experts, top_k", [(1, 1), (4, 4), (65, 2)])
def test_all_tokens_to_one_expert_of_many(experts, top_k):
    check(Case(150, 64, 40, experts, top_k, routing="one"))


def results(ids, case=Case(33, 64, 40, 5, 2), ranks=2):
    inputs = testing.make_inputs(case)
    with Group.local(ranks) as group:
        sched = schedule(ids, case.experts, group)
        y, ctx = forward(inputs.x, inputs.topk_weights, inputs.weights, sched)
        return testing.named(y, backward(inputs.dy, ctx))


def test_ids_of_any_integer_type_and_strides_give_the_same_bits():
    ids = testing.make_inputs(Case(33, 64, 40, 5, 2)).topk_ids
    wanted = results(ids)
    wide = torch.full((33, 7), 99)
    wide[:, 1::4] = ids
    for variant in (
        ids.int(),
        ids.T.contiguous().T,  # columns are contiguous
        wide[:, 1::4],  # every fourth element of a wider tensor
        torch.cat([ids.int(), ids.int()], dim=1)[:, :2],
    ):
        testing.assert_same_bits(results(variant), wanted)


def test_expanded_ids_are_read_with_their_stride_of_zero():
    one = torch.tensor([[3, 1]])
    testing.assert_same_bits(results(one.expand(33, 2)), results(one.repeat(33, 1)))


def test_router_weights_of_any_strides_give_the_same_bits():
    case = Case(33, 64, 40, 5, 2)
    inputs = testing.make_inputs(case)
    wanted = run(case)
    odd = torch.empty(33 * 5 + 1)[1:].view(33, 5)  # rows at addresses that are multiples of 4 only
    odd[:, ::3] = inputs.topk_weights
    for variant in (odd[:, ::3], inputs.topk_weights.T.contiguous().T):
        got = run(case, inputs=dataclasses.replace(inputs, topk_weights=variant))
        testing.assert_same_bits(got, wanted)


def test_token_without_routes_gets_zeros_everywhere():
    case = Case(65, 64, 40, 6, 3, routing="unrouted")
    got = run(case, 3)
    ids = testing.make_inputs(case).topk_ids
    alone = (ids < 0).all(1)
    assert alone.any() and not alone.all()
    for name in ("y", "dx"):
        assert not testing.bits(got[name][alone]).any(), name  # +0, not -0
        assert got[name][~alone].count_nonzero(), name
    assert not testing.bits(got["dtopk_weights"][ids < 0]).any()
    assert got["dtopk_weights"][ids >= 0].count_nonzero()


def test_nothing_is_routed_and_all_gradients_are_zero():
    got = run(Case(33, 64, 40, 6, 2, routing="none"), 2)
    for name, tensor in got.items():
        assert not testing.bits(tensor).any(), name


def test_experts_without_rows_get_gradient_plus_zero():
    case = Case(65, 64, 40, 8, 2, routing="even_only")
    for ranks in (1, 3):
        got = run(case, ranks)
        for name in ("dgate", "dup", "ddown"):
            assert not testing.bits(got[name][1::2]).any(), name
            assert all(got[name][e].count_nonzero() for e in range(0, 8, 2)), name


def test_both_slots_of_a_repeated_expert_count():
    case = Case(33, 64, 40, 4, 2)
    inputs = testing.make_inputs(case)
    twice = dataclasses.replace(
        inputs, topk_ids=torch.full((33, 2), 1), topk_weights=torch.full((33, 2), 0.5)
    )
    once = dataclasses.replace(
        inputs,
        topk_ids=torch.tensor([[1, -1]]).repeat(33, 1),
        topk_weights=torch.ones(33, 2),
    )
    a, b = run(case, 2, inputs=twice), run(case, 2, inputs=once)
    assert torch.equal(a["y"], b["y"])
    assert torch.equal(a["dtopk_weights"][:, 0], a["dtopk_weights"][:, 1])
    assert torch.equal(a["dtopk_weights"][:, 0], b["dtopk_weights"][:, 0])


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("ranks", [1, 3])
def test_router_weight_and_row_of_a_missing_route_are_never_read(bad, ranks):
    case = Case(33, 64, 40, 5, 2, routing="unrouted")
    inputs = testing.make_inputs(case)
    wanted = run(case, ranks)
    topk_weights = inputs.topk_weights.clone()
    topk_weights[inputs.topk_ids < 0] = bad
    x, dy = inputs.x.clone(), inputs.dy.clone()
    alone = (inputs.topk_ids < 0).all(1)
    x[alone] = bad
    dy[alone] = bad
    got = run(case, ranks, inputs=dataclasses.replace(
        inputs, topk_weights=topk_weights, x=x, dy=dy))  # fmt: skip
    testing.assert_same_bits(got, wanted)


@pytest.mark.parametrize("where", ["x", "topk_weights"])
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_bad_token_stays_alone_in_y_and_dx(where, bad):
    case = Case(40, 64, 40, 5, 2, shared=24)
    inputs = testing.make_inputs(case)
    wanted = run(case, 2)
    x, topk_weights = inputs.x.clone(), inputs.topk_weights.clone()
    {"x": x, "topk_weights": topk_weights}[where][17] = bad
    got = run(case, 2, inputs=dataclasses.replace(inputs, x=x, topk_weights=topk_weights))
    others = torch.arange(40) != 17
    for name in ("y", "dx", "dtopk_weights"):
        testing.assert_same_bits({name: got[name][others]}, {name: wanted[name][others]})
    assert not torch.isfinite(got["y"][17]).all()
    hit = set(inputs.topk_ids[17].tolist())
    for e in set(range(5)) - hit:
        for name in ("dgate", "dup", "ddown"):
            testing.assert_same_bits({name: got[name][e]}, {name: wanted[name][e]})


@pytest.mark.parametrize("case", [
    Case(65, 64, 40, 6, 2, shared=8),
    Case(65, 64, 40, 6, 2, shared=136),
    Case(65, 64, 40, 6, 2, shared=72, score=True),
    Case(0, 64, 40, 6, 2, shared=72, score=True),
    Case(1, 64, 40, 6, 2, shared=72, score=True),
    Case(300, 64, 40, 6, 2, shared=72, score=True, split="ragged"),
    Case(65, 64, 40, 6, 2, limit=0.25),
    Case(65, 64, 40, 6, 2, limit=7.0, shared=24),
    Case(65, 64, 40, 6, 2, limit=0.5, shared=24, score=True, router="signed"),
], ids=case_id)  # fmt: skip
def test_shared_expert_and_clamp_agree_with_float64(case):
    check(case)


def test_clamp_bounds_belong_to_the_open_side_of_the_gradient():
    """gate = limit and |up| = limit pass the gradient; the next value beyond does not."""
    limit = 2.0
    gates, ups = [2.0, 2.015625, -5.0, 1.0], [2.0, -2.0, 2.015625, -2.015625]
    pairs = torch.tensor([(g, u) for g in gates for u in ups])  # 16 tokens, E = 1, I = 8
    x = torch.zeros(16, 8, dtype=torch.bfloat16)
    x[:, 0], x[:, 1] = pairs[:, 0], pairs[:, 1]
    gate, up = torch.zeros(1, 8, 8).bfloat16(), torch.zeros(1, 8, 8).bfloat16()
    gate[0, 0, 0] = up[0, 0, 1] = 1  # unit 0: gate = x[0], up = x[1]
    down = torch.zeros(1, 8, 8).bfloat16()
    down[0, 0, 0] = 1
    dy = torch.zeros(16, 8).bfloat16()
    dy[:, 0] = 1
    with Group() as group:
        sched = schedule(torch.zeros(16, 1, dtype=torch.int32), 1, group)
        y, ctx = forward(x, torch.ones(16, 1), Weights(gate, up, down), sched, swiglu_limit=limit)
        dx = backward(dy, ctx).x
    g, u = pairs.unbind(1)
    gate_passes, up_passes = g <= limit, u.abs() <= limit
    assert torch.equal(dx[:, 0] != 0, gate_passes)
    assert torch.equal(dx[:, 1] != 0, up_passes)
    clamped = torch.nn.functional.silu(g.clamp(max=limit)) * u.clamp(-limit, limit)
    assert torch.equal(y[:, 0], clamped.bfloat16())
