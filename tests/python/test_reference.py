"""The oracle itself: against autograd of an independent formula, and exact where it must be."""

import pytest
import torch

from helpers import case_id
from monomoe import Config, Weights, reference, testing
from monomoe.testing import Case


def formula(x, topk_weights, weights, ids, limit):
    """The layer token by token, for autograd."""

    def expert(row, gate, up, down):
        g, u = gate @ row, up @ row
        if limit is not None:
            g, u = g.clamp(max=limit), u.clamp(-limit, limit)
        return down @ (torch.nn.functional.silu(g) * u)

    rows = []
    for t, row in enumerate(x):
        y = torch.zeros_like(row)
        for k, e in enumerate(ids[t].tolist()):
            if e >= 0:
                y = y + topk_weights[t, k] * expert(
                    row, weights.gate[e], weights.up[e], weights.down[e]
                )
        if weights.shared_gate is not None:
            sigma = 1.0
            if weights.shared_score is not None:
                sigma = torch.sigmoid(row @ weights.shared_score)
            y = y + sigma * expert(row, weights.shared_gate, weights.shared_up, weights.shared_down)
        rows.append(y)
    return torch.stack(rows)


@pytest.mark.parametrize("limit", [None, 0.6])
@pytest.mark.parametrize("shared, score", [(0, False), (24, False), (24, True)])
@pytest.mark.parametrize("routing", ["random", "unrouted", "duplicates", "one"])
def test_float64_reference_equals_autograd(routing, shared, score, limit):
    case = Case(9, 16, 24, 5, 3, routing=routing, shared=shared, score=score, limit=limit,
                router="signed")  # fmt: skip
    inputs = testing.make_inputs(case)
    x, topk_weights, dy = inputs.x.double(), inputs.topk_weights.double(), inputs.dy.double()
    weights = inputs.weights.map(torch.Tensor.double)
    leaves = [t for t in (x, topk_weights, *weights.tensors()) if t is not None]
    y, ctx = reference.forward(x, topk_weights, weights, inputs.topk_ids, swiglu_limit=limit)
    grads = reference.backward(dy, ctx)
    for leaf in leaves:
        leaf.requires_grad_()
    wanted = formula(x, topk_weights, weights, inputs.topk_ids, limit)
    wanted_grads = torch.autograd.grad(wanted, leaves, dy)
    got = [g for g in (grads.x, grads.topk_weights, *grads.weights.tensors()) if g is not None]
    torch.testing.assert_close(y, wanted.detach(), rtol=1e-12, atol=1e-12)
    for a, b in zip(got, wanted_grads, strict=True):
        torch.testing.assert_close(a.detach(), b, rtol=1e-11, atol=1e-11)


INTEGER_CASES = [
    Case(33, 64, 40, 5, 2, values="integer"),
    Case(65, 136, 64, 5, 2, values="integer", shared=24, score=True, routing="duplicates"),
    Case(33, 8, 128, 3, 1, values="integer", config=Config(weight_grad="fp32")),
]


@pytest.mark.parametrize("case", INTEGER_CASES, ids=case_id)
def test_integer_values_leave_nothing_to_round(case):
    inputs = testing.make_inputs(case)
    exact = testing.run_reference(inputs, case, reference.EXACT)
    twin = testing.run_reference(inputs, case, reference.TWIN)
    for name, tensor in twin.items():
        assert torch.equal(testing.nearest_integers(exact[name]).to(tensor.dtype), tensor), name
        assert tensor.count_nonzero() > 0, name


def test_reference_accumulates_into_float32_targets():
    case = Case(9, 16, 24, 5, 2, routing="even_only", shared=16)
    inputs = testing.make_inputs(case)
    _, ctx = reference.forward(
        inputs.x, inputs.topk_weights, inputs.weights, inputs.topk_ids, arithmetic=reference.TWIN
    )
    plain = reference.backward(inputs.dy, ctx)
    main = inputs.weights.map(lambda w: torch.ones(w.shape))
    grads = reference.backward(inputs.dy, ctx, accumulate=main)
    assert grads.weights is main
    for total, grad in zip(main.tensors(), plain.weights.tensors()):
        if grad is not None:
            torch.testing.assert_close(total, 1 + grad.float(), rtol=1e-2, atol=1e-2)


def test_twin_returns_the_dtypes_of_the_layer():
    case = Case(3, 16, 24, 5, 2, shared=8)
    inputs = testing.make_inputs(case)
    y, ctx = reference.forward(
        inputs.x, inputs.topk_weights, inputs.weights, inputs.topk_ids, arithmetic=reference.TWIN
    )
    grads = reference.backward(inputs.dy, ctx)
    assert y.dtype == grads.x.dtype == grads.weights.shared_down.dtype == torch.bfloat16
    assert grads.topk_weights.dtype == torch.float32
    assert isinstance(grads.weights, Weights) and grads.weights.shared_score is None
