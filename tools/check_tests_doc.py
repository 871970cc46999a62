"""Checks docs/tests.md, the map from promises to tests: `check_tests_doc.py [ROOT]`.

docs/tests.md consists of tables. A row is `| promise | tests |`; its last cell names at least one
test in backticks, and everything in backticks there exists:
  `Suite.Name`, `Suite.*`                      TEST, TEST_F or TEST_P of a tests/**/*_test.cpp
  `test_file.py::test_name`, `test_file.py`    a pytest test below tests/, or all of a file
  `step:NAME`                                  a step of tools/run_tests.py
Other things in the last cell (prose without backticks) are free.
"""

import pathlib
import re
import sys

CPP_TEST = re.compile(r"^\s*(?:TYPED_)?TEST(?:_F|_P)?\(\s*(\w+)\s*,\s*(\w+)\s*\)", re.M)
CTEST_NAME = re.compile(r"add_test\(\s*NAME\s+([\w.]+)")
PY_TEST = re.compile(r"^\s*def (test_\w+)\(", re.M)
STEP = re.compile(r'^\s*Step\("([\w-]+)"', re.M)
RULE = re.compile(r"^\|[\s:|-]+\|$")


def known_tests(root: pathlib.Path) -> set[str]:
    names: set[str] = set()
    for path in (root / "tests").rglob("*_test.cpp"):
        names |= {f"{s}.{n}" for s, n in CPP_TEST.findall(path.read_text(encoding="utf-8"))}
    for path in (root / "cmake").glob("*.cmake"):
        names |= set(CTEST_NAME.findall(path.read_text(encoding="utf-8")))
    names |= {name.split(".")[0] + ".*" for name in names}
    for path in (root / "tests").rglob("test_*.py"):
        tests = PY_TEST.findall(path.read_text(encoding="utf-8"))
        names |= {f"{path.name}::{name}" for name in tests} | ({path.name} if tests else set())
    steps = root / "tools" / "run_tests.py"
    if steps.exists():
        names |= {f"step:{n}" for n in STEP.findall(steps.read_text(encoding="utf-8"))}
    return names


def rows(text: str) -> list[tuple[int, list[str]]]:
    """(line, cells) of every table row below a header and its rule."""
    lines = text.splitlines()
    found = []
    for i, line in enumerate(lines):
        is_row = line.startswith("|") and not RULE.match(line)
        is_header = i + 1 < len(lines) and bool(RULE.match(lines[i + 1]))
        if is_row and not is_header:
            cells = re.split(r"(?<!\\)\|", line.strip().strip("|"))
            found.append((i + 1, [cell.strip() for cell in cells]))
    return found


def check(root: pathlib.Path) -> list[str]:
    doc = root / "docs" / "tests.md"
    if not doc.exists():
        return ["docs/tests.md: wanted, not found"]
    known = known_tests(root)
    table = rows(doc.read_text(encoding="utf-8"))
    errors = [] if table else ["docs/tests.md: a table of promises and tests wanted, none found"]
    for line, cells in table:
        names = re.findall(r"`([^`]+)`", cells[-1]) if len(cells) >= 2 else []
        if not names:
            errors.append(f"docs/tests.md:{line}: no test for: {cells[0]}")
        errors += [f"docs/tests.md:{line}: no such test: {n}" for n in names if n not in known]
    return errors


def main() -> int:
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent.parent)
    errors = check(root.resolve())
    print("\n".join(errors or ["docs/tests.md: every promise has a test that exists"]))
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
