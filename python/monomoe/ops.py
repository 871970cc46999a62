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

import functools
import re
import sys
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from .functional import (
    Grads,
    Group,
    Weights,
    check_tensor,
    launch_backward,
    launch_forward,
    native,
    new_saved,
    new_tables,
    size,
)

PARAMS = ("gate_up", "down", "shared_gate_up", "shared_down", "shared_score")
NUM_PARAMS = len(PARAMS)
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


def _untraced(run: Callable) -> Callable:
    """torch.compile traces whatever Python runs below a graph that it could not make whole. Not
    this. (torch's own decorator for that imports the compiler at the first call.)"""
    disabled = None

    @functools.wraps(run)
    def call(*args):
        nonlocal disabled
        if "torch._dynamo" not in sys.modules:
            return run(*args)
        if disabled is None:
            disabled = torch.compiler.disable(run)
        return disabled(*args)

    return call


def _define(name: str, schema: str, run: Callable, fake: Callable) -> None:
    """An op for every device, and its fake."""
    _library.define(f"{name}{schema}", tags=(torch.Tag.pt2_compliant_tag,))
    _library.impl(name, _untraced(run), "CompositeExplicitAutograd")
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
    params = (gate_up, down, shared_gate_up, shared_down, shared_score)
    given = iter(main_grads)
    targets = [next(given) if need else None for need in needs[2:]]
    for name, param, target in zip(PARAMS, params, targets):
        if target is not None and target.shape != param.shape:  # before views of it are taken
            raise ValueError(
                f"{name}.main_grad: shape {list(param.shape)} of its parameter wanted, "
                f"{list(target.shape)} given; make it with torch.zeros(parameter.shape)"
            )
    dx, dtopk_weights = _input_gradients(x, topk_weights, needs)
    try:
        _run_backward(dy, x, topk_weights, params, tables, saved, group, tokens_per_rank, config,
                      swiglu_limit, dx if needs[0] else None, dtopk_weights if needs[1] else None,
                      targets, True)  # fmt: skip
    except (TypeError, ValueError) as error:
        raise type(error)(_in_the_layers_words(str(error))) from None
    return dx, dtopk_weights


def _in_the_layers_words(sentence: str) -> str:
    """The library calls main_grads `accumulate.gate`, who sets them `gate_up.main_grad`."""

    def rename(found: re.Match) -> str:
        name = found[1]
        both = name.removesuffix("gate").removesuffix("up") + "gate_up"
        return f"{name if name in PARAMS else both}.main_grad"

    return re.sub(r"\baccumulate\.(\w+)", rename, sentence)


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
    """y and saved. `saved` is an output only because compiled graphs need it to be one.

    Where a graph is compiled, which can't ask the parameters for their main_grads when backward
    runs, main_grads has one entry for each; else it is None."""

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
        if main_grads is None:
            ctx.params = params  # what a checkpoint makes of saved tensors has no attributes
        ctx.group = group  # lives as long as the graph
        return y, saved

    @staticmethod
    def backward(ctx, dy, _):
        num_inputs = 2 + NUM_PARAMS
        rest = (None,) * 7
        if dy is None:
            return (None,) * num_inputs + rest
        tensors, needs = ctx.saved_tensors, list(ctx.needs_input_grad[:num_inputs])
        with torch.no_grad():
            made = _gradients(ctx, dy, tensors, needs)
        if torch.is_grad_enabled() and not torch.compiler.is_compiling():  # create_graph
            made = tuple(None if g is None else _FirstOrder.apply(_leaf(g)) for g in made)
        return made + rest


def _gradients(ctx, dy, tensors, needs) -> tuple:
    """Gradients of x, topk_weights and the parameters; None where not needed or added elsewhere."""
    main_grads = main_grads_of(ctx.params) if ctx.main_grads is None else ctx.main_grads
    if any(m is not None and n for m, n in zip(main_grads, needs[2:])):
        return _accumulating_backward(ctx, dy, tensors, needs, main_grads)
    made = iter(torch.ops.monomoe.backward(dy, *tensors, *ctx.options, needs))
    return tuple(next(made) if need else None for need in needs)


def _leaf(gradient: Tensor) -> Tensor:
    return gradient.detach().requires_grad_()


class _FirstOrder(torch.autograd.Function):
    """A gradient that says what it is if somebody wants the gradient of it."""

    @staticmethod
    def forward(ctx, gradient):
        return gradient.view_as(gradient)

    @staticmethod
    def backward(ctx, _):
        raise RuntimeError(
            "gradients of the layer: first derivatives wanted, a second one asked for; call "
            "detach() on the gradients or leave out create_graph=True"
        )


def _accumulating_backward(ctx, dy, tensors, needs, main_grads) -> tuple:
    """Gradients where at least one parameter has a main_grad. A parameter without one gets the sum
    with fp32 zeros, which autograd rounds to its dtype: once, as everywhere."""
    params = tensors[2 : 2 + NUM_PARAMS]
    targets = [
        None if not need else torch.zeros_like(p, dtype=torch.float32) if main is None else main
        for p, need, main in zip(params, needs[2:], main_grads)
    ]
    dx, dtopk_weights = torch.ops.monomoe.backward_accumulate(
        dy, *tensors, *ctx.options, [t for t in targets if t is not None], needs
    )
    returned = [
        t.to(p.dtype) if t is not None and main is None else None
        for p, t, main in zip(params, targets, main_grads)
    ]
    return (dx if needs[0] else None, dtopk_weights if needs[1] else None, *returned)


def main_grads_of(params: Sequence[Tensor | None]) -> tuple[Tensor | None, ...]:
    """The parameters' main_grads. Errors: TypeError for what is no tensor."""
    found = tuple(getattr(p, "main_grad", None) for p in params)
    for name, main_grad in zip(PARAMS, found):
        if main_grad is not None:
            check_tensor(f"{name}.main_grad", main_grad)
    return found


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

    A parameter that has an attribute `main_grad` (fp32, its shape) when backward runs gets its
    gradient added there and none from autograd. Compiled graphs look for it in forward.
    """
    main_grads = main_grads_of(params) if torch.compiler.is_compiling() else None
    y, _ = _MoE.apply(
        x, topk_weights, *params, tables, group.handle, tokens_per_rank, config, swiglu_limit,
        main_grads, group,
    )  # fmt: skip
    return y
