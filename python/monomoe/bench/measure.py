"""Interleaved samples of one case.

In each round every system runs once, in an order that is drawn anew, so that none gains from a cool
chip or from what ran before it. Rounds without samples come first, until there were enough of them
and enough time under load has passed.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ..functional import Weights
from .device import Host, State
from .systems import System


@dataclass(frozen=True)
class Protocol:
    samples: int = 30
    warmups: int = 20
    warm_s: float = 1.0  # after 0.5 s the clock still falls


@dataclass(frozen=True)
class Samples:
    """Of some calls in one rotation."""

    ms: dict[str, list[float]]
    before: State
    after: State


def interleave(device: Host, calls: Mapping[str, Callable], protocol: Protocol) -> Samples:
    """Times of every call."""
    order = list(calls)
    rng = random.Random(0)

    def one_round() -> dict[str, Callable[[], float]]:
        rng.shuffle(order)
        pending = {}
        for name in order:
            device.spacer()
            pending[name] = device.sample(calls[name])
        return pending

    start, done = time.monotonic(), 0
    while done < protocol.warmups or time.monotonic() - start < protocol.warm_s:
        one_round()
        device.synchronize()
        done += 1
    before = device.state()
    rounds = [one_round() for _ in range(protocol.samples)]
    device.synchronize()
    after = device.state()
    return Samples({name: [r[name]() for r in rounds] for name in calls}, before, after)


@dataclass(frozen=True)
class Footprint:
    """Of one step; None where the device does not say."""

    launches: dict[str, int] | None
    kept_bytes: int | None
    peak_bytes: int | None


def footprint(device: Host, system: System, backward: bool, main: Weights | None) -> Footprint:
    """Launches of each part, and what torch holds beside inputs and weights."""
    counts: dict[str, int | None] = {}
    device.synchronize()
    device.reset_peak()
    base = device.allocated()
    state = None
    for name, part in system.parts():
        state, counts[name] = device.launches(lambda: part(state))
    kept = device.allocated()
    y = system.output(state)
    if backward:
        grads, counts["backward"] = device.launches(lambda: system.backward(state, main))
        del grads
    peak = device.peak()
    if base is None:
        return Footprint(None, None, None)
    y_bytes = 0 if y is None else y.numel() * y.element_size()
    return Footprint(counts, kept - base - y_bytes, peak - base)
