"""torch custom ops with fakes, and the autograd function that calls them.

The ops are functional, except that `backward_accumulate` writes the main_grads it is given. They
don't check anything: the library does. The group is a tensor that holds the group's id, so one
compiled graph serves every group; sizes that follow from the group are unbacked in the fakes.

    schedule            ids [T, K] -> tables [?] int32
    forward             x [T, H], topk_weights [T, K], weights -> y [T, H], saved [?] uint8
    backward            dy [T, H] and the above -> the gradients that are needed, in order
    backward_accumulate the same, but weight gradients are added to fp32 main_grads

`gate_up` [E, 2, I, H] and `shared_gate_up` [2, Is, H] are whole parameters: views of one parameter
would cost two full gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from .functional import (
    Grads,
    Group,
    Weights,
    launch_backward,
    launch_forward,
    native,
    new_saved,
    new_tables,
    size,
)

NUM_PARAMS = 5  # gate_up, down, shared_gate_up, shared_down, shared_score
_WEIGHT_GRAD_F32 = 1  # the last integer of a packed Config
_ROW_BYTES = 16  # alignment of rows


def _weights(
    gate_up: Tensor | None,
    down: Tensor | None,
    shared_gate_up: Tensor | None,
    shared_down: Tensor | None,
    shared_score: Tensor | None,
) -> Weights:
    """The library's view of the parameters, or of their gradients."""
    return Weights(
        gate=None if gate_up is None else gate_up[:, 0],
        up=None if gate_up is None else gate_up[:, 1],
        down=down,
        shared_gate=None if shared_gate_up is None else shared_gate_up[0],
        shared_up=None if shared_gate_up is None else shared_gate_up[1],
        shared_down=shared_down,
        shared_score=shared_score,
    )


def _route(tables: Tensor, group_id: int, routes: Tensor, experts: int, split) -> tuple:
    """What the library calls a schedule. routes [T, K]: ids or router weights."""
    tokens, top_k = size(routes, 0), size(routes, 1)
    if split is None:
        split = native().split_tokens(tokens, native().group_ranks(group_id))
    return tables, experts, top_k, split


def _taken_as_is(dy: Tensor) -> bool:
    """Whether the library reads dy where it lies. autograd may hand over expanded tensors."""
    if dy.numel() == 0:
        return True
    row_bytes = dy.stride(0) * dy.element_size()
    aligned = row_bytes % _ROW_BYTES == 0 and dy.data_ptr() % _ROW_BYTES == 0
    return aligned and dy.stride(1) == 1 and dy.stride(0) >= dy.shape[1]


# ----------------------------------------------------------------------------------------- ops
#
# Defined by schema and not by torch.library.custom_op, whose first call imports the compiler: that
# takes seconds.

_library = torch.library.Library("monomoe", "DEF")
_INPUTS = "Tensor x, Tensor topk_weights"
_PARAMS = (
    "Tensor gate_up, Tensor down, Tensor? shared_gate_up, Tensor? shared_down, Tensor? shared_score"
)
_OPTIONS = "Tensor group, SymInt[]? tokens_per_rank, int[] config, float? swiglu_limit"


def _define(name: str, schema: str, run: Callable, fake: Callable) -> None:
    """An op for every device, and its fake."""
    _library.define(f"{name}{schema}", tags=(torch.Tag.pt2_compliant_tag,))
    _library.impl(name, run, "CompositeExplicitAutograd")
    torch.library.register_fake(f"monomoe::{name}", fake, lib=_library)


def _schedule(topk_ids, group, experts, tokens_per_rank):
    group_id = int(group)
    tables = new_tables(group_id, topk_ids, experts)
    route = _route(tables, group_id, topk_ids, experts, tokens_per_rank)
    native().schedule(group_id, topk_ids, *route)
    return tables


def _schedule_fake(topk_ids, group, experts, tokens_per_rank):
    words = torch.library.get_ctx().new_dynamic_size()
    return topk_ids.new_empty(words, dtype=torch.int32)


_define(
    "schedule",
    "(Tensor topk_ids, Tensor group, int experts, SymInt[]? tokens_per_rank) -> Tensor",
    _schedule,
    _schedule_fake,
)


