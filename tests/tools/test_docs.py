"""The pages of docs/ are kept true where a program can see it."""

import pathlib
import re
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])


def enumerators(header: str, enum: str) -> list[str]:
    text = (ROOT / header).read_text(encoding="utf-8")
    body = re.search(rf"enum class {enum} : \w+ \{{(.*?)\}};", text, re.S)
    return re.findall(r"^\s*(k\w+)", body.group(1), re.M) if body else []


def table_rows(page: str) -> list[str]:
    return [x for x in (ROOT / page).read_text(encoding="utf-8").splitlines() if x.startswith("|")]


def test_memory_model_has_a_row_for_every_counter():
    rows = table_rows("docs/memory_model.md")
    counters = enumerators("src/plan/counters.h", "Counter")
    assert len(counters) >= 19
    counters += enumerators("src/plan/counters.h", "LaunchCounter")
    missing = [c for c in counters if not any(f"`{c}`" in row.split("|")[1] for row in rows)]
    assert missing == []


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(page):
    text = page.read_text(encoding="utf-8")
    links = [x for x in re.findall(r"\]\(([^)]+)\)", text) if not x.startswith(("http", "#"))]
    missing = [x for x in links if not (page.parent / x.split("#")[0]).exists()]
    assert missing == []


def test_notes_are_numbered_without_gaps_and_named_by_their_title():
    notes = sorted((ROOT / "docs" / "notes").glob("*.md"))
    assert [n.name[:4] for n in notes] == [f"{i:04}" for i in range(1, len(notes) + 1)]
    for note in notes:
        assert note.read_text(encoding="utf-8").startswith(f"# {note.name[:4]} "), note.name


def test_architecture_names_every_task_kind():
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    graph = (ROOT / "src" / "plan" / "graph.h").read_text(encoding="utf-8")
    names = re.findall(r'"(\w+)"', re.search(r"kNames\[kNumKinds\]\{(.*?)\}", graph, re.S).group(1))
    assert len(names) >= 18
    for short, long in (
        ("shared dgrads", "shared_dgrad_down, shared_dgrad_gate_up"),
        ("shared wgrads", "shared_wgrad_gate_up, shared_wgrad_down, shared_wgrad_score"),
    ):
        text = text.replace(short, long)
    assert [n for n in names if not re.search(rf"\b{n}\b", text)] == []


def test_field_cases_are_where_their_page_says():
    def numbers(text):
        return set(re.findall(r"\bF\d{2,3}\b", text))

    def named(folder, pattern):
        files = sorted((ROOT / folder).rglob(pattern))
        text = "".join(path.read_text(encoding="utf-8") for path in files)
        return set(re.findall(r"(?:def test_|TEST\(FieldCases, )(F\d{2,3})_", text))

    page = (ROOT / "docs" / "field_cases.md").read_text(encoding="utf-8")
    here, elsewhere = page.split("## Tested elsewhere")
    first = [row.split("|")[1] for row in table_rows("docs/field_cases.md")]
    assert numbers(" ".join(first)) == numbers(page)
    rows = [line for line in elsewhere.splitlines() if "tests/device" in line]
    on_device = numbers(" ".join(line.split("|")[1] for line in rows))
    listed = numbers(here.split("## Tested without")[1])
    assert listed == named("tests/python", "*.py") | named("tests/runtime", "*.cpp")
    assert on_device == named("tests/device", "*.py")
    assert len(numbers(page)) == 83


README_PROGRAMS = re.findall(
    r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.S
)


@pytest.mark.parametrize("number", range(len(README_PROGRAMS)))
def test_readme_example_runs(tmp_path, number):
    program = tmp_path / "readme.py"
    program.write_text(README_PROGRAMS[number], encoding="utf-8")
    done = subprocess.run([sys.executable, program], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert ("torch.Size([8, 2, 128, 64])" if number == 0 else "loss ") in done.stdout


def test_readme_has_the_examples_that_are_run():
    assert len(README_PROGRAMS) == 2 and "class Block" in README_PROGRAMS[1]


def test_readme_commands_exist():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for target in re.findall(r"^make (\w+)", readme, re.M):
        assert re.search(rf"^{target}:", makefile, re.M), target


def test_licence_is_apache():
    text = (ROOT / "LICENSE").read_text(encoding="utf-8")
    assert "Apache License" in text and "Version 2.0, January 2004" in text
    assert 'license = "Apache-2.0"' in (ROOT / "pyproject.toml").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "page",
    ["README.md", "CONTRIBUTING.md", "CHANGELOG.md"]
    + [f"docs/{n}.md" for n in ("architecture", "layout", "style", "numerics", "token_walk",
                                "memory_model", "tests", "bench")],
)  # fmt: skip
def test_pages_are_there(page):
    assert (ROOT / page).stat().st_size > 200


def test_token_walk_names_files_that_exist():
    text = (ROOT / "docs" / "token_walk.md").read_text(encoding="utf-8")
    names = set(re.findall(r"\b(?:[a-z0-9]+/)+\w+\.(?:h|cpp)\b", text))
    assert len(names) > 20
    assert sorted(n for n in names if not (ROOT / "src" / n).exists()) == []
