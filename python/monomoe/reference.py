"""The readable oracle: a plain loop over experts in torch, taking what the layer's calls take.

    y, ctx = reference.forward(x, topk_weights, weights, sched)
    grads = reference.backward(dy, ctx)

`sched` may be a monomoe.Schedule or the ids themselves. `arithmetic` chooses the numbers:

    EXACT  float64 throughout, nothing rounded: what the results should be
    TWIN   fp32 with the rounding points of docs/numerics.md, done naively: how far rounding alone
           takes one from EXACT; testing.py measures every other implementation against that
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .functional import Config, Grads, Schedule, Weights


@dataclass(frozen=True)
class Arithmetic:
    """Type of the arithmetic, and of what a rounding point stores (None: nothing is rounded)."""

    dtype: torch.dtype
    stored: torch.dtype | None

    def load(self, t: Tensor) -> Tensor:
        return t.to(self.dtype)

    def store(self, t: Tensor) -> Tensor:
        """A rounding point: the value as it is read back."""
        return t if self.stored is None else t.to(self.stored).to(self.dtype)

    def output(self, t: Tensor, dtype: torch.dtype) -> Tensor:
        """A result, in the caller's dtype where rounding is on."""
        return t if self.stored is None else t.to(dtype)


EXACT = Arithmetic(torch.float64, None)
TWIN = Arithmetic(torch.float32, torch.bfloat16)


@dataclass(frozen=True)
class Context:
    """The arguments of one forward."""

    x: Tensor
    topk_weights: Tensor
    weights: Weights
    topk_ids: Tensor
    weight_grad: str
    swiglu_limit: float | None
    arithmetic: Arithmetic


# ---------------------------------------------------------------------------------- one expert


@dataclass(frozen=True)
class _Expert:
    """Weights of one expert, loaded. n rows of tokens go through it together."""

    gate: Tensor  # [I, H]
    up: Tensor  # [I, H]
    down: Tensor  # [H, I]
    limit: float | None
    arithmetic: Arithmetic

    def clamped(self, rows: Tensor):
        """rows [n, H] -> clamped gate and up [n, I] and the gradient masks of the clamp."""
        gate = self.arithmetic.store(rows @ self.gate.T)
        up = self.arithmetic.store(rows @ self.up.T)
        if self.limit is None:
            everywhere = torch.ones_like(gate, dtype=torch.bool)
            return gate, up, everywhere, everywhere
        return (
            gate.clamp(max=self.limit),
            up.clamp(-self.limit, self.limit),
            gate <= self.limit,
            up.abs() <= self.limit,
        )

    def activation(self, rows: Tensor) -> Tensor:
        """rows [n, H] -> a [n, I]"""
        gate, up, _, _ = self.clamped(rows)
        return self.arithmetic.store(gate * torch.sigmoid(gate) * up)

    def forward(self, rows: Tensor) -> Tensor:
        """rows [n, H] -> [n, H]"""
        return self.arithmetic.store(self.activation(rows) @ self.down.T)

    def backward(self, rows: Tensor, dy: Tensor, scale: Tensor):
        """rows, dy [n, H] and the factor of each row's output, scale [n, 1].

        Returns d(rows) [n, H], d(scale) [n], and d(gate), d(up), d(down) of the weights.
        """
        store = self.arithmetic.store
        gate, up, gate_mask, up_mask = self.clamped(rows)
        sigmoid = torch.sigmoid(gate)
        silu = gate * sigmoid
        dsilu = sigmoid * (1 + gate * (1 - sigmoid))
        a = store(silu * up)

        da = dy @ self.down
        zero = torch.zeros((), dtype=da.dtype)
        dgate = store(torch.where(gate_mask, scale * da * up * dsilu, zero))
        dup = store(torch.where(up_mask, scale * da * silu, zero))
        scaled_a = store(scale * a)
        return (
            store(dgate @ self.gate + dup @ self.up),
            (da * a).sum(-1),
            dgate.T @ rows,
            dup.T @ rows,
            dy.T @ scaled_a,
        )


def _ids(sched: Schedule | Tensor) -> Tensor:
    return sched.topk_ids if isinstance(sched, Schedule) else sched


def _routed(ctx: Context):
    """For every expert with rows: (expert id, expert, token [n], slot [n]) in canonical order."""
    load = ctx.arithmetic.load
    for e in range(ctx.weights.gate.shape[0]):
        token, slot = (ctx.topk_ids == e).nonzero(as_tuple=True)
        if token.numel():
            w = ctx.weights
            gate, up, down = load(w.gate[e]), load(w.up[e]), load(w.down[e])
            yield e, _Expert(gate, up, down, ctx.swiglu_limit, ctx.arithmetic), token, slot


