"""A run: cases one after the other, each checked, measured, counted and recorded."""

from __future__ import annotations

import datetime
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch

from .. import testing
from ..functional import Config
from . import cases, correct, measure, record, report, rivals, systems
from .cases import BenchCase, Inputs
from .device import Host, State, content_hash
from .measure import Protocol
from .record import Record
from .systems import System, Unavailable

SYSTEMS: dict[str, type[System]] = {
    "monomoe": systems.MonoMoE,
    "dense": systems.Dense,
    "torch-eager": systems.TorchEager,
    "torch-compile": systems.TorchCompile,
    "sonicmoe": rivals.SonicMoE,
    "liger": rivals.Liger,
}
# Not measured unless named: its tuner would take most of a run.
DEFAULT_SYSTEMS = [name for name in SYSTEMS if name != "liger"]
TILE_ROWS = 128


@dataclass(frozen=True)
class Options:
    """What the command line says."""

    cases: list[BenchCase]
    passes: list[str]
    systems: list[str]
    ranks: list[int] | None  # None: those of each case
    variants: bool
    accumulate: bool
    protocol: Protocol
    records: Path | None  # folder; None: nothing is written
    commit: str
    budget_s: float


@dataclass
class Outcome:
    """What came of a run."""

    records: list[Record] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)  # results that were not right
    absent: dict[str, str] = field(default_factory=dict)  # system -> why it was not measured
    left: list[str] = field(default_factory=list)  # cases for which there was no time

    def fail(self, text: str, say: Callable[[str], None]) -> None:
        """Something is wrong; said at once and again at the end."""
        self.wrong.append(text)
        say(f"WRONG  {text}")


def backward_refusal(device: Host) -> str | None:
    """Why the backend does not serve backward, None if it does. Errors: what a fault raises."""
    case = BenchCase("probe", 64, 64, 64, 4, 2)
    system = systems.MonoMoE(cases.make_inputs(case, device.device))
    try:
        state = system.forward()
        device.synchronize()
        system.group.check()
        try:
            system.backward(state)
            device.synchronize()
        except (RuntimeError, TypeError, ValueError) as error:
            if "wanted" not in str(error):  # a fault is not a refusal
                raise
            return str(error)
        system.group.check()
        return None
    finally:
        system.close()


def run(options: Options, device: Host, say: Callable[[str], None] = print) -> Outcome:
    """Measures. Records are written case by case: they survive what comes later."""
    started = time.monotonic()
    outcome = Outcome()
    rate = device.copy_rate()
    if rate:
        say(f"copy: {rate * 1e-12:.2f} TB/s, reads and writes counted")
    slowest = 0.0
    say(report.HEADER)
    for case in options.cases:
        begin = time.monotonic()
        if begin - started + slowest > options.budget_s:
            outcome.left.append(case.name)
            continue
        try:
            for r in _CaseRun(case, options, device, outcome, rate, say).run():
                outcome.records.append(r)
                if options.records is not None:
                    record.append(options.records, [r])
                say(report.line(r))
        except (RuntimeError, ValueError) as error:  # such as no memory: other cases may do
            outcome.fail(f"{case.name}: {_first_line(error)}", say)
        device.release()
        slowest = max(slowest, time.monotonic() - begin)
    return outcome


