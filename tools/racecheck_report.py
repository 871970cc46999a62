"""Reads what compute-sanitizer's racecheck says: `racecheck_report.py < output`.

Prints how many reports there are of each pair of places, and fails for any that is not known to be
a false alarm, or if racecheck did not come to its end. Known are (docs/tests.md says why):
  entries of a worker's queue: written by the scheduler role, read by the others
  the count of entries that the loader has begun with
"""

import collections
import dataclasses
import re
import sys

FIRST = re.compile(r"=+ (?:Error|Warning): Race reported between (\w+) access at (.*?)(?:\+0x\w+)?"
                   r" in (\S+):\d+")  # fmt: skip
NEXT = re.compile(r"=+\s+and (\w+) access at (.*?)(?:\+0x\w+)? in (\S+):\d+")
SUMMARY = re.compile(r"RACECHECK SUMMARY: \d+ hazards? displayed \((\d+) errors?, (\d+) warnings?\)")
NAME = re.compile(r"monomoe::\w+::(\w+)")


@dataclasses.dataclass(frozen=True)
class Access:
    kind: str  # Read or Write
    function: str
    file: str


def access(kind: str, function: str, file: str) -> Access:
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
    if kinds["Write"] in ("describe", "scheduler_role"):  # a queue entry
        return kinds["Read"] not in ("describe", "scheduler_role")
    return kinds == {"Read": "wait_for_loader", "Write": "loader_role"}


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
