"""The three calls: schedule once, then forward and backward. Everything else is built on them.

Shapes: T tokens, H hidden, I intermediate, Is intermediate of the shared expert, E experts,
K top-k, R ranks. A local group takes whole tensors: the tokens of all ranks in rank order, and the
weights of all experts. All work goes to the caller's current stream, and no call synchronises the
host.

Every refusal reads `subject: wanted, given; remedy`. The library checks shapes, dtypes, strides,
devices and numbers (ValueError, TypeError, RuntimeError) before anything is written; this file
checks only what the library can't see, such as an argument that is no tensor.
"""

from __future__ import annotations

import functools
import json
import math
import operator
import os
import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

import torch
from torch import Tensor

_WAITING = ("schedule", "forward", "backward", "group_close")  # these release the GIL
_NOT_GIVEN = -(2**63)  # an option left to the policy; bind.cpp has the same value
_LARGEST = 2**63 - 1
_MAX_DIMS = 4
_NO_GROUP = -1  # no group has this id
_SAVE = {"all": 0, "preact": 1, "none": 2}
_WEIGHT_GRAD = {"bf16": 0, "fp32": 1}
_GRAD_DTYPE = {"bf16": torch.bfloat16, "fp32": torch.float32}


@functools.cache
def native():
    """The compiled library (a tvm_ffi.Module). Errors: ImportError where it was not built."""
    path = Path(__file__).with_name("_monomoe.so")
    if not path.exists():
        raise ImportError(
            f"monomoe: the compiled library wanted, {path} not found; build it with `pip install .`"
        )
    import tvm_ffi

    module = tvm_ffi.load_module(path)
    for name in _WAITING:
        getattr(module, name).release_gil = True
    return module


# ------------------------------------------------------------------------------------- refusals


def check_tensor(subject: str, value) -> None:
    """Refuses what has no memory the library could look at."""
    if not isinstance(value, Tensor):
        raise TypeError(
            f"{subject}: torch.Tensor wanted, {type(value).__name__} given; "
            "pass torch.as_tensor(...) of it"
        )
    if value.layout is not torch.strided:
        raise TypeError(
            f"{subject}: a strided tensor wanted, {value.layout} given; pass {subject}.to_dense()"
        )
    if value.is_nested or value.is_quantized:
        kind = "nested" if value.is_nested else "quantized"
        raise TypeError(
            f"{subject}: a tensor of plain values wanted, a {kind} one given; "
            "pass its padded or dequantized tensor"
        )
    if value.device.type not in ("cpu", "cuda"):
        raise TypeError(
            f"{subject}: a tensor on a CPU or CUDA device wanted, {value.device} given; "
            "move it there with .to(device)"
        )
    # (A compiled graph resolves such views itself and can't ask.)
    if not torch.compiler.is_compiling() and (value.is_neg() or value.is_conj()):
        raise ValueError(
            f"{subject}: values in memory wanted, a lazily negated view given; "
            f"pass {subject}.resolve_neg().resolve_conj()"
        )
    if value.dim() > _MAX_DIMS:
        raise ValueError(
            f"{subject}: at most {_MAX_DIMS} dimensions wanted, {value.dim()} given; reshape it"
        )


def whole(subject: str, value) -> int:
    """An integer that the library can take; it knows itself which ones are legal."""
    try:
        index = operator.index(value)
    except TypeError:
        raise TypeError(
            f"{subject}: an integer wanted, {type(value).__name__} given; pass int(...) of it"
        ) from None
    if abs(index) > _LARGEST:
        raise ValueError(
            f"{subject}: an integer of 64 bits wanted, {index} given; pass a smaller one"
        )
    return index


def token_counts(value) -> list[int]:
    """tokens_per_rank as integers; the library knows whether they fit."""
    try:
        counts = list(value)
    except TypeError:
        raise TypeError(
            f"tokens_per_rank: a sequence of integers wanted, {type(value).__name__} given; "
            "pass one count for each rank"
        ) from None
    return [whole("tokens_per_rank", count) for count in counts]


def number(subject: str, value) -> float:
    if isinstance(value, (int, float)):
        try:
            return float(value)
        except OverflowError:
            return math.inf if value > 0 else -math.inf
    raise TypeError(
        f"{subject}: a number wanted, {type(value).__name__} given; pass float(...) of it"
    )