class _CaseRun:
    """One case."""

    def __init__(self, case: BenchCase, options: Options, device: Host, outcome: Outcome,
                 rate: float | None, say: Callable[[str], None]):  # fmt: skip
        self.case, self.options, self.device = case, options, device
        self.outcome, self.rate, self.say = outcome, rate, say
        self.inputs: Inputs = cases.make_inputs(case, device.device)
        self.backward = "fwdbwd" in options.passes
        self.outside: dict[System, int | None] = {}
        self.hashes: dict[tuple[System, str], str] = {}

    def run(self) -> list[Record]:
        with systems.closing([]) as made:
            if not self._build(made):
                return []
            found = []
            for pass_ in self.options.passes:
                found += self._measure(made, pass_)
            return found

    # ------------------------------------------------------------------- systems that are right

    def _build(self, made: list[System]) -> bool:
        """MonoMoE first: the others are compared with it, without it with the first of them.
        False: there is nothing to measure."""
        wanted = None
        if "monomoe" in self.options.systems:
            wanted = self._build_monomoe(made)
            if wanted is None:
                return False
        for name in self.options.systems:
            if name == "monomoe" or name in self.outcome.absent:
                continue
            try:
                system = SYSTEMS[name](self.inputs)
                if name != "dense":
                    results = correct.run_once(system, self.backward)
                    if wanted is None:
                        wanted = results
                    if not self._is_right(system, results, wanted):
                        continue
            except Unavailable as error:
                self.outcome.absent[name] = str(error)
            except Exception as error:  # whatever a rival raises, the others are measured
                self.outcome.fail(f"{self.case.name} {name}: {_first_line(error)}", self.say)
            else:
                made.append(system)
        return bool(made)

    def _build_monomoe(self, made: list[System]) -> dict | None:
        """Results of R = 1, or None if they are wrong."""
        wanted = None
        for ranks, options in self._layers():
            self.device.release()
            outside = self.device.outside_torch()
            system = systems.MonoMoE(self.inputs, ranks, options)
            made.append(system)
            results = correct.run_once(system, self.backward)
            self.device.synchronize()
            system.group.check()
            self.outside[system] = _difference(self.device.outside_torch(), outside)
            self._remember_hash(system, results)
            if wanted is None:
                wanted = results
                bad = [v for v in correct.against_float64(self.inputs, results) if not v.passed]
                problems = [f"{v.name}: error {v.share:.3g} of what is allowed" for v in bad]
                if self.backward and self.options.accumulate:
                    problems += self._accumulates(system, results)
            else:
                problems = self._differences(results, wanted)
            for problem in problems:
                self.outcome.fail(f"{self.case.name} monomoe R={ranks}: {problem}", self.say)
            if problems:
                return None
        return wanted

    def _layers(self) -> list[tuple[int, Config]]:
        """Numbers of ranks and options, the plain one first."""
        ranks = dict.fromkeys([1, *(self.options.ranks or self.case.ranks)])
        layers = [(r, Config()) for r in ranks]
        if self.options.variants and self.case.variants:
            all_rows = self.case.rows + TILE_ROWS * self.case.experts
            layers.append((1, Config(ring_rows=-(-all_rows // TILE_ROWS) * TILE_ROWS)))
            if self.backward:
                layers.append((1, Config(save="none")))
        return layers

    def _accumulates(self, system: System, results: dict) -> list[str]:
        main = systems.main_grads(self.inputs)
        names = correct.accumulates(system, main, results)
        return [f"{name}: accumulated from zero it has other bits" for name in names]

    def _differences(self, results: dict, wanted: dict) -> list[str]:
        """Bits for what any number of ranks repeats, the error of a rival for the rest."""
        exact = [n for n in results if n in testing.RANK_INVARIANT]
        rest = {n: wanted[n] for n in results if n not in testing.RANK_INVARIANT}
        problems = [f"{n}: other bits than R = 1" for n in exact
                    if not torch.equal(results[n], wanted[n])]  # fmt: skip
        for name, error in correct.relative_errors(results, rest).items():
            if not error <= correct.RIVAL_ERROR:
                problems.append(f"{name}: differs by {error:.3g} from R = 1")
        return problems

    def _is_right(self, system: System, results: dict, wanted: dict) -> bool:
        self._remember_hash(system, results)
        if results is wanted:
            return True
        errors = correct.relative_errors(results, wanted)
        name, error = max(errors.items(), key=lambda item: item[1])
        text = f"{self.case.name} {system.name}: differs by {error:.2g} at most ({name})"
        if error <= correct.RIVAL_ERROR:
            self.say(text)
            return True
        self.outcome.fail(f"{text}, {correct.RIVAL_ERROR:.2g} allowed; it is not timed", self.say)
        return False

    def _remember_hash(self, system: System, results: dict) -> None:
        names = [n for n in testing.RANK_INVARIANT if n in results]
        self.hashes[system, "fwd"] = content_hash([results["y"]])
        self.hashes[system, "fwdbwd"] = content_hash([results[n] for n in names])

    # ------------------------------------------------------------------------------ measurement

    def _measure(self, made: list[System], pass_: str) -> list[Record]:
        backward = pass_ == "fwdbwd"
        plain = [s for s in made if pass_ == "fwdbwd" or s.config.get("save") != "none"]
        found = self._rotation(plain, pass_, None)
        if backward and self.options.accumulate:
            main = systems.main_grads(self.inputs)
            plain = [s for s in made if not s.config and s.ranks == 1]
            found += self._rotation(plain, pass_, main)
        return found

    def _rotation(self, made: list[System], pass_: str, main) -> list[Record]:
        """Records of systems that take turns. main: fp32 gradients to add to."""

        def step(system: System) -> Callable:
            if pass_ == "fwd":
                return system.forward
            dense = system.name == "dense"  # the yardstick always writes
            return lambda: system.backward(system.forward(), None if dense else main)

        calls: dict = {system: step(system) for system in made}
        monomoe = [s for s in made if s.name == "monomoe"]
        for system in monomoe:
            calls["schedule", system] = system.schedule
        samples = measure.interleave(self.device, calls, self.options.protocol)
        for system in monomoe:
            system.group.check()
        p50 = {key: record.quartiles(ms)["p50"] for key, ms in samples.ms.items()}
        dense = next((p50[s] for s in made if s.name == "dense"), None)
        found = []
        for system in made:
            if system.name == "dense" and main is not None:
                continue
            prints = measure.footprint(self.device, system, pass_ == "fwdbwd", main)
            found.append(self._record(system, pass_, samples, prints, main is not None,
                                      dense, p50.get(("schedule", system))))  # fmt: skip
        return found

    def _record(self, system: System, pass_: str, samples: measure.Samples,
                prints: measure.Footprint, accumulate: bool, dense: float | None,
                sched: float | None) -> Record:  # fmt: skip
        ms = record.quartiles(samples.ms[system])
        peak = _sum(prints.peak_bytes, self.outside.get(system, 0))
        before, after = samples.before, samples.after
        return Record(
            commit=self.options.commit,
            date=datetime.date.today().isoformat(),
            chip=self.device.chip,
            driver=self.device.driver,
            cuda=self.device.cuda,
            torch=torch.__version__,
            case=self.case.name,
            ranks=system.ranks,
            pass_=pass_,
            system=system.name,
            version=system.version,
            ms={key: round(value, 6) for key, value in ms.items()},
            samples=len(samples.ms[system]),
            tflops=round(cases.flops(self.case, pass_) / ms["p50"] * 1e-9, 2),
            dense_ratio=None if dense is None else round(dense / ms["p50"], 4),
            sched_ms=None if sched is None else round(sched, 6),
            launches=prints.launches,
            peak_bytes=peak,
            kept_bytes=None if system.name == "dense" else prints.kept_bytes,
            hash=self.hashes.get((system, pass_)),
            config=self._config(system, accumulate, before, after),
            clock_mhz=_pair(before.clock_mhz, after.clock_mhz),
            power_w=_pair(before.power_w, after.power_w),
        )

    def _config(self, system: System, accumulate: bool, before: State, after: State) -> dict:
        config = dict(system.config)
        if accumulate:
            config["weight_grads"] = "accumulate"
        if isinstance(system, systems.MonoMoE) and system.ranks == 1:
            config["kept_allowed"] = system.kept_allowed()
        if self.rate:
            config["copy_bytes_s"] = round(self.rate)
        temperature = _pair(before.temperature_c, after.temperature_c)
        if temperature:
            config["temperature_c"] = temperature
        return config


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else ''}"


def _pair(before, after) -> list | None:
    return None if before is None and after is None else [before, after]


def _sum(a: int | None, b: int | None) -> int | None:
    return None if a is None or b is None else a + b


def _difference(a: int | None, b: int | None) -> int | None:
    return None if a is None or b is None else a - b
