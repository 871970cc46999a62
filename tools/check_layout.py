"""Checks that docs/layout.md names every file of include/, src/ and python/, and no other: [ROOT].

A heading `### src/plan` opens a folder; the first cell of each row below it names its files in
backticks, or a folder with a slash at the end.
"""

import pathlib
import re
import sys

WATCHED = ("include", "src", "python")
SUFFIXES = {".h", ".cpp", ".cuh", ".cu", ".py"}


def named(text: str) -> set[str]:
    folder, found = "", set()
    for line in text.splitlines():
        if line.startswith("#"):
            folder = line.removeprefix("### ").strip() if line.startswith("### ") else ""
        elif folder and line.startswith("|"):
            cell = line.split("|")[1]
            found |= {f"{folder}/{name}" for name in re.findall(r"`([^`]+)`", cell)}
    return found


def check(root: pathlib.Path) -> list[str]:
    names = named((root / "docs" / "layout.md").read_text(encoding="utf-8"))
    folders = tuple(name for name in names if name.endswith("/"))
    there = {
        path.relative_to(root).as_posix()
        for folder in WATCHED
        for path in (root / folder).rglob("*")
        if path.suffix in SUFFIXES and path.is_file()
    }
    missing = sorted(n for n in there - names if not n.startswith(folders))
    missing = [name for name in missing if name != "python/monomoe/__main__.py"]
    gone = sorted(name for name in names - there if not (root / name).is_dir())
    errors = [f"docs/layout.md: no sentence for {name}: what may be touched there?" for name in missing]
    return errors + [f"docs/layout.md: no such file: {name}" for name in gone]


def main() -> int:
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent.parent)
    errors = check(root.resolve())
    print("\n".join(errors or ["docs/layout.md: names every file"]))
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
