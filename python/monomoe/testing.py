"""What tests, `python -m monomoe check` and the demo share: cases, the error rule, bits, hooks.

The error rule, per tensor: the error against EXACT, in max|d| / max|ref| and in Frobenius norm, is
at most twice the error of TWIN (the same rounding points done naively), with a floor.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from . import reference
from .functional import Config, Grads, Group, Weights, backward, forward, native, schedule

# Results of one forward and backward, by name. The bits of the first group survive any number of
# ranks, those of the shared expert's gradients any knob.
RANK_INVARIANT = ("y", "dx", "dtopk_weights", "dgate", "dup", "ddown")
PER_RANK_SUMS = ("dshared_gate", "dshared_up", "dshared_down", "dshared_score")

# Error that is always allowed: one rounding to bf16, or another order of an fp32 sum.
FLOOR = {torch.bfloat16: 2.0**-9, torch.float32: 2.0**-16}

# ---------------------------------------------------------------------------------------- cases


@dataclass(frozen=True)
class Case:
    """A named problem. Its inputs follow from it alone."""

    tokens: int
    hidden: int
    intermediate: int
    experts: int
    top_k: int
    routing: str = "random"  # see ROUTINGS
    shared: int = 0
    score: bool = False
    limit: float | None = None
    router: str = "softmax"  # or "signed": negative weights and zeros too
    values: str = "normal"  # or "integer": every rounding point is exact
    split: str = "even"  # tokens of a rank; "ragged": from few (or none) to many
    ids: torch.dtype = torch.int64
    seed: int = 0
    config: Config = field(default_factory=Config)

    @property
    def name(self) -> str:
        parts = [
            f"T{self.tokens}_H{self.hidden}_I{self.intermediate}_E{self.experts}_K{self.top_k}",
            self.routing,
        ]
        if self.shared:
            parts.append(f"shared{self.shared}" + ("gated" if self.score else ""))
        if self.limit is not None:
            parts.append(f"limit{self.limit:g}")
        parts += [p for p in (self.router, self.values, self.split) if p not in _DEFAULT_WORDS]
        if self.ids is torch.int32:
            parts.append("int32")
        for knob, value in sorted(vars(self.config).items()):
            if value != getattr(Config(), knob):
                parts.append(f"{knob}={value}")
        return "_".join(parts)

    def tokens_per_rank(self, ranks: int) -> list[int] | None:
        """None for the default, even split."""
        if self.split == "even":
            return None
        cuts = [self.tokens * rank**2 // ranks**2 for rank in range(ranks + 1)]
        return [end - begin for begin, end in zip(cuts, cuts[1:])]


_DEFAULT_WORDS = ("softmax", "normal", "even")


def _random(case: Case, rng) -> Tensor:
    """[T, K] distinct experts in each row."""
    scores = torch.rand(case.tokens, case.experts, generator=rng)
    return scores.topk(case.top_k, dim=1).indices


def _skewed(case: Case, rng) -> Tensor:
    """Half of all tokens choose expert 0."""
    ids = _random(case, rng)
    chosen = torch.rand(case.tokens, generator=rng) < 0.5
    ids[chosen & (ids != 0).all(1), 0] = 0
    return ids


def _unrouted(case: Case, rng) -> Tensor:
    """A third of the slots are -1, and every fourth token has no route at all."""
    ids = _random(case, rng)
    ids[torch.rand(ids.shape, generator=rng) < 0.33] = -1
    ids[::4] = -1
    return ids


def _only_even(case: Case, rng) -> Tensor:
    """Experts with odd ids get no rows."""
    return _random(case, rng) // 2 * 2


ROUTINGS = {
    "random": _random,
    "skewed": _skewed,
    "unrouted": _unrouted,
    "even_only": _only_even,
    "duplicates": lambda case, rng: torch.randint(case.experts, (case.tokens, case.top_k),
                                                  generator=rng) // 2,
    "one": lambda case, rng: torch.full((case.tokens, case.top_k), case.experts - 1),
    "none": lambda case, rng: torch.full((case.tokens, case.top_k), -1),
}  # fmt: skip


@dataclass(frozen=True)
class Inputs:
    """What a case hands to the three calls."""

    x: Tensor  # [T, H] bf16
    topk_ids: Tensor  # [T, K]
    topk_weights: Tensor  # [T, K] fp32
    weights: Weights  # gate and up are views of one [E, 2, I, H]
    dy: Tensor  # [T, H] bf16

    def to(self, device: str) -> Inputs:
        """The same on another device."""
        return Inputs(
            self.x.to(device), self.topk_ids.to(device), self.topk_weights.to(device),
            self.weights.map(lambda t: t.to(device)), self.dy.to(device),
        )  # fmt: skip


def make_inputs(case: Case) -> Inputs:
    """The inputs of a case, on the CPU."""
    rng = torch.Generator().manual_seed(case.seed)
    ids = ROUTINGS[case.routing](case, rng).to(case.ids)
    made = _integer_values(case, rng) if case.values == "integer" else _normal_values(case, rng)
    x, topk_weights, gate_up, down, shared_gate_up, shared_down, score, dy = made
    weights = Weights(
        gate=gate_up[:, 0],
        up=gate_up[:, 1],
        down=down,
        shared_gate=shared_gate_up[0] if case.shared else None,
        shared_up=shared_gate_up[1] if case.shared else None,
        shared_down=shared_down if case.shared else None,
        shared_score=score if case.score else None,
    )
    return Inputs(x, ids, topk_weights, weights, dy)


def _normal_values(case: Case, rng) -> tuple[Tensor, ...]:
    def normal(*shape: int, scale: float = 1.0) -> Tensor:
        return (torch.randn(shape, generator=rng) * scale).bfloat16()

    tokens, hidden, inter = case.tokens, case.hidden, case.intermediate
    topk_weights = torch.randn(tokens, case.top_k, generator=rng)
    if case.router == "softmax":
        topk_weights = topk_weights.softmax(1)
    else:
        topk_weights[::3, 0] = 0.0
    return (
        normal(tokens, hidden),
        topk_weights,
        normal(case.experts, 2, inter, hidden, scale=hidden**-0.5),
        normal(case.experts, hidden, inter, scale=inter**-0.5),
        normal(2, case.shared, hidden, scale=hidden**-0.5),
        normal(hidden, case.shared, scale=max(case.shared, 1) ** -0.5),
        normal(hidden, scale=hidden**-0.5),
        normal(tokens, hidden),
    )


def _integer_values(case: Case, rng) -> tuple[Tensor, ...]:
    """Values with which every product, sum and rounding point is exact.

    Every gate is 32 (column 0 of x is 1, that of the gate weights 32), and silu(32) is 32 in fp32;
    up is a multiple of 1/32, so activations are small integers. The score is 0: sigma is 1/2.
    """

    def sparse(*shape: int, ones: int, scale: float = 1.0) -> Tensor:
        """-1, 0 and 1, about `ones` of them not 0 in a row."""
        density = min(1.0, ones / max(shape[-1], 1))
        chosen = torch.rand(shape, generator=rng) < density
        sign = torch.randint(0, 2, shape, generator=rng) * 2 - 1
        return (chosen * sign * scale).bfloat16()

    def gate_up(*shape: int) -> Tensor:  # [..., 2, width, H]
        both = sparse(*shape, ones=3, scale=1 / 32)
        both[..., 0, :, :] = 0
        both[..., 0, :, 0] = 32
        return both

    tokens, hidden, inter = case.tokens, case.hidden, case.intermediate
    x = sparse(tokens, hidden, ones=3)
    x[:, 0] = 1
    return (
        x,
        torch.randint(-1, 3, (tokens, case.top_k), generator=rng).float(),
        gate_up(case.experts, 2, inter, hidden),
        sparse(case.experts, hidden, inter, ones=4),
        gate_up(2, case.shared, hidden),
        sparse(hidden, case.shared, ones=4),
        torch.zeros(hidden, dtype=torch.bfloat16),
        sparse(tokens, hidden, ones=2),
    )


# -------------------------------------------------------------------------------------- results


def named(y: Tensor, grads: Grads) -> dict[str, Tensor]:
    """Results by the names of RANK_INVARIANT and PER_RANK_SUMS."""
    results = {"y": y, "dx": grads.x, "dtopk_weights": grads.topk_weights}
    for name, tensor in zip(Weights.names(), grads.weights.tensors()):
        if tensor is not None:
            results[f"d{name}"] = tensor
    return results


def run_layer(
    inputs: Inputs, group: Group, case: Case, config: Config | None = None
) -> dict[str, Tensor]:
    """schedule, forward and backward of the library. config replaces the case's."""
    sched = schedule(
        inputs.topk_ids, case.experts, group, tokens_per_rank=case.tokens_per_rank(group.ranks)
    )
    y, ctx = forward(
        inputs.x, inputs.topk_weights, inputs.weights, sched, config or case.config, case.limit
    )
    return named(y, backward(inputs.dy, ctx))