def _shared(ctx: Context) -> _Expert | None:
    w, load = ctx.weights, ctx.arithmetic.load
    if w.shared_gate is None:
        return None
    return _Expert(
        load(w.shared_gate),
        load(w.shared_up),
        load(w.shared_down),
        ctx.swiglu_limit,
        ctx.arithmetic,
    )


def _sigma(ctx: Context, x: Tensor) -> Tensor:
    """Factor of the shared expert's output, [T, 1]."""
    if ctx.weights.shared_score is None:
        return torch.ones(x.shape[0], 1, dtype=x.dtype)
    return torch.sigmoid(x @ ctx.arithmetic.load(ctx.weights.shared_score))[:, None]


# --------------------------------------------------------------------------------------- calls


def forward(
    x: Tensor,
    topk_weights: Tensor,
    weights: Weights,
    sched: Schedule | Tensor,
    config: Config | None = None,
    swiglu_limit: float | None = None,
    *,
    arithmetic: Arithmetic = EXACT,
) -> tuple[Tensor, Context]:
    """y [T, H] and the context for `backward`. Arguments as monomoe.forward, of any float dtype.

    y is float64 with EXACT and bf16 with TWIN.
    """
    weight_grad = "bf16" if config is None else config.weight_grad
    ctx = Context(x, topk_weights, weights, _ids(sched), weight_grad, swiglu_limit, arithmetic)
    loaded, w = arithmetic.load(x), arithmetic.load(topk_weights)
    tokens, hidden = loaded.shape

    slots = torch.zeros(*ctx.topk_ids.shape, hidden, dtype=loaded.dtype)  # [T, K, H]
    for _, expert, token, slot in _routed(ctx):
        slots[token, slot] = expert.forward(loaded[token])

    y = torch.zeros(tokens, hidden, dtype=loaded.dtype)
    for k in range(slots.shape[1]):
        routed = (ctx.topk_ids[:, k] >= 0)[:, None]
        y = torch.where(routed, y + w[:, k, None] * slots[:, k], y)
    if (shared := _shared(ctx)) is not None:
        y = y + _sigma(ctx, loaded) * shared.forward(loaded)
    return arithmetic.output(y, torch.bfloat16), ctx


def backward(dy: Tensor, ctx: Context, accumulate: Weights | None = None) -> Grads:
    """All gradients of `forward`; weight gradients are added to accumulate where it is given.

    float64 with EXACT. With TWIN: x and weights bf16 (fp32 weights with weight_grad="fp32"),
    topk_weights fp32.
    """
    load = ctx.arithmetic.load
    x, w, dy = load(ctx.x), load(ctx.topk_weights), load(dy)
    sums = ctx.weights.map(lambda t: torch.zeros(t.shape, dtype=x.dtype))

    dslots = torch.zeros(*ctx.topk_ids.shape, x.shape[1], dtype=x.dtype)  # [T, K, H]
    dtopk_weights = torch.zeros(ctx.topk_ids.shape, dtype=x.dtype)
    for e, expert, token, slot in _routed(ctx):
        dslots[token, slot], dtopk_weights[token, slot], *dweights = expert.backward(
            x[token], dy[token], w[token, slot, None]
        )
        sums.gate[e], sums.up[e], sums.down[e] = dweights

    dx = torch.zeros_like(x)
    for k in range(dslots.shape[1]):
        dx = dx + dslots[:, k]
    if (shared := _shared(ctx)) is not None:
        sigma = _sigma(ctx, x)
        drow, dsigma, *dweights = shared.backward(x, dy, sigma)
        dx = dx + drow
        for total, part in zip((sums.shared_gate, sums.shared_up, sums.shared_down), dweights):
            total += part
        if ctx.weights.shared_score is not None:
            dscore = (sigma * (1 - sigma))[:, 0] * dsigma  # [T]
            dx = dx + dscore[:, None] * load(ctx.weights.shared_score)
            sums.shared_score.add_(dscore @ x)

    weight_dtype = torch.bfloat16 if ctx.weight_grad == "bf16" else torch.float32
    if accumulate is None:
        weights = sums.map(lambda t: ctx.arithmetic.output(t, weight_dtype))
    else:
        weights = accumulate
        for target, total in zip(accumulate.tensors(), sums.tensors()):
            if target is not None:
                target += total.to(target.dtype)
    return Grads(
        ctx.arithmetic.output(dx, torch.bfloat16),
        ctx.arithmetic.output(dtopk_weights, torch.float32),
        weights,
    )
