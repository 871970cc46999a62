"""Packages that others made, called as their authors mean them to be called. None is required.

They take the routed experts only; a shared expert is torch's, as in a model that uses them.
"""

from __future__ import annotations

import importlib.metadata

import torch
from torch import Tensor

from .cases import Inputs
from .systems import Autograd, Unavailable, shared_expert


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


class SonicMoE(Autograd):
    """SonicMoE (CuTe DSL) for K routes a token: its layer behind its router. It tunes its GEMMs and
    sums for these sizes at the first call."""

    name = "sonicmoe"

    def __init__(self, inputs: Inputs):
        try:
            from sonicmoe import functional
            from sonicmoe.enums import ActivationType
        except Exception as error:  # the compiler of kernels it brings may fail in many ways
            raise Unavailable(f"{type(error).__name__}: {error}") from None
        if inputs.x.device.type != "cuda":
            raise Unavailable("a GPU wanted, the CPU given")
        super().__init__(inputs)
        self.version = _version("sonic-moe")
        self._sonic, self._swiglu = functional, ActivationType.SWIGLU

    def pack(self, gate_up: Tensor) -> Tensor:
        """[2I, H, E] over memory [E, 2I, H], gate and up rows in turn."""
        experts, both, hidden = gate_up.shape
        turns = gate_up.view(experts, 2, both // 2, hidden).transpose(1, 2)
        return turns.reshape(experts, both, hidden).permute(1, 2, 0)

    def unpack(self, gate_up: Tensor) -> Tensor:
        both, hidden, experts = gate_up.shape
        turns = gate_up.permute(2, 0, 1).reshape(experts, both // 2, 2, hidden)
        return turns.transpose(1, 2)

    def pack_down(self, down: Tensor) -> Tensor:
        return down.detach().permute(1, 2, 0)  # [H, I, E]

    def unpack_down(self, down: Tensor) -> Tensor:
        return down.permute(2, 0, 1)

    def call(self) -> Tensor:
        sonic, case, ids = self._sonic, self.inputs.case, self.inputs.ids
        tokens, top_k, rows = case.tokens, case.top_k, case.rows

        def table(length: int) -> Tensor:
            return torch.empty(length, dtype=torch.int32, device=ids.device)

        counts, starts = table(case.experts), table(case.experts + 1)
        token_of, slot_of, row_of = table(rows), table(rows), table(rows)
        sonic.TC_topk_router_metadata_triton(
            ids, case.experts, counts, starts, token_of, slot_of, row_of
        )
        a, h = sonic._UpProjection.apply(
            self.x, self.gate_up, None, starts, rows, top_k, token_of, slot_of, row_of, None, False,
            self._swiglu, False, False,
        )  # fmt: skip
        y = sonic._DownProjection.apply(
            a, h, self.down, None, self.topk_weights, starts, tokens, top_k, token_of, slot_of,
            row_of, None, False, self._swiglu,
        )  # fmt: skip
        return y + shared_expert(self.x, *self.shared) if self.shared else y


class Liger(Autograd):
    """Liger-Kernel's fused MoE (Triton). Its tuner takes one to three minutes for new sizes."""

    name = "liger"

    def __init__(self, inputs: Inputs):
        try:
            from liger_kernel.ops.fused_moe import LigerFusedMoEFunction
        except Exception as error:
            raise Unavailable(f"{type(error).__name__}: {error}") from None
        if inputs.x.device.type != "cuda":
            raise Unavailable("a GPU wanted, the CPU given")
        super().__init__(inputs)
        self.version = _version("liger-kernel")
        self._function = LigerFusedMoEFunction

    def call(self) -> Tensor:
        y = self._function.apply(
            self.x, self.gate_up, self.down, self.inputs.ids, self.topk_weights
        )
        return y + shared_expert(self.x, *self.shared) if self.shared else y
