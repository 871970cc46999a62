"""The checkers of tools/ find what they are there to find, and this repository passes them."""

import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tools"))

import check_includes  # noqa: E402
import check_layout  # noqa: E402
import check_errors_doc  # noqa: E402
import check_tests_doc  # noqa: E402
import requirements  # noqa: E402
import run_tests as steps  # noqa: E402


def tree(root: pathlib.Path, files: dict[str, str]) -> pathlib.Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


ORDERLY = {
    "include/monomoe/layer.h": "#include <vector>\n",
    "include/monomoe/monomoe.h": '#include "monomoe/layer.h"\n',
    "src/base/hd.h": "",
    "src/plan/order.h": '#include "base/hd.h"\n',
    "src/task/down.h": '#include "plan/order.h"\n#include "task/up.h"\n',
    "src/task/up.h": "",
    "src/comm/local.h": '#include "task/down.h"\n',
    "src/trace/event.h": '#include "plan/order.h"\n',
    "src/arch/cuda/signal.cuh": '#include <cuda/ptx>\n#include "comm/local.h"\n',
    "src/arch/sm90/mma.cuh": '#include "arch/cuda/signal.cuh"\n',
    "src/arch/sm90/backend.cpp": "#include <cuda_runtime.h>\n",
    "src/arch/cpu/worker.h": '#include "trace/event.h"\n',
    "src/runtime/step.cpp": '#include "monomoe/layer.h"\n#include "arch/cpu/worker.h"\n',
    "examples/cpp/main.cpp": "#include <monomoe/monomoe.h>\n",
    "python/src/bind.cpp": '#include "monomoe/monomoe.h"\n#include <tvm/ffi/function.h>\n',
}


def test_include_arrows_of_this_repository():
    assert check_includes.check(ROOT) == []


def test_orderly_tree_passes(tmp_path):
    assert check_includes.check(tree(tmp_path, ORDERLY)) == []


@pytest.mark.parametrize(
    ("name", "include", "rule"),
    [
        ("src/base/hd.h", '"plan/order.h"', "base must not include plan"),
        ("src/plan/order.h", '"task/down.h"', "plan must not include task"),
        ("src/task/up.h", '"comm/local.h"', "task must not include comm"),
        ("src/comm/local.h", '"trace/event.h"', "comm must not include trace"),
        ("src/trace/event.h", '"comm/local.h"', "trace must not include comm"),
        ("src/arch/cpu/worker.h", '"arch/cuda/pipeline.h"', "arch/cpu must not include arch/cuda"),
        ("src/arch/cuda/signal.cuh", '"arch/sm90/mma.cuh"', "arch/cuda must not include arch/sm90"),
        ("src/arch/cpu/worker.h", '"runtime/step.h"', "arch/cpu must not include runtime"),
        ("src/plan/order.h", '"monomoe/layer.h"', "only runtime/ includes the public interface"),
        ("src/plan/order.h", '"order.h"', "no such file in src/"),
        ("src/plan/order.h", "<base/hd.h>", "write our own headers in quotes"),
        ("src/plan/order.h", "<cuda_runtime.h>", "compile without CUDA"),
        ("src/arch/cpu/worker.h", '"arch/cuda/signal.cuh"', "compile without nvcc"),
        ("src/magic/spell.h", '"base/hd.h"', "is no folder of docs/layout.md"),
        ("include/monomoe/layer.h", '"plan/order.h"', "public headers include monomoe/"),
        ("include/monomoe/layer.h", "<cuda_runtime.h>", "public headers are free of CUDA"),
        ("examples/cpp/main.cpp", '"plan/order.h"', "only the public interface"),
        ("python/src/bind.cpp", '"arch/cpu/worker.h"', "only the public interface"),
    ],
)
def test_include_arrow_violation_is_found(tmp_path, name, include, rule):
    more = {"src/arch/cuda/pipeline.h": "", "src/runtime/step.h": ""}
    root = tree(tmp_path, ORDERLY | more | {name: f"#include {include}\n"})
    errors = check_includes.check(root)
    assert any(rule in line and line.startswith(name) for line in errors), errors


LAYOUT = """### src/base
| file | may be touched to |
|---|---|
| `hd.h` | macros |
### src/plan
| `order.h`, `plan.h` | order |
### python
| `monomoe/cli/` | one file a command |
"""


def test_layout_names_every_file_of_this_repository():
    assert check_layout.check(ROOT) == []


def test_layout_difference_is_found(tmp_path):
    files = {"docs/layout.md": LAYOUT, "python/monomoe/cli/demo.py": ""}
    files |= {"src/base/hd.h": "", "src/plan/order.h": "", "src/plan/plan.h": ""}
    root = tree(tmp_path, files)
    assert check_layout.check(root) == []
    (root / "src/plan/plan.h").rename(root / "src/plan/other.h")
    errors = check_layout.check(root)
    assert len(errors) == 2
    assert "src/plan/other.h" in errors[0] and "no such file: src/plan/plan.h" in errors[1]


DOC = """# Tests
| promise | tests |
|---|---|
| adds up | exactly, by `Plan.AddsUp` and `test_sum.py::test_sum` |
| all of it | `Plan.*`, `test_sum.py`, `step:tidy`, `Headers.Alone` |
"""

TESTS = {
    "tests/plan/plan_test.cpp": "TEST(Plan, AddsUp) {}\nTEST_P(Other, Name) {}\n",
    "tests/python/test_sum.py": "def test_sum():\n    pass\n",
    "cmake/Tests.cmake": "add_test(NAME Headers.Alone COMMAND x)\n",
    "tools/run_tests.py": 'STEPS = [\n    Step("tidy", "clang-tidy", []),\n]\n',
}


