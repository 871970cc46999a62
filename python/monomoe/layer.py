"""The module: parameters and autograd round the three calls."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from . import ops
from .functional import (
    Config,
    Group,
    Shape,
    check_instance,
    check_tensor,
    default_group,
    explain,
    number,
    token_counts,
)


def _check_dtype(subject: str, dtype: torch.dtype) -> None:
    if dtype is not torch.bfloat16:
        raise TypeError(
            f"{subject}: torch.bfloat16 wanted, {dtype} given; keep fp32 copies in the optimizer, "
            "or give the parameters an fp32 main_grad"
        )


class MoELayer(nn.Module):
    """Mixture of SwiGLU experts with an optional shared expert; the router is the caller's.

    Parameters, bf16, initialised like torch.nn.Linear:
        gate_up         [E, 2, I, H]  gate and up projections of the routed experts
        down            [E, H, I]
        shared_gate_up  [2, Is, H]    None without a shared expert
        shared_down     [H, Is]
        shared_score    [H]           None without a sigmoid gate of the shared output

    A parameter with an attribute `main_grad` (fp32, its shape) gets its gradient added there, once
    and in fp32, and none from autograd. The attribute is looked up when backward runs; in a graph
    made by torch.compile, when forward does.

    Parameters stay bf16: what would convert them (`layer.float()`, `model.to(torch.float16)`) is
    refused. Gradients have no gradients: second derivatives are refused too.

    shared: width Is of the shared expert, 0 = none. score: gate its output by sigmoid(x . score).
    swiglu_limit: clamp gate <= limit and |up| <= limit. group: default one rank; a local group
    takes the tokens of all its ranks and holds the weights of all experts.
    """

    def __init__(
        self,
        hidden: int,
        intermediate: int,
        experts: int,
        top_k: int,
        shared: int = 0,
        score: bool = False,
        swiglu_limit: float | None = None,
        group: Group | None = None,
        config: Config | None = None,
        device=None,
        dtype: torch.dtype = torch.bfloat16,
    ):
        super().__init__()
        _check_dtype("dtype", dtype)
        # Refuses sizes that no call could use.
        explain(Shape(0, hidden, intermediate, experts, top_k, shared))
        if group is not None:
            check_instance("group", group, Group, "pass monomoe.Group() or Group.local(R)")
        if config is not None:
            check_instance("config", config, Config, "pass monomoe.Config(...)")
        if score and not shared:
            raise ValueError(
                "score: a shared expert wanted, shared=0 given; pass shared=Is or score=False"
            )
        self.hidden, self.intermediate, self.shared = hidden, intermediate, shared
        self.experts, self.top_k = experts, top_k
        self.swiglu_limit = None if swiglu_limit is None else number("swiglu_limit", swiglu_limit)
        self.group = default_group() if group is None else group
        self.config = Config() if config is None else config

        def parameter(*shape: int) -> nn.Parameter:
            return nn.Parameter(torch.empty(shape, device=device, dtype=dtype))

        self.gate_up = parameter(experts, 2, intermediate, hidden)
        self.down = parameter(experts, hidden, intermediate)
        self.shared_gate_up = parameter(2, shared, hidden) if shared else None
        self.shared_down = parameter(hidden, shared) if shared else None
        self.shared_score = parameter(hidden) if score else None
        self.reset_parameters()

    def _apply(self, fn, recurse=True):
        """What .to(), .float() and the like do to the parameters; looked at before it is done."""
        for parameter in self.parameters(recurse=False):
            like = torch.empty(0, dtype=parameter.dtype, device=parameter.device)
            _check_dtype("MoELayer.to", fn(like).dtype)
        return super()._apply(fn, recurse)

    def reset_parameters(self) -> None:
        """Uniform in +-1/sqrt(inputs), as torch.nn.Linear does it."""
        for parameter in self.parameters(recurse=False):
            bound = 1 / math.sqrt(parameter.shape[-1])
            nn.init.uniform_(parameter, -bound, bound)

    def forward(
        self,
        x: Tensor,
        topk_ids: Tensor,
        topk_weights: Tensor,
        tokens_per_rank: Sequence[int] | None = None,
    ) -> Tensor:
        """x [T, H] bf16, topk_ids [T, K] int32 or int64, topk_weights [T, K] fp32 -> y [T, H] bf16.

        Errors: as `monomoe.schedule` and `monomoe.forward`.
        """
        for subject, value in (("x", x), ("topk_ids", topk_ids), ("topk_weights", topk_weights)):
            check_tensor(subject, value)
        if x.dim() == 2 and x.shape[1] != self.hidden:
            raise ValueError(
                f"x: [T, {self.hidden}] wanted, {list(x.shape)} given; "
                f"make the layer with hidden={x.shape[1]} or project x"
            )
        if topk_ids.dim() == 2 and x.dim() == 2 and topk_ids.shape[0] != x.shape[0]:
            raise ValueError(
                f"topk_ids: [{x.shape[0]}, {self.top_k}] wanted, {list(topk_ids.shape)} given; "
                "pass one row of ids for each row of x"
            )
        if topk_ids.dim() == 2 and topk_ids.shape[1] != self.top_k:
            raise ValueError(
                f"topk_ids: [T, {self.top_k}] wanted, {list(topk_ids.shape)} given; "
                f"pass the router's {self.top_k} choices a token or make the layer with "
                f"top_k={topk_ids.shape[1]}"
            )
        if topk_ids.dim() == 2 and topk_weights.shape != topk_ids.shape:
            raise ValueError(
                f"topk_weights: {list(topk_ids.shape)} as topk_ids wanted, "
                f"{list(topk_weights.shape)} given; pass one weight for each id"
            )
        params = (
            self.gate_up,
            self.down,
            self.shared_gate_up,
            self.shared_down,
            self.shared_score,
        )
        handle = self.group.handle
        split = tokens_per_rank
        if split is not None:  # (in a graph that is compiled the counts may be symbols)
            split = list(split) if torch.compiler.is_compiling() else token_counts(split)
        tables = torch.ops.monomoe.schedule(topk_ids, handle, self.experts, split)
        learns = torch.is_grad_enabled() and any(
            t is not None and t.requires_grad for t in (x, topk_weights, *params)
        )
        if learns:
            return ops.apply(
                x, topk_weights, params, tables, self.group, split, self.config.pack(),
                self.swiglu_limit,
            )  # fmt: skip
        config = dataclasses.replace(self.config, save="none", save_rows=None)
        y, _ = torch.ops.monomoe.forward(
            x, topk_weights, *params, tables, handle, split, config.pack(), self.swiglu_limit
        )
        return y

    def extra_repr(self) -> str:
        return (
            f"hidden={self.hidden}, intermediate={self.intermediate}, experts={self.experts}, "
            f"top_k={self.top_k}, shared={self.shared}, score={self.shared_score is not None}, "
            f"swiglu_limit={self.swiglu_limit}, group={self.group!r}"
        )
