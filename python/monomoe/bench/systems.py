"""What is measured, behind one interface: dense, MonoMoE, and torch with grouped_mm.

A system takes the ids and makes its own tables, sorts and permutations; all of it is timed. It is
set up for training: forward keeps what backward needs, and backward gives the gradients of x,
router weights and all expert weights, written or added to fp32 main_grads.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from .. import functional, testing
from ..functional import Config, Group, Weights
from . import cases
from .cases import Inputs

_SAVED_GAPS = 1024  # four regions of the saved state begin at multiples of 256
WAIT_S = 20.0  # budget of MonoMoE's waits: a hang ends here


class Unavailable(Exception):
    """Why a system can't be measured here, as a sentence."""


class System:
    """One implementation on one case."""

    name = ""  # "system" of the record
    version = ""
    ranks = 1
    config: dict = {}

    def forward(self):
        """What backward needs; `output` finds y in it."""
        raise NotImplementedError

    def backward(self, state, main_grads: Weights | None = None):
        """Gradients; with main_grads those of the weights are added there."""
        raise NotImplementedError

    def output(self, state) -> Tensor | None:
        """y [T, H], or None where there is none."""
        return None

    def results(self, state, grads) -> dict[str, Tensor]:
        """By the names of testing.py. grads: what backward returned, or None."""
        raise NotImplementedError

    def parts(self) -> list[tuple[str, Callable]]:
        """Forward in parts whose launches are counted apart; each takes what the last returned."""
        return [("forward", lambda _: self.forward())]

    def close(self) -> None:
        """Frees what the garbage collector does not."""


# ---------------------------------------------------------------------------------------- dense


class Dense(System):
    """cuBLAS GEMMs of the same work: one weight, all rows. No routing, no activation, no sum."""

    name = "dense"

    def __init__(self, inputs: Inputs):
        self.version = f"torch {torch.__version__}"
        case, device = inputs.case, inputs.x.device
        self._forward = [_dense_gemm(g, device) for g in cases.forward_gemms(case)]
        self._backward = [
            _dense_gemm(g, device, a_along_rows=i % 4 >= 2, b_along_cols=True)
            for i, g in enumerate(cases.backward_gemms(case))
        ]

    def forward(self):
        for a, b, out in self._forward:
            torch.mm(a, b, out=out)

    def backward(self, state, main_grads: Weights | None = None):
        for a, b, out in self._backward:
            torch.mm(a, b, out=out)


def _dense_gemm(
    gemm: cases.Gemm, device, a_along_rows: bool = False, b_along_cols: bool = False
) -> tuple[Tensor, Tensor, Tensor]:
    """Operands as they lie in a layer: activations by rows, weights [out, in]."""

    def normal(rows: int, cols: int) -> Tensor:
        return torch.empty(rows, cols, dtype=torch.bfloat16, device=device).normal_()

    a = normal(gemm.depth, gemm.rows).T if a_along_rows else normal(gemm.rows, gemm.depth)
    b = normal(gemm.depth, gemm.cols) if b_along_cols else normal(gemm.cols, gemm.depth).T
    return a, b, torch.empty(gemm.rows, gemm.cols, dtype=torch.bfloat16, device=device)


# -------------------------------------------------------------------------------------- monomoe


@dataclass(eq=False)
class MonoMoE(System):
    """The three calls of this package."""

    inputs: Inputs
    ranks: int = 1
    options: Config = field(default_factory=Config)

    name = "monomoe"

    def __post_init__(self):
        self.version = functional.native().version()
        defaults = vars(Config())
        self.config = {k: v for k, v in vars(self.options).items() if v != defaults[k]}
        self.group = Group.local(self.ranks, timeout_s=WAIT_S)

    def schedule(self, _=None):
        return functional.schedule(self.inputs.ids, self.inputs.case.experts, self.group)

    def forward(self):
        return self._forward(self.schedule())

    def _forward(self, sched):
        i = self.inputs
        return functional.forward(i.x, i.topk_weights, i.weights, sched, self.options)

    def backward(self, state, main_grads: Weights | None = None):
        return functional.backward(self.inputs.dy, state[1], main_grads)

    def output(self, state) -> Tensor:
        return state[0]

    def results(self, state, grads) -> dict[str, Tensor]:
        return {"y": state[0]} if grads is None else testing.named(state[0], grads)

    def parts(self) -> list[tuple[str, Callable]]:
        return [("schedule", self.schedule), ("forward", self._forward)]

    def kept_allowed(self) -> int:
        """What `save = preact` may keep at R = 1: pre-activations of the row space, tables."""
        case = self.inputs.case
        row_space = case.rows + 128 * case.experts
        tables = 4 * functional.native().schedule_words(
            self.group.id, case.tokens, case.experts, case.top_k
        )
        score = 4 * case.tokens if case.gated else 0
        preacts = 4 * (row_space * case.intermediate + case.tokens * case.shared)
        return preacts + score + tables + _SAVED_GAPS

    def close(self) -> None:
        self.group.close()


# ---------------------------------------------------------------------------------------- torch