def _choice(subject: str, value, legal: Iterable[str]) -> str:
    legal = tuple(legal)
    if value not in legal:
        names = ", ".join(repr(name) for name in legal)
        raise ValueError(f"{subject}: one of {names} wanted, {value!r} given; pass one of them")
    return value


def check_instance(subject: str, value, wanted: type, remedy: str) -> None:
    if not isinstance(value, wanted):
        raise TypeError(
            f"{subject}: monomoe.{wanted.__name__} wanted, {type(value).__name__} given; {remedy}"
        )


# ---------------------------------------------------------------------------------------- values


class Group:
    """The ranks of an expert-parallel layer and the memory they share.

    `Group()` has one rank. `Group.local(R)` has R virtual ranks in this process: one object, and
    one call drives all of them. `timeout_s` is the budget of every wait, in seconds. Calls on one
    group are serialised. Use as a context manager, or call `close()`; garbage collection closes it
    too.
    """

    def __init__(self, *, timeout_s: float = 600.0):
        self._open(1, timeout_s)

    @classmethod
    def local(cls, ranks: int, timeout_s: float = 600.0) -> Group:
        """R virtual ranks in this process. Errors: ValueError for ranks < 1 or a bad timeout."""
        group = cls.__new__(cls)
        group._open(ranks, timeout_s)
        return group

    def _open(self, ranks: int, timeout_s: float) -> None:
        self.ranks = whole("ranks", ranks)
        self.timeout_s = number("timeout_s", timeout_s)
        self.id = native().group_local(self.ranks, self.timeout_s)
        # What compiled graphs get: its value may change without a recompilation.
        self.handle = torch.tensor(self.id, dtype=torch.int64)  # [] int64 on the CPU
        self._finalizer = weakref.finalize(self, native().group_close, self.id)
        _living.add(self)

    @property
    def closed(self) -> bool:
        return not self._finalizer.alive

    def check(self) -> None:
        """Raises (RuntimeError) what an earlier call reported, and if the group is closed."""
        native().group_check(self.id)

    def close(self) -> None:
        """Frees the shared memory. Later calls with this group are refused. Twice is fine."""
        self._finalizer()

    def __enter__(self) -> Group:
        return self

    def __exit__(self, *_) -> None:
        self.close()

    def __deepcopy__(self, memo) -> Group:
        return self  # a copied layer shares its group

    def __reduce__(self):
        raise TypeError(
            "group: something other than a group to pickle wanted, a group of this process given; "
            "save state_dict() of the layer and make the group anew"
        )

    def __repr__(self) -> str:
        state = ", closed" if self.closed else ""
        return f"Group(id={self.id}, ranks={self.ranks}{state})"


_living: weakref.WeakSet[Group] = weakref.WeakSet()


def _forget_groups() -> None:
    """In a forked child: another thread of the parent may have held a group's lock, so the child
    touches none of the parent's groups. They count as closed."""
    for group in list(_living):
        group._finalizer.detach()
        group.id = _NO_GROUP
        group.handle.fill_(_NO_GROUP)
    default_group.cache_clear()


os.register_at_fork(after_in_child=_forget_groups)


@functools.cache
def default_group() -> Group:
    """The one-rank group used where no group is given; it lives as long as the process."""
    return Group()


@dataclass(frozen=True)
class Config:
    """Options of one forward / backward pair. None means: chosen by policy (see `explain`).

    Every option leaves the bits of the results unchanged, except `weight_grad`, which chooses the
    type they are rounded to. On a GPU workers are thread blocks and work in pairs: `workers` is
    rounded down to pairs, at least one; workers that only move rows are rounded up to pairs.
    """

    fwd_comm_sms: int | None = None  # workers that only move rows in forward; >= 0
    bwd_comm_sms: int | None = None  # the same in backward; >= 0
    minibatch_rows: int | None = None  # rows of an expert ordered as one piece; >= 128
    ring_rows: int | None = None  # rows of the token ring; >= 256
    save: str = "preact"  # "all": x and pre-activations, "preact", or "none": recomputed
    save_rows: int | None = None  # rows kept for backward, the others are recomputed; >= 0
    workers: int | None = None  # persistent workers a rank (CPU: threads a call); >= 1
    weight_grad: str = "bf16"  # or "fp32": type of written weight gradients

    def pack(self) -> list[int]:
        """The eight integers that the library reads, in the order of bind.cpp."""
        _choice("config.save", self.save, _SAVE)
        _choice("config.weight_grad", self.weight_grad, _WEIGHT_GRAD)
        names = (
            "fwd_comm_sms", "bwd_comm_sms", "workers", "minibatch_rows", "ring_rows", "save_rows"
        )  # fmt: skip
        packed = []
        for name in names:
            value = getattr(self, name)
            packed.append(_NOT_GIVEN if value is None else whole(f"config.{name}", value))
        return packed + [_SAVE[self.save], _WEIGHT_GRAD[self.weight_grad]]