def _forward(x, topk_weights, gate_up, down, shared_gate_up, shared_down, shared_score, tables,
             group, tokens_per_rank, config, swiglu_limit):  # fmt: skip
    group_id = int(group)
    weights = _weights(gate_up, down, shared_gate_up, shared_down, shared_score)
    route = _route(tables, group_id, topk_weights, gate_up.shape[0], tokens_per_rank)
    y = torch.empty(x.shape, dtype=torch.bfloat16, device=x.device)
    saved = new_saved(group_id, native().group_ranks(group_id), x, topk_weights, weights, config)
    launch_forward(group_id, x, topk_weights, weights, route, config, swiglu_limit, y, saved)
    return y, saved


def _forward_fake(x, *_):
    num_bytes = torch.library.get_ctx().new_dynamic_size()
    y = x.new_empty(x.shape, dtype=torch.bfloat16)
    return y, x.new_empty(num_bytes, dtype=torch.uint8)


_define(
    "forward",
    f"({_INPUTS}, {_PARAMS}, Tensor tables, {_OPTIONS}) -> (Tensor, Tensor)",
    _forward,
    _forward_fake,
)


def _backward(dy, x, topk_weights, gate_up, down, shared_gate_up, shared_down, shared_score, tables,
              saved, group, tokens_per_rank, config, swiglu_limit, needs):  # fmt: skip
    params = (gate_up, down, shared_gate_up, shared_down, shared_score)
    outputs = _new_gradients((x, topk_weights, *params), config, needs)
    _run_backward(dy, x, topk_weights, params, tables, saved, group, tokens_per_rank, config,
                  swiglu_limit, outputs[0], outputs[1], outputs[2:], False)  # fmt: skip
    return [g for g in outputs if g is not None]


def _backward_fake(dy, x, topk_weights, gate_up, down, shared_gate_up, shared_down, shared_score,
                   tables, saved, group, tokens_per_rank, config, swiglu_limit, needs):  # fmt: skip
    inputs = (x, topk_weights, gate_up, down, shared_gate_up, shared_down, shared_score)
    return [g for g in _new_gradients(inputs, config, needs) if g is not None]


def _new_gradients(inputs, config, needs) -> list[Tensor | None]:
    """Memory for the gradients that are needed, None for the others."""
    weight_dtype = torch.float32 if config[-1] == _WEIGHT_GRAD_F32 else torch.bfloat16
    dtypes = (torch.bfloat16, torch.float32, *(weight_dtype,) * NUM_PARAMS)
    return [
        torch.empty(like.shape, dtype=dtype, device=like.device)
        if need and like is not None
        else None
        for like, dtype, need in zip(inputs, dtypes, needs)
    ]


_define(
    "backward",
    f"(Tensor dy, {_INPUTS}, {_PARAMS}, Tensor tables, Tensor saved, {_OPTIONS}, bool[] needs)"
    " -> Tensor[]",
    _backward,
    _backward_fake,
)


def _backward_accumulate(dy, x, topk_weights, gate_up, down, shared_gate_up, shared_down,
                         shared_score, tables, saved, group, tokens_per_rank, config, swiglu_limit,
                         main_grads, needs):  # fmt: skip
    targets = iter(main_grads)
    dx, dtopk_weights = _input_gradients(x, topk_weights, needs)
    _run_backward(
        dy, x, topk_weights, (gate_up, down, shared_gate_up, shared_down, shared_score), tables,
        saved, group, tokens_per_rank, config, swiglu_limit, dx if needs[0] else None,
        dtopk_weights if needs[1] else None,
        [next(targets) if need else None for need in needs[2:]], True,
    )  # fmt: skip
    return dx, dtopk_weights


def _backward_accumulate_fake(dy, x, topk_weights, *rest):
    return _input_gradients(x, topk_weights, rest[-1])


def _input_gradients(x: Tensor, topk_weights: Tensor, needs) -> tuple[Tensor, Tensor]:
    """Memory for dx and the router gradient; no elements where not needed."""
    dx = x.new_empty(x.shape if needs[0] else (0,), dtype=torch.bfloat16)
    dtopk_weights = topk_weights.new_empty(
        topk_weights.shape if needs[1] else (0,), dtype=torch.float32
    )
    return dx, dtopk_weights


