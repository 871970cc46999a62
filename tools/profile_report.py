"""Where the kernels' warps spend their time: `profile_report.py SAMPLES DISASSEMBLY`.

SAMPLES      what Nsight Compute prints of its SourceCounters section, by instruction, as CSV
DISASSEMBLY  `nvdisasm -gi -c` of the kernels that were measured, which knows the source lines

For each kernel: how many of a multiprocessor's warps are busy with what, on average, and how many
of them wait for instructions. Then its loops of products: cycles a stage, and of these how many
went into waiting for products before (at a product or at the wait for them) and for the stage. An
instruction is "selected" for one cycle each time, which turns samples into cycles (docs/notes/0028).
"""

import argparse
import csv
import dataclasses
import re
import sys
from collections.abc import Iterator
from pathlib import Path

SOURCES = Path(__file__).parents[1] / "src" / "arch"
WARPS = 12  # of a worker
LEAST_SHARE = 0.02  # of the times of the busiest loop
LONGEST_RETRY = 16  # instructions of a wait that goes on, behind the kernel's other code

# What an instruction is for: the first line that fits. A function: the instruction is in it, or in
# what was inlined into it.
ROLES: list[tuple] = [
    ("sums", ("combine.cuh", None)),
    ("epilogue: weight gradients", ("wgrad.cuh", None)),
    ("shared expert's scalars", ("shared_backward.cuh", None)),
    ("consumer waits for its turn", ("turn.cuh", None)),
    ("main loop", ("compute.cuh", "main_loop")),
    ("signaller", ("signal_role.cuh", None)),
    ("mover", ("mover.cuh", None)),
    ("epilogue: dgrad_down, gate_up again", ("dgrad.cuh", None)),
    ("loader", ("load.cuh", None)),
    ("epilogue: gate_up", ("epilogue.cuh", "gate_up_half")),
    ("epilogue: down, dgrad_gate_up", ("epilogue.cuh", "down_half")),
    ("consumer waits for an entry", ("schedule_role.cuh", "wait_entry"), ("compute.cuh", None)),
    ("picker, scheduler", ("schedule_role.cuh", None)),
    ("consumer, other", ("compute.cuh", None)),
    ("consumer, other", ("backward.cuh", None)),
]  # fmt: skip
OTHER = "other"

DEFINITION = re.compile(r"^(?:struct|class)\s+(?:alignas\(\w+\)\s+)?(\w+)|^\w[^;={]*?\b(\w+)\(")
KERNEL = re.compile(r"\.text\.\w*?\d\d?((?:[a-z]+_)+kernel)EN")
PLACE = re.compile(r'//## File "([^"]+)", line (\d+)(?: inlined at "([^"]+)", line (\d+))?')
INSTRUCTION = re.compile(r"\s+/\*[0-9a-f]{4,}\*/\s+(.*?)\s*;")


@dataclasses.dataclass(frozen=True)
class Frame:
    file: str
    function: str


@dataclasses.dataclass
class Instruction:
    text: str
    address: int
    times: int
    samples: int
    stalls: dict[str, int]
    frames: frozenset[Frame] = frozenset()

    @property
    def role(self) -> str:
        for name, *places in ROLES:
            if all(self._is_in(file, function) for file, function in places):
                return name
        return OTHER

    def _is_in(self, file: str, function: str | None) -> bool:
        return any(f.file == file and function in (None, f.function) for f in self.frames)


@dataclasses.dataclass
class Kernel:
    name: str
    code: list[Instruction]

    @property
    def samples_a_cycle(self) -> float:
        times = sum(i.times for i in self.code)
        return sum(i.stalls["selected"] for i in self.code) / max(1, times)


def number(text: str) -> int:
    return int(text) if text.isdigit() else 0


def read_samples(lines: Iterator[str]) -> list[Kernel]:
    kernels: list[Kernel] = []
    columns: list[str] = []
    for row in csv.reader(lines):
        if not row:
            continue
        if row[0] == "Kernel Name":
            name = re.search(r"(\w+)\(", row[1])
            kernels.append(Kernel(name[1] if name else row[1], []))
        elif row[0] == "Address":
            columns = row
        elif kernels and columns:
            of = dict(zip(columns, row, strict=False))
            stalls = {
                c.removeprefix("stall_"): number(v)
                for c, v in of.items()
                if c.startswith("stall_") and "(" not in c
            }
            kernels[-1].code.append(
                Instruction(
                    of["Source"].strip(),
                    int(of["Address"], 16),
                    number(of["Instructions Executed"]),
                    number(of["# Samples"]),
                    stalls,
                )
            )
    return kernels


class Functions:
    """The function or class around each line of a source file, by its indentation."""

    def __init__(self, root: Path):
        self.paths = {p.name: p for p in root.rglob("*") if p.is_file()}
        self.known: dict[str, list[str]] = {}

    def at(self, file: str, line: int) -> str:
        if file not in self.known:
            names, current = [""], ""
            path = self.paths.get(file)
            for text in path.read_text().splitlines() if path else []:
                if found := DEFINITION.match(text):
                    current = found[1] or found[2]
                names.append(current)
            self.known[file] = names
        names = self.known[file]
        return names[line] if line < len(names) else ""