def run_reference(
    inputs: Inputs, case: Case, arithmetic: reference.Arithmetic
) -> dict[str, Tensor]:
    """The same three steps of the oracle."""
    y, ctx = reference.forward(
        inputs.x, inputs.topk_weights, inputs.weights, inputs.topk_ids, case.config, case.limit,
        arithmetic=arithmetic,
    )  # fmt: skip
    return named(y, reference.backward(inputs.dy, ctx))


# ----------------------------------------------------------------------------------- error rule


@dataclass(frozen=True)
class Verdict:
    """How far a tensor is from EXACT, and how far it may be, in the measure where it is worse off:
    max|d| / max|ref| or the relative Frobenius norm of d."""

    name: str
    error: float
    allowed: float

    @property
    def share(self) -> float:
        """Error as a share of what is allowed: at most 1 passes."""
        return self.error / self.allowed

    @property
    def passed(self) -> bool:
        return self.share <= 1.0


def relative_errors(got: Tensor, exact: Tensor) -> tuple[float, float]:
    """max|d| / max|ref| and |d| / |ref| in Frobenius norm; inf for anything not finite, or for any
    error where the reference is zero."""
    if got.numel() == 0:
        return 0.0, 0.0
    d = got.double() - exact.double()
    if not torch.isfinite(d).all():
        return math.inf, math.inf
    pairs = (
        (d.abs().max().item(), exact.abs().max().item()),
        (d.norm().item(), exact.double().norm().item()),
    )
    shares = [(error / size if size else math.inf) if error else 0.0 for error, size in pairs]
    return shares[0], shares[1]