@dataclass(frozen=True)
class Shape:
    """The sizes of a layer, for `explain`."""

    tokens: int  # T, of all ranks of this process
    hidden: int  # H
    intermediate: int  # I
    experts: int  # E
    top_k: int  # K
    shared: int = 0  # Is, 0 = no shared expert
    ranks: int = 1  # R

    def pack(self) -> list[int]:
        """The seven integers that the library reads, in the order of bind.cpp."""
        return [whole(f"shape.{f.name}", getattr(self, f.name)) for f in fields(self)]


@dataclass(frozen=True)
class Weights:
    """Weights of a layer, or their gradients. Shared tensors are None without a shared expert."""

    gate: Tensor | None  # [E, I, H] bf16; gate and up may be two views of one [E, 2, I, H]
    up: Tensor | None  # [E, I, H] bf16
    down: Tensor | None  # [E, H, I] bf16
    shared_gate: Tensor | None = None  # [Is, H] bf16
    shared_up: Tensor | None = None  # [Is, H] bf16
    shared_down: Tensor | None = None  # [H, Is] bf16
    shared_score: Tensor | None = None  # [H] bf16: sigmoid gate of the shared output

    @classmethod
    def names(cls) -> tuple[str, ...]:
        return tuple(f.name for f in fields(cls))

    def tensors(self) -> tuple[Tensor | None, ...]:
        """The seven tensors in the order of the fields."""
        return tuple(getattr(self, name) for name in self.names())

    def map(self, function: Callable[[Tensor], Tensor]) -> Weights:
        """`function` of every tensor that is given."""
        return Weights(*(None if t is None else function(t) for t in self.tensors()))


@dataclass(frozen=True)
class Schedule:
    """What `schedule` made of the ids: valid for every forward and backward of any layer with the
    same group, T, E and K."""

    topk_ids: Tensor  # [T, K] as given
    tables: Tensor  # opaque, int32, on the device of the ids
    experts: int
    top_k: int
    tokens_per_rank: tuple[int, ...]
    group: Group


@dataclass(frozen=True)
class Context:
    """What backward needs of one forward. Read-only: backward twice gives the same bits twice."""

    x: Tensor
    topk_weights: Tensor
    weights: Weights
    schedule: Schedule
    config: Config
    swiglu_limit: float | None
    saved: Tensor  # opaque, uint8


@dataclass(frozen=True)
class Grads:
    """Gradients of one backward."""

    x: Tensor  # [T, H] bf16
    topk_weights: Tensor  # [T, K] fp32; 0 where the id is -1
    weights: Weights  # bf16 or fp32 (config.weight_grad), or the accumulate argument


# ------------------------------------------------------------------- launches with given outputs
#
# The one place where arguments are put in the order of bind.cpp. Outputs are the caller's, so that
# tests can fill them beforehand; autograd's ops come here too, with the group's id only.


def _checked_weights(subject: str, weights: Weights) -> tuple[Tensor | None, ...]:
    for name, tensor in zip(Weights.names(), weights.tensors()):
        if tensor is not None:
            check_tensor(f"{subject}.{name}", tensor)
    return weights.tensors()


def launch_forward(
    group_id: int,
    x: Tensor,
    topk_weights: Tensor,
    weights: Weights,
    route: tuple,  # tables, experts, top_k, tokens_per_rank
    config: Sequence[int],
    swiglu_limit: float | None,
    y: Tensor,
    saved: Tensor,
) -> None:
    """Writes y [T, H] bf16 and saved. Errors: as `forward`."""
    check_tensor("x", x)
    check_tensor("topk_weights", topk_weights)
    limit = None if swiglu_limit is None else number("swiglu_limit", swiglu_limit)
    native().forward(
        group_id, x, topk_weights, *_checked_weights("weights", weights), *route, config, limit,
        y, saved,
    )  # fmt: skip


