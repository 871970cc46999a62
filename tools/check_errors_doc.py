"""Checks docs/errors.md, the table of every message: `check_errors_doc.py [--list] [ROOT]`.

A message of the library is what follows from its source where it is raised: in C++ a call of
`refuse`, `refuse_value`, `check_range` or `check_option`, or a `throw`; in Python a `raise`. Text
that is only known when it happens is written as an ellipsis. What is streamed together
(runtime/faults.cpp, runtime/step.cpp) is looked for piece by piece.

A row of the table is `| message | raised as | tests |`. Each message has its row and each row its
message, with the type that Python raises; tests are named as in docs/tests.md and exist, or the
cell says `none: reason`.
--list prints the messages of the sources.
"""

import ast
import dataclasses
import pathlib
import re
import sys

import check_tests_doc

GAP = "\u2026"
PYTHON = ("functional.py", "layer.py", "ops.py")
CPP = ("src/**/*.cpp", "src/**/*.h", "python/src/*.cpp")
STREAMED = ("src/runtime/faults.cpp", "src/runtime/step.cpp")
TYPES = {
    "kValue": "ValueError",
    "kType": "TypeError",
    "kState": "RuntimeError",
    "kFault": "RuntimeError",
    "kBackend": "RuntimeError",
}
STRING = r'"(?:[^"\\]|\\.)*"'
CALL = re.compile(
    r"\b(refuse|refuse_value|check_range|check_option|throw\s+(?:ffi::|std::)?\w+)\s*([({])"
)


@dataclasses.dataclass(frozen=True)
class Message:
    text: str
    error: str
    where: str


# ------------------------------------------------------------------------------------------ C++


def without_comments(text: str) -> str:
    return re.sub(rf"({STRING})|//[^\n]*", lambda m: m[1] or "", text)


def arguments(text: str, at: int) -> tuple[list[str], int]:
    """Arguments of the bracket that opens at `at`, and where it closes."""
    parts, depth, begin = [], 0, at + 1
    token = re.compile(rf"{STRING}|'(?:[^'\\]|\\.)'|[()\[\]{{}},]")
    for found in token.finditer(text, at):
        c = found[0]
        if c in "([{":
            depth += 1
        elif c in ")]}":
            depth -= 1
            if depth == 0:
                parts.append(text[begin : found.start()].strip())
                return [p for p in parts if p], found.end()
        elif c == "," and depth == 1:
            parts.append(text[begin : found.start()].strip())
            begin = found.end()
    raise ValueError(f"a bracket that closes wanted: {text[at : at + 60]}")


def terms(expression: str) -> list[str]:
    """An expression, cut at its outer plus signs."""
    parts, depth, begin = [], 0, 0
    for found in re.finditer(rf"{STRING}|'(?:[^'\\]|\\.)'|[()\[\]{{}}+?]", expression):
        c = found[0]
        depth += (c in "([{") - (c in ")]}")
        if c == "?" and depth == 0:
            return [GAP]
        if c == "+" and depth == 0:
            parts.append(expression[begin : found.start()])
            begin = found.end()
    return [*parts, expression[begin:]]


def literal(code: str) -> str:
    return "".join(ast.literal_eval(s) for s in re.findall(STRING, code))


def template(expression: str) -> str:
    """What an expression of strings says."""
    said = ""
    for term in terms(expression):
        inside = re.fullmatch(r"\s*std::string\s*\{(.*)\}\s*", term, re.S)
        if inside:
            said += template(inside[1])
        elif re.fullmatch(rf"\s*(?:{STRING}\s*)+", term):
            said += literal(term)
        else:
            said += GAP
    return re.sub(f"{GAP}+", GAP, said)


def cpp_message(name: str, given: list[str]) -> tuple[str, str] | None:
    """(text, type) of a call; None if it says nothing itself."""
    if name == "refuse" and len(given) == 5:
        subject, wanted, found, remedy = map(template, given[1:])
        return f"{subject}: {wanted} wanted, {found}; {remedy}", TYPES.get(
            given[0].removeprefix("ErrorCode::"), ""
        )
    if name == "refuse_value" and len(given) == 4:
        subject, wanted, found, remedy = map(template, given)
        return f"{subject}: {wanted} wanted, {found} given; {remedy}", "ValueError"
    if name.startswith("check_") and len(given) == 5:
        return (
            f"{template(given[0])}: a value in [{GAP}, {GAP}] wanted, {GAP} given; "
            f"{template(given[4])}",
            "ValueError",
        )
    if name.startswith("throw") and given:
        code = given[0].removeprefix("ErrorCode::")
        if code in TYPES and len(given) > 1:
            return template(given[1]), TYPES[code]
        if len(given) == 1:
            return template(given[0]), "RuntimeError"
    return None