def judge(name: str, got: Tensor, twin: Tensor, exact: Tensor) -> Verdict:
    """Applies the error rule to one tensor."""
    if got.shape != exact.shape or got.dtype != twin.dtype:
        raise AssertionError(
            f"{name}: {twin.dtype} {list(exact.shape)} wanted, {got.dtype} {list(got.shape)} given"
        )
    floor = FLOOR[got.dtype]
    allowed = [max(2 * error, floor) for error in relative_errors(twin, exact)]
    errors = relative_errors(got, exact)
    return Verdict(name, *max(zip(errors, allowed), key=lambda pair: pair[0] / pair[1]))


def judge_all(
    got: Mapping[str, Tensor], twin: Mapping[str, Tensor], exact: Mapping[str, Tensor]
) -> list[Verdict]:
    """One verdict a tensor. All three must have the same names."""
    if not got.keys() == twin.keys() == exact.keys():
        raise AssertionError(f"results: {sorted(exact)} wanted, {sorted(got)} given")
    return [judge(name, got[name], twin[name], exact[name]) for name in exact]


def assert_close(
    got: Mapping[str, Tensor],
    twin: Mapping[str, Tensor],
    exact: Mapping[str, Tensor],
    rerun: str = "",
) -> None:
    """Raises AssertionError for the worst tensor that breaks the error rule."""
    worst = max(judge_all(got, twin, exact), key=lambda verdict: verdict.share)
    if not worst.passed:
        name = worst.name
        where = _first_not_finite_or_worst(got[name], exact[name])
        raise AssertionError(
            f"{name}: relative error {worst.error:.3g}, allowed {worst.allowed:.3g}; "
            f"{_difference(name, where, got[name], exact[name].to(got[name].dtype))}"
            + (f"; rerun: {rerun}" if rerun else "")
        )


def _first_not_finite_or_worst(got: Tensor, exact: Tensor) -> tuple[int, ...]:
    distance = (got.double() - exact.double()).abs().nan_to_num(nan=math.inf)
    return _coordinate(got, int(distance.argmax()))


def nearest_integers(exact: Tensor) -> Tensor:
    """The exact results of a case of integer values. silu(32) is 32 in fp32, but not in float64;
    what that adds is far below the grid of 2^-10 on which all these results lie."""
    return (exact * 1024).round() / 1024


# ----------------------------------------------------------------------------------------- bits


def bits(t: Tensor) -> Tensor:
    """The tensor's bit patterns as integers of the same width."""
    width = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[t.element_size()]
    return t.detach().cpu().contiguous().view(width)