def test_tests_doc_that_holds_passes(tmp_path):
    assert check_tests_doc.check(tree(tmp_path, TESTS | {"docs/tests.md": DOC})) == []


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ("| lost | `Plan.Lost` |", "no such test: Plan.Lost"),
        ("| lost | `test_sum.py::test_lost` |", "no such test: test_sum.py::test_lost"),
        ("| lost | `step:lost` |", "no such test: step:lost"),
        ("| untested | later |", "no test for: untested"),
        ("| untested | |", "no test for: untested"),
    ],
)
def test_tests_doc_problem_is_found(tmp_path, row, problem):
    root = tree(tmp_path, TESTS | {"docs/tests.md": DOC + row + "\n"})
    errors = check_tests_doc.check(root)
    assert len(errors) == 1 and problem in errors[0], errors


def test_tests_doc_without_a_table_is_refused(tmp_path):
    root = tree(tmp_path, TESTS | {"docs/tests.md": "# Tests\n"})
    assert len(check_tests_doc.check(root)) == 1
    (root / "docs/tests.md").unlink()
    assert len(check_tests_doc.check(root)) == 1


SOURCES = {
    "src/runtime/validate.cpp": '''
[[noreturn]] void refuse_value(const std::string& subject, const std::string& wanted) {}
void f(int v) {
  if (v < 0) refuse_value("v", "a value >= " + text(0) +  // why
                          ", or none", v ? "x" : y(1, "z"), "pass " "another");
  throw Error{ErrorCode::kState, std::string{"group: " } + name(v) + " wanted, none; make one"};
}
''',
    "src/runtime/faults.cpp": 's << "rank " << r << " waited in " << f.name << "; close it";\n',
    "python/monomoe/ops.py": "def f(x):\n    raise TypeError(f\"{x}: one {x + 1} \"\n"
    '                    "wanted; pass it")\n',
    "tests/python/test_sum.py": "def test_adds():\n",
}
ROWS = """# Messages
| message | raised as | tests |
|---|---|---|
| `v: a value >= \u2026, or none wanted, \u2026 given; pass another` | ValueError | `test_sum.py` |
| `group: \u2026 wanted, none; make one` | RuntimeError | `test_sum.py::test_adds` |
| `rank \u2026 waited in \u2026; close it` | RuntimeError | none: nobody waits |
| `\u2026: one \u2026 wanted; pass it` | TypeError | `test_sum.py` |
"""


def test_errors_doc_that_holds_passes(tmp_path):
    assert check_errors_doc.check(tree(tmp_path, SOURCES | {"docs/errors.md": ROWS})) == []


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("pass another", "pass any", "no row for (src/runtime/validate.cpp)"),
        ("pass another", "pass any", "no source says (ValueError)"),
        ("RuntimeError | `test_sum.py::", "ValueError | `test_sum.py::", "| RuntimeError |"),
        (" waited in ", " slept in ", "no row with (src/runtime/faults.cpp):  waited in "),
        ("none: nobody waits", "", "no test for: rank"),
        ("::test_adds", "::test_lost", "no such test: test_sum.py::test_lost"),
        ("one \u2026", "two \u2026", "no row for (python/monomoe/ops.py)"),
    ],
)
def test_errors_doc_problem_is_found(tmp_path, old, new, problem):
    root = tree(tmp_path, SOURCES | {"docs/errors.md": ROWS.replace(old, new)})
    errors = check_errors_doc.check(root)
    assert any(problem in error for error in errors), errors


def test_requirements_come_from_pyproject():
    lines = requirements.requirements(["build", "run", "demo", "test", "lint"])
    names = {line.split(">")[0].split("=")[0] for line in lines}
    assert {"scikit-build-core", "torch", "apache-tvm-ffi", "matplotlib", "pytest"} <= names


@pytest.mark.parametrize(
    ("junit", "ok", "wanted"),
    [
        ('<testsuite tests="7" failures="0" disabled="0" skipped="1"/>', True, (6, 0, 1)),
        ('<testsuite tests="7" failures="2" disabled="0" skipped="0"/>', False, (5, 2, 0)),
        (
            '<testsuites><testsuite errors="1" failures="1" skipped="0" tests="4"/></testsuites>',
            False,
            (2, 2, 0),
        ),
        ('<testsuite tests="7" failures="0"/>', False, (7, 1, 0)),
        (None, True, (1, 0, 0)),
        (None, False, (0, 1, 0)),
    ],
)
def test_step_counts_what_its_runner_counted(tmp_path, junit, ok, wanted):
    path = tmp_path / "junit.xml"
    if junit:
        path.write_text(junit)
    result = steps.counted(path, ok)
    assert (result.passed, result.failed, result.skipped) == wanted


def test_step_that_hangs_is_ended_and_fails(tmp_path):
    log = tmp_path / "log"
    assert steps.run_logged([sys.executable, "-c", "while True: pass"], log, 0.0) != 0
    assert "ended after" in log.read_text()


def test_step_that_takes_long_says_that_it_lives_and_where_it_is(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(steps, "HEARTBEAT_S", 0.2)
    program = "import time; print('Start 7: Plan.Sum', flush=True); time.sleep(1)"
    assert steps.run_logged([sys.executable, "-c", program], tmp_path / "log", 9e9) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) >= 2 and all(" s  " in line for line in lines), lines
    assert "Start 7: Plan.Sum" in lines[-1]


def test_checkers_run_as_programs():
    for name in ("check_includes.py", "requirements.py", "check_machine.py"):
        done = subprocess.run([sys.executable, ROOT / "tools" / name], capture_output=True)
        assert done.returncode == 0, done.stderr
