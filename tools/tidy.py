"""Runs clang-tidy on src/**/*.cpp with the flags of build/cpu: `tidy.py [FILE...]`.

A file that was clean is looked at again only when it, a header or .clang-tidy has changed.
"""

import concurrent.futures
import hashlib
import json
import os
import pathlib
import re
import subprocess
import sys

import clang_tools

ROOT = pathlib.Path(__file__).resolve().parent.parent
BUILD = ROOT / "build" / "cpu"
CLEAN = ROOT / "build" / "tidy"


def digest(paths: list[pathlib.Path]) -> str:
    total = hashlib.sha256()
    for path in paths:
        total.update(path.read_bytes() + b"\0")
    return total.hexdigest()


def tidy(path: pathlib.Path) -> tuple[int, str]:
    command = [clang_tools.binary("clang-tidy"), "--quiet", "-p", str(BUILD), str(path)]
    done = subprocess.run(command, capture_output=True, text=True)
    noise = ("warnings generated", "Suppressed ", "Use -header-filter")
    errors = [x for x in done.stderr.splitlines() if not any(n in x for n in noise)]
    return done.returncode, done.stdout + ("\n".join(errors) if done.returncode else "")


def findings(output: str) -> list[str]:
    """Each finding with the lines that explain it; a header's are found once for every file."""
    return re.split(r"^(?=/[^\n]*: (?:error|warning): )", output, flags=re.M)


def main() -> int:
    database = json.loads((BUILD / "compile_commands.json").read_text(encoding="utf-8"))
    wanted = [pathlib.Path(x).resolve() for x in sys.argv[1:]]
    paths = sorted({pathlib.Path(entry["file"]) for entry in database})
    paths = [p for p in paths if p.is_relative_to(ROOT / "src") and (not wanted or p in wanted)]
    headers = sorted([*(ROOT / "src").rglob("*.h"), *(ROOT / "include").rglob("*.h")])
    common = digest([ROOT / ".clang-tidy", *headers])
    CLEAN.mkdir(parents=True, exist_ok=True)
    stamps = {p: CLEAN / f"{digest([p])[:32]}-{common[:32]}" for p in paths}
    todo = [p for p in paths if not stamps[p].exists()]
    failed, shown = 0, set()
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for path, (status, output) in zip(todo, pool.map(tidy, todo)):
            if status:
                failed += 1
                for finding in findings(output):
                    if finding.strip() and finding not in shown:
                        print(finding, end="")
                        shown.add(finding)
            else:
                stamps[path].touch()
    print(f"{len(paths)} files, {len(todo)} looked at now, {failed} with findings")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
