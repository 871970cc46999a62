"""One JSON object a line a measurement, appended to bench/records, never edited.

`Record` has the fields of a line in their order. What is not measured is None: a dense GEMM has no
schedule, a CPU no clock. `config` holds what the measurement depends on beside the other fields:
MonoMoE's options, whether gradients were written or accumulated, temperatures, the copy rate.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
import statistics
import subprocess
from dataclasses import dataclass
from pathlib import Path

PASSES = ("fwd", "fwdbwd")


def quartiles(samples: list[float]) -> dict[str, float]:
    """p25, p50 and p75, linear between samples."""
    if len(samples) == 1:
        return dict.fromkeys(("p25", "p50", "p75"), samples[0])
    p25, p50, p75 = statistics.quantiles(samples, n=4, method="inclusive")
    return {"p25": p25, "p50": p50, "p75": p75}


@dataclass(frozen=True)
class Record:
    """One measurement. Pairs are (before, after)."""

    commit: str
    date: str  # YYYY-MM-DD
    chip: str
    driver: str | None
    cuda: str | None
    torch: str
    case: str
    ranks: int
    pass_: str  # "pass" in the file: "fwd" or "fwdbwd"
    system: str
    version: str
    ms: dict  # p25, p50, p75
    samples: int
    tflops: float
    dense_ratio: float | None  # time of dense / time of this system, same run
    sched_ms: float | None  # p50; contained in ms
    launches: dict | None  # kernels, memsets and memcpys of each part
    peak_bytes: int | None  # beside inputs and weights
    kept_bytes: int | None  # between forward and backward, beside y
    hash: str | None
    config: dict
    clock_mhz: list | None
    power_w: list | None

    def line(self) -> str:
        return json.dumps({_json_name(f.name): getattr(self, f.name) for f in _fields()})

    @classmethod
    def parse(cls, line: str) -> Record:
        """Errors: ValueError with what is wrong."""
        try:
            value = json.loads(line)
        except json.JSONDecodeError as error:
            text = f"record: a JSON object wanted, {line[:40]!r} given: {error}"
            raise ValueError(text) from None
        names = [_json_name(f.name) for f in _fields()]
        if not isinstance(value, dict) or list(value) != names:
            given = list(value) if isinstance(value, dict) else type(value).__name__
            raise ValueError(f"record: the fields {names} wanted, {given} given; see docs/bench.md")
        record = cls(**{f.name: value[_json_name(f.name)] for f in _fields()})
        record._check()
        return record

    def _check(self) -> None:
        for what, ok, given in (
            ("pass: fwd or fwdbwd", self.pass_ in PASSES, self.pass_),
            ("date: YYYY-MM-DD", re.fullmatch(r"\d{4}-\d\d-\d\d", self.date), self.date),
            ("ms: p25 <= p50 <= p75, above 0", _is_ordered(self.ms), self.ms),
            ("samples: 1 or more", self.samples >= 1, self.samples),
            ("ranks: 1 or more", self.ranks >= 1, self.ranks),
            ("commit: of git", self.commit, self.commit),
        ):
            if not ok:
                raise ValueError(f"record: {what} wanted, {given!r} given; measure it anew")


def _fields():
    return dataclasses.fields(Record)


def _json_name(name: str) -> str:
    return name.rstrip("_")


def _is_ordered(ms: dict) -> bool:
    if list(ms) != ["p25", "p50", "p75"]:
        return False
    return 0 < ms["p25"] <= ms["p50"] <= ms["p75"] < math.inf


# ----------------------------------------------------------------------------------------- files


def chip_slug(chip: str) -> str:
    """Name of a chip in a file name: "NVIDIA H200" -> "h200"."""
    words = re.findall(r"[a-z0-9]+", chip.lower())
    return "-".join(word for word in words if word != "nvidia") or "unknown"


def file_of(folder: Path, date: str, chip: str) -> Path:
    return folder / f"{date}-{chip_slug(chip)}.jsonl"


def append(folder: Path, records: list[Record]) -> None:
    """Adds lines to the file of their date and chip. Errors: OSError."""
    for record in records:
        with file_of(folder, record.date, record.chip).open("a", encoding="utf-8") as file:
            file.write(record.line() + "\n")


def read(paths: list[Path]) -> list[Record]:
    """Records of these files, in order; lines of other benchmarks (`"bench": ...`) are skipped.

    Errors: OSError; ValueError with file and line.
    """
    found = []
    for path in paths:
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            if not line.strip() or '"bench"' in line.split(":")[0]:
                continue
            try:
                found.append(Record.parse(line))
            except ValueError as error:
                raise ValueError(f"{path}:{number}: {error}") from None
    return found


def commit_of(folder: Path) -> str | None:
    """Short commit of the repository at `folder`, with "-dirty" if files differ from it."""
    command = ["git", "-C", str(folder), "describe", "--always", "--dirty", "--abbrev=7"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None if done.returncode == 0 else None
