"""What measurements should reach, and the verdict. Ratios are of one run, so they travel."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from .cases import BY_NAME, weight_values
from .record import Record

# case -> (done at, aim) of dense_ratio
_LARGE = ("dsv3-ep8", "kimi-ep8", "glm-ep8", "dsv4pro-ep8")
_ODD = ("glm-air-ep4", "gpt-oss-ep4", "qwen3-30b-skew")
DENSE_RATIO = {
    "fwd": {
        **dict.fromkeys(_LARGE, (0.93, 1.0)),
        "mixtral": (0.90, 1.0),
        **dict.fromkeys(("qwen3-30b", "olmoe", "t16k-e64", "qwen3.5-ep8"), (0.88, 0.97)),
        **dict.fromkeys(_ODD, (0.80, 0.95)),
    },
    "fwdbwd": {
        **dict.fromkeys(_LARGE, (0.92, 1.0)),
        "mixtral": (0.88, 1.0),
        **dict.fromkeys(("qwen3-30b", "olmoe", "t16k-e64"), (0.85, 0.95)),
        "qwen3.5-ep8": (0.82, 0.95),
        **dict.fromkeys(_ODD, (0.78, 0.95)),
    },
}
RANKS = (1.08, 1.05)  # time of R ranks / time of one
SCHED_SHARE, SCHED_MS = 0.015, 0.025  # of the time of forward; at most the larger
WEIGHT_READS = 1.3  # t512: times of reading the weights once
SONIC = 0.9  # t16k-e64, forward + backward / SonicMoE
RING = 1.05  # a ring of 16,384 rows / one that holds everything
RECOMPUTE = 1.27  # save = none / save = preact
ACCUMULATE_BYTES = 6  # a weight: read and write fp32 instead of writing bf16


@dataclass(frozen=True)
class Gate:
    """One number that was measured, and what is wanted of it."""

    case: str
    pass_: str
    what: str
    value: float
    done: float
    aim: float
    lower: bool = False  # the smaller the better

    @property
    def verdict(self) -> str:
        """"aim", "done" or "short"."""
        sign = -1 if self.lower else 1
        if sign * self.value >= sign * self.aim:
            return "aim"
        return "done" if sign * self.value >= sign * self.done else "short"


def _most(case: str, pass_: str, what: str, value: float, done: float, aim: float | None = None):
    return Gate(case, pass_, what, value, done, done if aim is None else aim, lower=True)


def kind(record: Record) -> str:
    """Which measurement of a case and pass this is: options that the defaults don't have."""
    options = ("weight_grads", "save", "ring_rows")
    return " ".join(f"{k}={record.config[k]}" for k in options if k in record.config)


def gates(records: Iterable[Record]) -> Iterator[Gate]:
    """Everything that these records let one judge. A later record replaces an equal earlier one."""
    table: dict[tuple, Record] = {}
    for r in records:
        table[r.case, r.pass_, r.system, r.ranks, kind(r)] = r
    for (case, pass_, system, ranks, what), r in table.items():
        if system != "monomoe":
            continue
        one = table.get((case, pass_, "monomoe", 1, ""))
        if ranks > 1:
            if one is not None:
                yield from _rank_gates(r, one)
        elif what == "":
            rivals = [
                t
                for (c, p, s, _, k), t in table.items()
                if (c, p, k) == (case, pass_, "") and s not in ("monomoe", "dense")
            ]
            yield from _plain_gates(r, rivals)
        elif one is not None:
            yield from _variant_gates(r, one)


def _plain_gates(r: Record, rivals: list[Record]) -> Iterator[Gate]:
    p50 = r.ms["p50"]
    target = DENSE_RATIO[r.pass_].get(r.case)
    if target and r.dense_ratio is not None:
        yield Gate(r.case, r.pass_, "dense ratio", r.dense_ratio, *target)
    rate = r.config.get("copy_bytes_s")
    if r.case == "qwen3-30b-t512" and r.pass_ == "fwd" and rate:
        read_ms = 2e3 * weight_values(BY_NAME[r.case]) / rate
        yield _most(r.case, r.pass_, "time / reading the weights", p50 / read_ms, WEIGHT_READS)
    if r.sched_ms is not None and r.pass_ == "fwd":
        allowed = max(SCHED_SHARE * p50, SCHED_MS)
        yield _most(r.case, r.pass_, "schedule, of what it may take", r.sched_ms / allowed, 1.0)
    for part, count in (r.launches or {}).items():
        yield _most(r.case, r.pass_, f"launches of {part}", count, 1)
    for rival in rivals:
        if rival.system == "sonicmoe" and (r.case, r.pass_) == ("t16k-e64", "fwdbwd"):
            continue
        yield _most(r.case, r.pass_, f"time / {rival.system}", p50 / rival.ms["p50"], 1.0)
    if (r.case, r.pass_) == ("t16k-e64", "fwdbwd"):
        for rival in rivals:
            if rival.system == "sonicmoe":
                yield _most(r.case, r.pass_, "time / sonicmoe", p50 / rival.ms["p50"], SONIC)
    if r.kept_bytes is not None and "kept_allowed" in r.config and r.pass_ == "fwdbwd":
        share = r.kept_bytes / r.config["kept_allowed"]
        yield _most(r.case, r.pass_, "kept bytes, of what is allowed", share, 1.0)


def _rank_gates(r: Record, one: Record) -> Iterator[Gate]:
    ratio = r.ms["p50"] / one.ms["p50"]
    yield _most(r.case, r.pass_, f"time, R = {r.ranks} / R = 1", ratio, *RANKS)
    if r.hash is not None:
        yield _most(r.case, r.pass_, f"other bits than R = 1, R = {r.ranks}", r.hash != one.hash, 0)


def _variant_gates(r: Record, one: Record) -> Iterator[Gate]:
    p50, plain = r.ms["p50"], one.ms["p50"]
    rate = r.config.get("copy_bytes_s")
    if r.config.get("weight_grads") == "accumulate" and rate:
        extra_ms = 1e3 * ACCUMULATE_BYTES * weight_values(BY_NAME[r.case]) / rate
        what = "accumulation, of its extra bytes' time"
        yield _most(r.case, r.pass_, what, (p50 - plain) / extra_ms, 1.0)
    elif "ring_rows" in r.config:
        yield _most(r.case, r.pass_, "default ring / ring of all rows", plain / p50, RING)
    elif r.config.get("save") == "none" and r.pass_ == "fwdbwd":
        yield _most(r.case, r.pass_, "save = none / save = preact", p50 / plain, RECOMPUTE)
