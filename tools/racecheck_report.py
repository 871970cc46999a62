"""Reads what compute-sanitizer's racecheck says: `racecheck_report.py < output`.

Prints how many reports there are of each pair of places, and fails for any that is not known to be
a false alarm, or if racecheck did not come to its end. Known are (docs/tests.md says why):
  entries of a worker's queue: written by the scheduler, into both blocks, read by the others
  the count of stages that the loader has begun with
  stages that bulk copies fill and consumers read (sums, pre-activations)
"""

import collections
import dataclasses
import re
import sys

# Inline assembly may have no place of its own: then only the kernel is named.
PLACE = r"(\w+) access at (.*?)\+0x\w+(?: in (\S+):\d+)?(?: \[\d+ hazards\])?\s*$"
FIRST = re.compile(rf"=+ (?:Error|Warning): Race reported between {PLACE}")
NEXT = re.compile(rf"=+\s+and {PLACE}")
SUMMARY = re.compile(r"RACECHECK SUMMARY: \d+ hazards? displayed \((\d+) errors?, (\d+) warnings?\)")
NAME = re.compile(r"monomoe::\w+::(\w+)")
KERNEL = "the kernel"


@dataclasses.dataclass(frozen=True)
class Access:
    kind: str  # Read or Write
    function: str
    file: str


def access(kind: str, function: str, file: str | None) -> Access:
    if file is None:
        return Access(kind, KERNEL, "")
    names = NAME.search(function.replace("monomoe::cuda::Context", ""))
    return Access(kind, names[1] if names else function, file)


def races(text: str) -> list[tuple[Access, Access]]:
    """Every pair that was reported."""
    found: list[tuple[Access, Access]] = []
    first = None
    for line in text.splitlines():
        if match := FIRST.match(line):
            first = access(*match.groups())
        elif (match := NEXT.match(line)) and first:
            found.append((first, access(*match.groups())))
    return found


def is_false_alarm(pair: tuple[Access, Access]) -> bool:
    kinds = {a.kind: a.function for a in pair}
    if set(kinds) != {"Read", "Write"}:
        return False
    if kinds["Write"] in ("store_cluster", "store_cluster_16"):  # a queue entry
        return not kinds["Read"].startswith("store_")
    if kinds["Write"] == "bulk_load":  # a stage; no loads but its readers' are inline assembly
        return kinds["Read"] == KERNEL
    return kinds == {"Read": "load_volatile", "Write": "BegunStages"}


def main() -> int:
    text = sys.stdin.read()
    counts = collections.Counter(races(text))
    bad = 0
    for pair, count in sorted(counts.items(), key=str):
        explained = is_false_alarm(pair)
        bad += not explained
        places = " / ".join(f"{a.kind} {a.function} {a.file}" for a in pair)
        print(f"{'known' if explained else 'RACE '} {count:4} {places}")
    summary = SUMMARY.search(text)
    if summary is None:
        print("racecheck: a summary wanted, none found; the end of its output:")
        print("\n".join(text.splitlines()[-20:]))
        return 1
    reported = int(summary[1]) + int(summary[2])
    if reported and not counts:
        print(f"racecheck: {reported} reports that this program can read wanted, none found")
        return 1
    print(f"racecheck: {reported} reports, {bad} kinds of them unknown")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