def hash_bits(tensors: Tensor | Iterable[Tensor]) -> str:
    """16 hex digits over shapes, dtypes and bits."""
    digest = hashlib.sha256()
    for t in [tensors] if isinstance(tensors, Tensor) else tensors:
        digest.update(f"{tuple(t.shape)}{t.dtype}".encode())
        digest.update(bits(t).numpy().tobytes())
    return digest.hexdigest()[:16]


def assert_same_bits(
    got: Mapping[str, Tensor], wanted: Mapping[str, Tensor], names: Iterable[str] | None = None
) -> None:
    """Raises AssertionError at the first tensor whose bits differ. names: default all."""
    for name in wanted if names is None else [n for n in names if n in wanted]:
        a, b = got[name], wanted[name]
        if a.shape != b.shape or a.dtype != b.dtype:
            raise AssertionError(
                f"{name}: {b.dtype} {list(b.shape)} wanted, {a.dtype} {list(a.shape)} given"
            )
        differs = (bits(a) != bits(b)).flatten()
        if differs.any():
            where = _coordinate(a, int(differs.to(torch.uint8).argmax()))
            count = int(differs.sum())
            raise AssertionError(
                f"{name}: {count} of {a.numel()} values differ; {_difference(name, where, a, b)}"
            )


def _coordinate(t: Tensor, flat: int) -> tuple[int, ...]:
    return tuple(int(i) for i in torch.unravel_index(torch.tensor(flat), t.shape))


def _difference(name: str, where: tuple[int, ...], got: Tensor, wanted: Tensor) -> str:
    def shown(t: Tensor) -> str:
        value = t[where]
        pattern = bits(value.reshape(1)).item() & (2 ** (8 * t.element_size()) - 1)
        return f"{value.item():.9g} (0x{pattern:0{2 * t.element_size()}x})"

    return f"{name}{list(where)}: {shown(wanted)} wanted, {shown(got)} given"


def fill(t: Tensor | None, byte: int) -> None:
    """Sets every byte of a contiguous tensor, so that values that nobody wrote show."""
    if t is not None and t.numel():
        t.view(torch.uint8).fill_(byte)


# ---------------------------------------------------------------------------------------- hooks
#
# Hooks of src/runtime/testing.h: the same group and calls under other circumstances.

ORDERS = {"threads": 0, "ticket": 1, "adversarial": 2}


def set_executor(group: Group, order: str, seed: int = 0) -> None:
    """How the CPU backend executes tasks: "threads", "ticket" order or "adversarial" (seeded)."""
    native().testing_set_executor(group.id, ORDERS[order], seed)


def set_tile(group: Group, rows: int, cols: int, tokens: int) -> None:
    """Small tiles: ring and save sizes count in tiles of `rows` rows. 0, 0, 0 is the default."""
    native().testing_set_tile(group.id, rows, cols, tokens)


def poison(group: Group, byte: int) -> None:
    """Fills every data region of the group; counters, flags and epochs keep their values."""
    native().testing_poison(group.id, byte)


def set_epoch(group: Group, epoch: int, renews: bool = True) -> None:
    """The epoch that the next call uses, as an unsigned 32-bit number. renews: as in a new group;
    else as if many calls that were too small to use all flags had run."""
    native().testing_set_epoch(group.id, epoch, renews)


def never_start(group: Group, rank: int) -> None:
    """This rank never starts in later calls (-1: all start)."""
    native().testing_never_start(group.id, rank)


def start_late(group: Group, rank: int, seconds: float) -> None:
    """This rank starts that late in later calls (-1: none does). Executor "threads" only."""
    native().testing_start_late(group.id, rank, seconds)


CALL_PARTS = {"schedule": 1, "kind": 2, "sizes": 4}
PAUSES = {"launch": 0, "stage": 1, "dispatch": 2, "push": 3}


def falsify(group: Group, rank: int, *parts: str) -> None:
    """In later calls this rank tells its peers that it makes another call, different in these
    parts of CALL_PARTS (none: the truth)."""
    native().testing_falsify(group.id, rank, sum(CALL_PARTS[part] for part in parts))


def pause(group: Group, rank: int, at: str, us: int) -> None:
    """GPUs: in later calls each launch, or each task of that kind, of this rank sleeps."""
    native().testing_pause(group.id, rank, PAUSES[at], us)


def hold(group: Group, rank: int, task_idx: int) -> None:
    """Sequential executors: this rank stops before that task until nothing else can run."""
    native().testing_hold(group.id, rank, task_idx)


def tasks_done(group: Group, rank: int) -> int:
    """Tasks that the last call executed on this rank."""
    return native().testing_tasks_done(group.id, rank)