def launch_backward(
    group_id: int,
    dy: Tensor,
    x: Tensor,
    topk_weights: Tensor,
    weights: Weights,
    route: tuple,
    config: Sequence[int],
    swiglu_limit: float | None,
    saved: Tensor,
    grads: Grads,
    accumulate: bool,
) -> None:
    """Writes the tensors of grads that are not None; with accumulate, adds to those of its weights.

    Errors: as `backward`.
    """
    check_tensor("dy", dy)
    native().backward(
        group_id, dy, x, topk_weights, *weights.tensors(), *route, config, swiglu_limit, saved,
        grads.x, grads.topk_weights, *_checked_weights("accumulate", grads.weights), accumulate,
    )  # fmt: skip


def size(tensor: Tensor | None, dim: int) -> int:
    """Extent of a dimension; 0 where there is none, so that the library can refuse the tensor."""
    if tensor is None or not -tensor.dim() <= dim < tensor.dim():
        return 0
    return tensor.shape[dim]


def _opaque(elements: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Memory of which the library leaves gaps unwritten. Nobody reads those, but torch compares
    outputs of ops (opcheck, and whoever hashes them): on a CPU they are zero. On a GPU that would
    cost a second kernel."""
    make = torch.zeros if device.type == "cpu" else torch.empty
    return make(elements, dtype=dtype, device=device)


def new_tables(group_id: int, topk_ids: Tensor, experts: int) -> Tensor:
    """Memory for the tables of a schedule. Sizes that are not legal get none: `schedule` refuses
    them and names the tensor."""
    try:
        words = native().schedule_words(group_id, size(topk_ids, 0), experts, size(topk_ids, 1))
    except ValueError:
        words = 0
    return _opaque(words, torch.int32, topk_ids.device)


def new_saved(group_id: int, ranks: int, x: Tensor, topk_weights: Tensor, weights: Weights,
              config: Sequence[int]) -> Tensor:  # fmt: skip
    """Memory for what forward keeps. Sizes that are not legal get none, as in `new_tables`."""
    shape = Shape(
        tokens=size(x, 0),
        hidden=size(x, 1),
        intermediate=size(weights.gate, 1),
        experts=size(weights.gate, 0),
        top_k=size(topk_weights, 1),
        shared=size(weights.shared_gate, 0),
        ranks=ranks,
    )
    try:
        num_bytes = native().saved_bytes(group_id, shape.pack(), config)
    except ValueError:
        num_bytes = 0
    return _opaque(num_bytes, torch.uint8, x.device)


# --------------------------------------------------------------------------------------- calls


def schedule(
    topk_ids: Tensor,
    experts: int,
    group: Group | None = None,
    tokens_per_rank: Sequence[int] | None = None,
) -> Schedule:
    """Turns the router's choice into tables.

    topk_ids [T, K] int32 or int64 of any strides; -1 = not routed. tokens_per_rank: tokens of each
    rank (default: split evenly, the first T mod R ranks hold one more).
    Errors: ValueError (shape, an id < -1 or >= experts, token counts that don't add up), TypeError,
    RuntimeError (closed group).
    """
    check_tensor("topk_ids", topk_ids)
    group = default_group() if group is None else group
    check_instance("group", group, Group, "pass monomoe.Group() or Group.local(R)")
    experts = whole("experts", experts)
    tables = new_tables(group.id, topk_ids, experts)
    if tokens_per_rank is None:
        tokens_per_rank = native().split_tokens(size(topk_ids, 0), group.ranks)
    counts = tuple(token_counts(tokens_per_rank))
    made = Schedule(topk_ids, tables, experts, size(topk_ids, 1), counts, group)
    native().schedule(group.id, topk_ids, *_route(made))
    return made


def _route(sched: Schedule) -> tuple:
    return sched.tables, sched.experts, sched.top_k, sched.tokens_per_rank


def forward(
    x: Tensor,
    topk_weights: Tensor,
    weights: Weights,
    sched: Schedule,
    config: Config | None = None,
    swiglu_limit: float | None = None,
) -> tuple[Tensor, Context]:
    """y[t] = sum over k of topk_weights[t, k] * expert(topk_ids[t, k])(x[t]) + shared(x[t]).

    x [T, H] bf16, topk_weights [T, K] fp32 -> y [T, H] bf16 and the context for `backward`, which
    keeps references to the arguments: leave them unchanged until then.
    swiglu_limit: gate <= limit and |up| <= limit before the activation.
    Errors: ValueError, TypeError, RuntimeError before anything is written; RuntimeError after a
    wait that expired.
    """
    check_tensor("x", x)
    check_tensor("topk_weights", topk_weights)
    check_instance("weights", weights, Weights, "pass monomoe.Weights(gate, up, down)")
    _checked_weights("weights", weights)
    check_instance("sched", sched, Schedule, "pass the result of monomoe.schedule")
    config = Config() if config is None else config
    check_instance("config", config, Config, "pass monomoe.Config(...)")
    packed = config.pack()
    group = sched.group
    y = torch.empty(x.shape, dtype=torch.bfloat16, device=x.device)
    saved = new_saved(group.id, group.ranks, x, topk_weights, weights, packed)
    launch_forward(
        group.id, x, topk_weights, weights, _route(sched), packed, swiglu_limit, y, saved
    )
    return y, Context(x, topk_weights, weights, sched, config, swiglu_limit, saved)


def backward(dy: Tensor, ctx: Context, accumulate: Weights | None = None) -> Grads:
    """All gradients of the forward that made ctx.

    dy [T, H] bf16. accumulate: fp32 tensors shaped like the weights, which get the fp32 gradient by
    one addition a value (experts without rows stay untouched) and come back as `.weights`; a
    gradient whose entry is None is not computed.
    Errors: as `forward`.
    """
    check_tensor("dy", dy)
    check_instance("ctx", ctx, Context, "pass the second result of monomoe.forward")
    if accumulate is not None:
        check_instance("accumulate", accumulate, Weights, "pass monomoe.Weights of fp32 tensors")
    x, device = ctx.x, ctx.x.device
    dtype = _GRAD_DTYPE[ctx.config.weight_grad]
    grads = Grads(
        x=torch.empty(x.shape, dtype=torch.bfloat16, device=device),
        topk_weights=torch.empty(ctx.topk_weights.shape, dtype=torch.float32, device=device),
        weights=accumulate
        or ctx.weights.map(lambda w: torch.empty(w.shape, dtype=dtype, device=device)),
    )
    launch_backward(
        ctx.schedule.group.id, dy, x, ctx.topk_weights, ctx.weights, _route(ctx.schedule),
        ctx.config.pack(), ctx.swiglu_limit, ctx.saved, grads, accumulate is not None,
    )  # fmt: skip
    return grads


def explain(shape: Shape, config: Config | None = None) -> str:
    """Text: chosen tiles, workers, order, flops, bytes and memory regions of a shape."""
    check_instance("shape", shape, Shape, "pass monomoe.Shape(...)")
    config = Config() if config is None else config
    check_instance("config", config, Config, "pass monomoe.Config(...)")
    return native().explain(shape.pack(), config.pack())


def describe(
    topk_ids: Tensor,
    shape: Shape,
    config: Config | None = None,
    *,
    backward: bool = False,
    rank: int = 0,
    tickets: int = 20,
    score: bool = False,
    backend: str = "cpu",
) -> dict:
    """One rank's plan of a call with these routes: knobs, rows of its experts, memory regions and
    counters, tasks of each kind, and the first `tickets` tickets of each line in their order, with
    what each waits for and raises. topk_ids [T, K] as for `schedule`; score: the shared expert's
    output is gated; backend: whose policy, "cpu" or "sm90".

    Errors: as `schedule`; ValueError for a rank or backend that there is not.
    """
    check_tensor("topk_ids", topk_ids)
    check_instance("shape", shape, Shape, "pass monomoe.Shape(...)")
    config = Config() if config is None else config
    check_instance("config", config, Config, "pass monomoe.Config(...)")
    text = native().describe(
        topk_ids.cpu(), shape.pack(), config.pack(), bool(backward), whole("rank", rank),
        whole("tickets", tickets), bool(score), str(backend),
    )  # fmt: skip
    return json.loads(text)


def backends() -> list[str]:
    """Names of the backends that this build contains and this machine can run, best first."""
    return list(native().backends())