class Autograd(System):
    """A system that torch's autograd differentiates. Subclasses give `call` and `gate_up`."""

    def __init__(self, inputs: Inputs):
        self.inputs = inputs
        w = inputs.weights
        self.x = inputs.x.detach().requires_grad_()
        self.topk_weights = inputs.topk_weights.detach().requires_grad_()
        self.gate_up = self.pack(inputs.gate_up).requires_grad_()
        self.down = self.pack_down(w.down).requires_grad_()
        self.shared = [
            t.detach().requires_grad_()
            for t in (inputs.shared_gate_up, w.shared_down, w.shared_score)
            if t is not None
        ]

    def pack(self, gate_up: Tensor) -> Tensor:
        """gate_up [E, 2I, H] as this system wants it."""
        return gate_up.detach()

    def unpack(self, gate_up: Tensor) -> Tensor:
        """The inverse, for gradients: [E, 2, I, H]."""
        case = self.inputs.case
        return gate_up.reshape(case.experts, 2, case.intermediate, case.hidden)

    def pack_down(self, down: Tensor) -> Tensor:
        return down.detach()

    def unpack_down(self, down: Tensor) -> Tensor:
        return down

    def call(self) -> Tensor:
        """y [T, H]"""
        raise NotImplementedError

    def forward(self):
        return self.call()

    def backward(self, state, main_grads: Weights | None = None):
        wanted = [self.x, self.topk_weights, self.gate_up, self.down, *self.shared]
        grads = torch.autograd.grad(state, wanted, self.inputs.dy)
        if main_grads is not None:
            for target, grad in zip(self._targets(main_grads), grads[2:]):
                target.add_(grad)
        return grads

    def _targets(self, main: Weights) -> list[Tensor]:
        """main_grads in the layout of this system's gradients: the values don't matter here."""
        targets = [main.gate.as_strided(self.gate_up.shape, self.gate_up.stride())]
        targets.append(main.down.as_strided(self.down.shape, self.down.stride()))
        if self.shared:
            both = self.shared[0]
            targets.append(main.shared_gate.as_strided(both.shape, both.stride()))
            targets += [t for t in (main.shared_down, main.shared_score) if t is not None]
        return targets

    def output(self, state) -> Tensor:
        return state

    def results(self, state, grads) -> dict[str, Tensor]:
        named = {"y": state.detach()}
        if grads is None:
            return named
        named |= {"dx": grads[0], "dtopk_weights": grads[1]}
        both = self.unpack(grads[2])
        named |= {"dgate": both[:, 0], "dup": both[:, 1], "ddown": self.unpack_down(grads[3])}
        if self.shared:
            gate, up = grads[4].chunk(2)
            named |= {"dshared_gate": gate, "dshared_up": up, "dshared_down": grads[5]}
        if len(self.shared) == 3:
            named["dshared_score"] = grads[6]
        return named


def shared_expert(x: Tensor, gate_up: Tensor, down: Tensor, score: Tensor | None = None) -> Tensor:
    """[T, H]; gate_up [2Is, H], down [H, Is], score [H]."""
    gate, up = F.linear(x, gate_up).chunk(2, dim=-1)
    y = F.linear(F.silu(gate) * up, down)
    return y if score is None else torch.sigmoid(x @ score)[:, None] * y


def grouped_layer(x, ids, topk_weights, gate_up, down, *shared) -> Tensor:
    """The layer as torch offers it: sort, gather, two grouped GEMMs, a sum over slots in fp32.

    gate_up [E, 2I, H], down [E, H, I].
    """
    tokens, top_k = ids.shape
    flat = ids.flatten()
    order = flat.argsort()
    experts = torch.arange(down.shape[0], device=ids.device, dtype=flat.dtype)
    ends = torch.searchsorted(flat[order], experts, right=True).int()
    rows = x[order // top_k]
    gate, up = grouped_mm(rows, gate_up.transpose(1, 2), ends).chunk(2, dim=-1)
    out = grouped_mm(F.silu(gate) * up, down.transpose(1, 2), ends)
    place = torch.empty_like(order)
    place[order] = torch.arange(order.numel(), device=order.device)
    slots = out[place].view(tokens, top_k, -1)
    y = (slots * topk_weights[..., None]).sum(dim=1).to(x.dtype)
    return y + shared_expert(x, *shared) if shared else y


def grouped_mm(rows: Tensor, weights: Tensor, ends: Tensor) -> Tensor:
    call = getattr(F, "grouped_mm", None) or torch._grouped_mm
    return call(rows, weights, offs=ends)


class TorchEager(Autograd):
    """torch with grouped_mm, as it is."""

    name = "torch-eager"

    def __init__(self, inputs: Inputs):
        super().__init__(inputs)
        self.version = torch.__version__
        self._layer = grouped_layer

    def call(self) -> Tensor:
        return self._layer(
            self.x, self.inputs.ids, self.topk_weights, self.gate_up, self.down, *self.shared
        )


class TorchCompile(TorchEager):
    """The same, compiled for these sizes."""

    name = "torch-compile"

    def __init__(self, inputs: Inputs):
        super().__init__(inputs)
        torch._dynamo.reset()
        self._layer = torch.compile(grouped_layer, dynamic=False)


def main_grads(inputs: Inputs) -> Weights:
    """fp32 zeros, laid out as the weights."""
    case, device = inputs.case, inputs.x.device

    def zeros(*shape: int) -> Tensor:
        return torch.zeros(shape, dtype=torch.float32, device=device)

    both = zeros(case.experts, 2, case.intermediate, case.hidden)
    down = zeros(case.experts, case.hidden, case.intermediate)
    shared: list[Tensor | None] = [None] * 3
    if case.shared:
        shared = [*zeros(2, case.shared, case.hidden), zeros(case.hidden, case.shared)]
    score = zeros(case.hidden) if case.gated else None
    return Weights(both[:, 0], both[:, 1], down, *shared, score)


@contextlib.contextmanager
def closing(systems: list[System]):
    """Closes them all at the end."""
    try:
        yield systems
    finally:
        for system in systems:
            system.close()