def cpp_messages(path: pathlib.Path, where: str) -> list[Message]:
    text = without_comments(path.read_text(encoding="utf-8"))
    found = []
    for call in CALL.finditer(text):
        if re.search(r"\bvoid\s+$", text[: call.start()]):
            continue  # the definition
        given, _ = arguments(text, call.end() - 1)
        said = cpp_message(re.sub(r"\s+", " ", call[1]), given)
        if said and re.search(r"[a-z]{3}", re.sub(r"wanted|given|a value in", "", said[0])):
            found.append(Message(*said, where))
    return found


def pieces(path: pathlib.Path) -> list[str]:
    """Texts of at least two words, in the order of the file."""
    code = re.sub(r"#include[^\n]*", "", without_comments(path.read_text(encoding="utf-8")))
    said = [ast.literal_eval(s) for s in re.findall(STRING, code)]
    return [s for s in said if re.search(r"[a-z]+ [a-z]", s)]


# --------------------------------------------------------------------------------------- Python


def python_template(node: ast.expr) -> str:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        said = "".join(
            GAP if isinstance(v, ast.FormattedValue) else str(v.value) for v in node.values
        )
        return re.sub(f"{GAP}+", GAP, said)
    return ""


def python_messages(path: pathlib.Path, where: str) -> list[Message]:
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        call = node.exc if isinstance(node, ast.Raise) else None
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.args:
            text = python_template(call.args[0])
            if text:
                found.append(Message(text, call.func.id, where))
    return found


# ---------------------------------------------------------------------------------------- check


def messages(root: pathlib.Path) -> list[Message]:
    found = []
    for pattern in CPP:
        for path in sorted(root.glob(pattern)):
            where = path.relative_to(root).as_posix()
            if where not in STREAMED:
                found += cpp_messages(path, where)
    for name in PYTHON:
        path = root / "python" / "monomoe" / name
        if path.exists():
            found += python_messages(path, f"python/monomoe/{name}")
    return list(dict.fromkeys(found))


@dataclasses.dataclass(frozen=True)
class Row:
    line: int
    text: str
    error: str
    tests: tuple[str, ...]
    untested: bool

    def pattern(self) -> re.Pattern:
        """What a message of this row looks like."""
        return re.compile(".*".join(map(re.escape, self.text.split(GAP))), re.S)


def rows(root: pathlib.Path) -> list[Row]:
    text = (root / "docs" / "errors.md").read_text(encoding="utf-8")
    found = []
    for line, cells in check_tests_doc.rows(text):
        if len(cells) == 3:
            said = re.fullmatch(r"`+ ?(.*?) ?`+", cells[0])
            tests = tuple(re.findall(r"`([^`]+)`", cells[2]))
            untested = re.match(r"none: \w", cells[2]) is not None
            found.append(Row(line, said[1] if said else cells[0], cells[1], tests, untested))
    return found


def check(root: pathlib.Path) -> list[str]:
    if not (root / "docs" / "errors.md").exists():
        return ["docs/errors.md: wanted, not found"]
    table, said = rows(root), messages(root)
    known = check_tests_doc.known_tests(root)
    errors = []
    documented = {(row.text, row.error) for row in table}
    for m in said:
        if (m.text, m.error) not in documented:
            errors.append(f"docs/errors.md: no row for ({m.where}): | `{m.text}` | {m.error} |")
    spoken = {(m.text, m.error) for m in said}
    for name in STREAMED:
        path = root / name
        for piece in pieces(path) if path.exists() else []:
            if not any(piece in row.text for row in table):
                errors.append(f"docs/errors.md: no row with ({name}): {piece}")
    streamed = [p for n in STREAMED if (root / n).exists() for p in pieces(root / n)]
    for row in table:
        at = f"docs/errors.md:{row.line}"
        if (row.text, row.error) not in spoken and not any(p in row.text for p in streamed):
            errors.append(f"{at}: no source says ({row.error}): {row.text}")
        if not row.tests and not row.untested:
            errors.append(f"{at}: no test for: {row.text}")
        errors += [f"{at}: no such test: {t}" for t in row.tests if t not in known]
    return errors


def main() -> int:
    given = [a for a in sys.argv[1:] if a != "--list"]
    root = pathlib.Path(given[0] if given else pathlib.Path(__file__).parent.parent).resolve()
    if "--list" in sys.argv:
        for m in messages(root):
            print(f"| `{m.text}` | {m.error} | {m.where} |")
        return 0
    errors = check(root)
    print("\n".join(errors or ["docs/errors.md: every message has a row and a test"]))
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
