"""No time without a right result.

MonoMoE is compared with the float64 reference by the project's error rule: y, dx and router
gradients of some tokens, weight gradients of some experts, those of the shared expert whole. The
others are compared with MonoMoE, all values of every result.
"""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from .. import reference, testing
from ..functional import Weights
from .cases import Inputs
from .systems import System

TOKENS = 16  # that are compared with float64
EXPERTS = 2  # whose weight gradients are
RIVAL_ERROR = 2.0**-5  # of a rival's result against MonoMoE's, in Frobenius norm

_ROUTED = {"dgate": "gate", "dup": "up", "ddown": "down"}


def run_once(system: System, backward: bool) -> dict[str, Tensor]:
    """Results of one step, by name."""
    state = system.forward()
    return system.results(state, system.backward(state) if backward else None)


def against_float64(inputs: Inputs, results: dict[str, Tensor]) -> list[testing.Verdict]:
    """One verdict a tensor; results holds y, or y and all gradients."""
    verdicts = _some_tokens(inputs, results)
    if "dx" in results:
        counts = torch.bincount(inputs.ids.flatten().long(), minlength=inputs.case.experts)
        fullest, first = int(counts.argmax()), int(counts.nonzero()[0])
        for expert in sorted({fullest, first})[:EXPERTS]:
            verdicts += _one_expert(inputs, results, expert)
        if inputs.case.shared:
            verdicts += _shared(inputs, results)
    return verdicts


def _judge(sub: Inputs, got: dict[str, Tensor]) -> list[testing.Verdict]:
    """The error rule for the tensors of `got`, which are results of the problem `sub`."""
    wanted = []
    with torch.device(sub.x.device):  # the reference makes tensors on the default device
        for arithmetic in (reference.TWIN, reference.EXACT):
            y, ctx = reference.forward(
                sub.x, sub.topk_weights, sub.weights, sub.ids.long(), arithmetic=arithmetic
            )
            if set(got) == {"y"}:
                wanted.append({"y": y})
            else:
                wanted.append(testing.named(y, reference.backward(sub.dy, ctx)))
    twin, exact = wanted
    return [testing.judge(name, got[name], twin[name], exact[name]) for name in got]


def _some_tokens(inputs: Inputs, results: dict[str, Tensor]) -> list[testing.Verdict]:
    """Rows of y, dx and router gradients depend on their token only: a problem of few tokens, with
    the experts that these use."""
    tokens = inputs.x.shape[0]
    chosen = torch.linspace(0, tokens - 1, min(TOKENS, tokens), device=inputs.x.device).long()
    used, ids = inputs.ids[chosen].unique(return_inverse=True)
    w = inputs.weights
    part = (t[used.long()] for t in (w.gate, w.up, w.down))
    shared = (w.shared_gate, w.shared_up, w.shared_down, w.shared_score)
    sub = dataclasses.replace(
        inputs, x=inputs.x[chosen], ids=ids, topk_weights=inputs.topk_weights[chosen],
        weights=Weights(*part, *shared), dy=inputs.dy[chosen],
    )  # fmt: skip
    names = [name for name in ("y", "dx", "dtopk_weights") if name in results]
    return _judge(sub, {name: results[name][chosen] for name in names})


def _one_expert(inputs: Inputs, results: dict[str, Tensor], e: int) -> list[testing.Verdict]:
    """Its weight gradients are those of a problem with this expert and its tokens alone."""
    mine = inputs.ids == e
    chosen = mine.any(dim=1).nonzero()[:, 0]
    w = inputs.weights
    sub = dataclasses.replace(
        inputs, x=inputs.x[chosen], dy=inputs.dy[chosen],
        ids=torch.where(mine[chosen], 0, -1), topk_weights=inputs.topk_weights[chosen],
        weights=Weights(w.gate[e : e + 1], w.up[e : e + 1], w.down[e : e + 1]),
    )  # fmt: skip
    return _judge(sub, {name: results[name][e : e + 1] for name in _ROUTED})


def _shared(inputs: Inputs, results: dict[str, Tensor]) -> list[testing.Verdict]:
    """Gradients of the shared expert: the problem without routes."""
    w = inputs.weights
    sub = dataclasses.replace(
        inputs, ids=torch.full_like(inputs.ids, -1),
        weights=dataclasses.replace(w, gate=w.gate[:1], up=w.up[:1], down=w.down[:1]),
    )  # fmt: skip
    return _judge(sub, {name: results[name] for name in testing.PER_RANK_SUMS if name in results})


def relative_errors(results: dict[str, Tensor], wanted: dict[str, Tensor]) -> dict[str, float]:
    """Relative error of each result in Frobenius norm."""
    errors = {}
    for name, want in wanted.items():
        got = results[name]
        error = size = 0.0
        for a, b in zip(_pieces(got), _pieces(want)):  # small: fp32 copies of all would be large
            error += float((a.float() - b.float()).square().sum(dtype=torch.float64))
            size += float(b.float().square().sum(dtype=torch.float64))
        errors[name] = (error / size) ** 0.5 if size else float(error > 0)
    return errors


def _pieces(t: Tensor):
    return t.split(max(1, (1 << 28) // max(1, t[:1].numel())))


def accumulates(system: System, main: Weights, wanted: dict[str, Tensor]) -> list[str]:
    """Names of the weight gradients that are wrong when MonoMoE adds them to main_grads of zero:
    rounded to bf16 they are the bits of the written ones."""
    for tensor in main.tensors():
        if tensor is not None:
            tensor.zero_()
    system.backward(system.forward(), main)
    names = [(f"d{n}", t) for n, t in zip(Weights.names(), main.tensors()) if t is not None]
    return [name for name, t in names if not _same(t, wanted[name])]


def _same(t: Tensor, wanted: Tensor) -> bool:
    return all(torch.equal(a.bfloat16(), b) for a, b in zip(_pieces(t), _pieces(wanted)))