def read_places(
    lines: Iterator[str], functions: Functions
) -> dict[str, list[tuple[str, frozenset[Frame]]]]:
    """Instructions of each kernel, each with the places it comes from."""
    kernels: dict[str, list[tuple[str, frozenset[Frame]]]] = {}
    code: list[tuple[str, frozenset[Frame]]] | None = None
    frames: frozenset[Frame] = frozenset()
    pending: set[Frame] = set()
    for line in lines:
        if line.startswith(".text."):
            name = KERNEL.match(line)
            code = kernels.setdefault(name[1], []) if name else None
        elif at := PLACE.search(line):
            for file, number_of_line in ((at[1], at[2]), (at[3], at[4])):
                if file:
                    short = file.rsplit("/", 1)[-1]
                    pending.add(Frame(short, functions.at(short, int(number_of_line))))
        elif (found := INSTRUCTION.match(line)) and code is not None:
            if pending:
                frames, pending = frozenset(pending), set()
            code.append((found[1], frames))
    return kernels


def opcode(text: str) -> str:
    words = [w for w in text.split() if not w.startswith("@")]
    return words[0].split(".")[0] if words else ""


def place(kernel: Kernel, code: list[tuple[str, frozenset[Frame]]]) -> None:
    if len(code) != len(kernel.code):
        sys.exit(f"{kernel.name}: {len(kernel.code)} instructions measured, {len(code)} in the file")
    for measured, (text, frames) in zip(kernel.code, code, strict=True):
        if opcode(measured.text) != opcode(text):
            sys.exit(f"{kernel.name}: {measured.text!r} was measured, the file has {text!r}")
        measured.frames = frames


def roles(kernel: Kernel) -> dict[str, tuple[float, float]]:
    """Warps, and those of them that wait for instructions; most first."""
    total = max(1, sum(i.samples for i in kernel.code))
    sums: dict[str, list[float]] = {}
    for i in kernel.code:
        of = sums.setdefault(i.role, [0.0, 0.0])
        of[0] += i.samples * WARPS / total
        of[1] += i.stalls["no_inst"] * WARPS / total
    return {k: (v[0], v[1]) for k, v in sorted(sums.items(), key=lambda item: -item[1][0])}


@dataclasses.dataclass(frozen=True)
class Loop:
    product: str  # its last one
    times: int  # a warp
    cycles: float
    for_products: float
    for_stage: float


def target(instruction: Instruction) -> int | None:
    """Where a branch goes."""
    found = re.search(r"\bBRA\b.*?0x([0-9a-f]+)", instruction.text)
    return int(found[1], 16) if found else None


def out_of_line(code: list[Instruction], begin: int, end: int) -> list[Instruction]:
    """What branches of code[begin : end + 1] go to behind it, up to the branch back: retried waits."""
    at = {i.address: n for n, i in enumerate(code)}
    found: dict[int, Instruction] = {}
    for branch in code[begin : end + 1]:
        first = at.get(target(branch) or 0, 0)
        if first <= end:
            continue
        for n in range(first, min(first + LONGEST_RETRY, len(code))):
            back = at.get(target(code[n]) or 0)
            if back is not None and begin <= back <= end:
                found |= {m: code[m] for m in range(first, n + 1)}
                break
    return list(found.values())


def loops(kernel: Kernel) -> list[Loop]:
    """Loops of products that run often enough: from the branch back to where it goes."""
    found = []
    code, scale = kernel.code, kernel.samples_a_cycle
    most = max((i.times for i in code if "HGMMA" in i.text), default=0)
    for at, last in enumerate(code):
        if not ("HGMMA" in last.text and "gsb0" in last.text and last.times > LEAST_SHARE * most):
            continue
        for end in range(at, len(code)):
            back = target(code[end])
            if back and back <= last.address and code[end].times > 0.5 * last.times:
                break
        else:
            continue
        begin = next(n for n, i in enumerate(code) if i.address >= back)
        body = [*code[begin : end + 1], *out_of_line(code, begin, end)]
        unlisted = sum(i.samples - sum(i.stalls.values()) for i in body if "HGMMA" in i.text)
        cycles = 1 / (scale * last.times)
        found.append(
            Loop(
                last.text.split()[0] + " " + " ".join(re.findall(r"tnsp\w", last.text)),
                last.times,
                cycles * sum(i.samples for i in body),
                cycles * (unlisted + sum(i.stalls["barrier"] for i in body)),
                cycles * sum(i.stalls["long_sb"] for i in body),
            )
        )
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("samples", type=Path)
    parser.add_argument("disassembly", type=Path)
    options = parser.parse_args()
    with options.samples.open() as lines:
        kernels = read_samples(lines)
    with options.disassembly.open(errors="replace") as lines:
        places = read_places(lines, Functions(SOURCES))
    for kernel in kernels:
        if kernel.name not in places:
            sys.exit(f"{kernel.name} is not in {options.disassembly}")
        place(kernel, places[kernel.name])
        print(f"\n{kernel.name}: warps of {WARPS} (waiting for instructions)")
        for name, (warps, starved) in roles(kernel).items():
            print(f"  {warps:6.2f} ({starved:.2f})  {name}")
        print("cycles a stage, of them waiting for (products, the stage); times a warp ran it")
        for loop in loops(kernel):
            waits = f"({loop.for_products:.0f}, {loop.for_stage:.0f})"
            print(f"  {loop.cycles:6.0f} {waits:10s}  {loop.times:9d}  {loop.product}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