# main_grads: fp32, of the parameters that need a gradient, in order.
_define(
    "backward_accumulate",
    f"(Tensor dy, {_INPUTS}, {_PARAMS}, Tensor tables, Tensor saved, {_OPTIONS}, "
    "Tensor(a!)[] main_grads, bool[] needs) -> (Tensor, Tensor)",
    _backward_accumulate,
    _backward_accumulate_fake,
)


def _run_backward(dy, x, topk_weights, params, tables, saved, group, tokens_per_rank, config,
                  swiglu_limit, dx, dtopk_weights, param_grads, accumulate):  # fmt: skip
    group_id = int(group)
    if not _taken_as_is(dy):
        dy = dy.clone(memory_format=torch.contiguous_format)
    route = _route(tables, group_id, topk_weights, params[0].shape[0], tokens_per_rank)
    grads = Grads(dx, dtopk_weights, _weights(*param_grads))
    launch_backward(group_id, dy, x, topk_weights, _weights(*params), route, config, swiglu_limit,
                    saved, grads, accumulate)  # fmt: skip


# ------------------------------------------------------------------------------------- autograd


class _MoE(torch.autograd.Function):
    """y and saved. `saved` is an output only because compiled graphs need it to be one."""

    @staticmethod
    def forward(ctx, x, topk_weights, gate_up, down, shared_gate_up, shared_down, shared_score,
                tables, handle, tokens_per_rank, config, swiglu_limit, main_grads,
                group):  # fmt: skip
        params = (gate_up, down, shared_gate_up, shared_down, shared_score)
        y, saved = torch.ops.monomoe.forward(
            x, topk_weights, *params, tables, handle, tokens_per_rank, config, swiglu_limit
        )
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(saved)
        ctx.save_for_backward(x, topk_weights, *params, tables, saved, handle)
        ctx.options = (tokens_per_rank, config, swiglu_limit)
        ctx.main_grads = main_grads
        ctx.group = group  # lives as long as the graph
        return y, saved

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, dy, _):
        num_inputs = 2 + NUM_PARAMS
        rest = (None,) * 7
        if dy is None:
            return (None,) * num_inputs + rest
        tensors, needs = ctx.saved_tensors, list(ctx.needs_input_grad[:num_inputs])
        if any(m is not None and n for m, n in zip(ctx.main_grads, needs[2:])):
            return _accumulating_backward(ctx, dy, tensors, needs) + rest
        made = iter(torch.ops.monomoe.backward(dy, *tensors, *ctx.options, needs))
        return tuple(next(made) if need else None for need in needs) + rest


def _accumulating_backward(ctx, dy, tensors, needs) -> tuple:
    """Gradients where at least one parameter has a main_grad. A parameter without one gets the sum
    with fp32 zeros, which autograd rounds to its dtype: once, as everywhere."""
    params = tensors[2 : 2 + NUM_PARAMS]
    targets = [
        None if not need else torch.zeros_like(p, dtype=torch.float32) if main is None else main
        for p, need, main in zip(params, needs[2:], ctx.main_grads)
    ]
    dx, dtopk_weights = torch.ops.monomoe.backward_accumulate(
        dy, *tensors, *ctx.options, [t for t in targets if t is not None], needs
    )
    returned = [
        t.to(p.dtype) if t is not None and main is None else None
        for p, t, main in zip(params, targets, ctx.main_grads)
    ]
    return (dx if needs[0] else None, dtopk_weights if needs[1] else None, *returned)


def apply(
    x: Tensor,
    topk_weights: Tensor,
    params: Sequence[Tensor | None],
    tables: Tensor,
    group: Group,
    tokens_per_rank: Sequence[int] | None,
    config: Sequence[int],
    swiglu_limit: float | None,
) -> Tensor:
    """y [T, H] with autograd. params: the NUM_PARAMS parameters, None without a shared expert.

    A parameter with an attribute `main_grad` (fp32, its shape) gets its gradient added there and
    none from autograd.
    """
    main_grads = tuple(getattr(p, "main_grad", None) for p in params)
    y, _ = _MoE.apply(
        x, topk_weights, *params, tables, group.handle, tokens_per_rank, config, swiglu_limit,
        main_grads, group,
    )  # fmt: skip
    return y
