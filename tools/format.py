"""Formats the C++ sources with clang-format 14: `format.py`, or `format.py --check`.

The check also wants ASCII only and a newline at the end of each file.
"""

import pathlib
import subprocess
import sys

import clang_tools

ROOT = pathlib.Path(__file__).resolve().parent.parent
FOLDERS = ("include", "src", "tests", "bench", "examples", "python/src")
SUFFIXES = {".h", ".cpp", ".cuh", ".cu"}


def sources() -> list[pathlib.Path]:
    found = [p for folder in FOLDERS for p in (ROOT / folder).rglob("*") if p.suffix in SUFFIXES]
    return sorted(found)


def text_problems(path: pathlib.Path) -> list[str]:
    data = path.read_bytes()
    shown = path.relative_to(ROOT)
    found = []
    for number, line in enumerate(data.split(b"\n"), 1):
        if not line.isascii():
            found.append(f"{shown}:{number}: ASCII only wanted")
    if data and not data.endswith(b"\n"):
        found.append(f"{shown}: newline at the end wanted")
    return found


def main() -> int:
    check = sys.argv[1:] == ["--check"]
    paths = sources()
    command = [clang_tools.binary("clang-format"), "--style=file"]
    command += ["--dry-run", "-Werror"] if check else ["-i"]
    status = subprocess.run([*command, *map(str, paths)], cwd=ROOT).returncode
    problems = [line for path in paths for line in text_problems(path)]
    print("\n".join([*problems, f"{len(paths)} files looked at"]))
    return 1 if problems or status else 0


if __name__ == "__main__":
    sys.exit(main())
