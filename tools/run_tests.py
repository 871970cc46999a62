"""Runs everything that needs no GPU: `run_tests.py [STEP...]`; called by `make test`.

Each step writes its output to build/logs/STEP.log; it is shown here only if the step fails, or with
V=1 in the environment. Twice a minute a line says what a step is at. All steps run, whatever fails;
the last line says "N passed, N failed".
"""

import dataclasses
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import threading
import time
import xml.etree.ElementTree

ROOT = pathlib.Path(__file__).resolve().parent.parent
LOGS = ROOT / "build" / "logs"
PYTHON = sys.executable
TIME_LIMIT_S = 1500  # a step, compiling included
HEARTBEAT_S = 30  # a step says that it lives, and where it is
TAIL_LINES = 150

EXAMPLE = ROOT / "build" / "example"


def cmake_steps(preset: str, name: str) -> list[list[str]]:
    junit = str(LOGS / f"{name}.xml")
    return [
        ["cmake", "--preset", preset],
        ["cmake", "--build", "--preset", preset],
        [*fixed_addresses(preset), "ctest", "--preset", preset, "--output-junit", junit],
    ]


def pytest_steps() -> list[list[str]]:
    return [[PYTHON, "-m", "pytest", "-q", f"--junitxml={LOGS / 'python.xml'}"]]


def fixed_addresses(preset: str) -> list[str]:
    """TSan of g++ 12 dies on kernels that randomise addresses widely; turn that off if we may."""
    prefix = ["setarch", "-R"]
    if preset != "cpu-tsan" or not shutil.which("setarch"):
        return []
    allowed = subprocess.run([*prefix, "true"], capture_output=True).returncode == 0
    return prefix if allowed else []


def example_steps() -> list[list[str]]:
    """The C++ example, built as a user would: against an installed library."""
    prefix, build = str(EXAMPLE / "prefix"), str(EXAMPLE / "build")
    return [
        ["cmake", "-E", "rm", "-rf", str(EXAMPLE)],
        ["cmake", "--install", "build/cpu", "--prefix", prefix, "--component", "cpp"],
        ["cmake", "-G", "Ninja", "-S", "examples/cpp", "-B", build, f"-DCMAKE_PREFIX_PATH={prefix}"],
        ["cmake", "--build", build],
        [f"{build}/moe_layer"],
    ]


@dataclasses.dataclass
class Step:
    name: str
    what: str
    commands: list[list[str]]


STEPS = [
    Step("includes", "include arrows", [[PYTHON, "tools/check_includes.py"]]),
    Step("layout", "docs/layout.md names every file", [[PYTHON, "tools/check_layout.py"]]),
    Step("docs", "docs/tests.md and errors.md are complete and name tests that exist",
         [[PYTHON, "tools/check_tests_doc.py"], [PYTHON, "tools/check_errors_doc.py"]]),
    Step("format", "clang-format", [[PYTHON, "tools/format.py", "--check"]]),
    Step("tidy", "clang-tidy", [["cmake", "--preset", "cpu"], [PYTHON, "tools/tidy.py"]]),
    Step("cuda", "kernels for sm_90a, ptxas budget", [[PYTHON, "tools/ptxas_budget.py"]]),
    Step("cpp", "C++ tests", cmake_steps("cpu", "cpp")),
    Step("example", "C++ example against the installed library", example_steps()),
    Step("python", "Python tests", pytest_steps()),
    Step("asan", "C++ tests, address and undefined behaviour", cmake_steps("cpu-asan", "asan")),
    Step("tsan", "C++ tests, data races", cmake_steps("cpu-tsan", "tsan")),
]


@dataclasses.dataclass
class Result:
    passed: int = 0
    failed: int = 0
    skipped: int = 0


class Heartbeat:
    """Prints every HEARTBEAT_S seconds what a command said last."""

    def __init__(self):
        self.latest = b""
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(time.monotonic(),), daemon=True)
        self._thread.start()

    def _run(self, start: float) -> None:
        while not self._ended.wait(HEARTBEAT_S):
            said = self.latest.decode(errors="replace").strip()
            print(f"      {time.monotonic() - start:5.0f} s  {said[:80]}", flush=True)

    def stop(self) -> None:
        self._ended.set()
        self._thread.join()


def run_logged(command: list[str], log: pathlib.Path, deadline: float) -> int:
    """Exit status; output goes to the log, and to ours with V=1. Ends the whole process group."""
    with log.open("ab") as file:
        file.write(("$ " + " ".join(command) + "\n").encode())
        file.flush()
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        expired = threading.Event()

        def expire() -> None:
            expired.set()
            os.killpg(process.pid, signal.SIGKILL)

        timer = threading.Timer(max(0.0, deadline - time.monotonic()), expire)
        timer.start()
        heartbeat = Heartbeat()
        try:
            for line in process.stdout:
                file.write(line)
                heartbeat.latest = line
                if os.environ.get("V") == "1":
                    sys.stdout.buffer.write(line)
                    sys.stdout.flush()
            status = process.wait()
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            raise
        finally:
            timer.cancel()
            heartbeat.stop()
        if expired.is_set():
            file.write(f"\nended after {TIME_LIMIT_S} s\n".encode())
    return status


def counted(junit: pathlib.Path, ok: bool) -> Result:
    """Tests of a step: what ctest or pytest wrote down, else the step itself is one."""
    if not junit.exists():
        return Result(passed=1) if ok else Result(failed=1)
    root = xml.etree.ElementTree.parse(junit).getroot()
    result = Result()
    for suite in root.iter("testsuite"):
        count = {key: int(value) for key, value in suite.items() if value.isdigit()}
        failed = count.get("failures", 0) + count.get("errors", 0)
        skipped = count.get("skipped", 0) + count.get("disabled", 0)
        result.passed += count["tests"] - failed - skipped
        result.failed += failed
        result.skipped += skipped
    if not ok and result.failed == 0:
        result.failed = 1
    return result


def run_step(step: Step) -> tuple[bool, Result]:
    log = LOGS / f"{step.name}.log"
    junit = LOGS / f"{step.name}.xml"
    log.unlink(missing_ok=True)
    junit.unlink(missing_ok=True)
    deadline = time.monotonic() + TIME_LIMIT_S
    ok = all(run_logged(command, log, deadline) == 0 for command in step.commands)
    text = log.read_text(encoding="utf-8", errors="replace")
    if not ok:
        print("\n".join(text.splitlines()[-TAIL_LINES:]))
        print(f"the whole output: {log.relative_to(ROOT)}")
    return ok, counted(junit, ok)


def main() -> int:
    wanted = sys.argv[1:]
    unknown = set(wanted) - {step.name for step in STEPS}
    if unknown:
        known = ", ".join(step.name for step in STEPS)
        print(f"steps: of {known} wanted, {', '.join(sorted(unknown))} given", file=sys.stderr)
        return 2
    # cmake, ninja and the clang tools of the virtual environment come first
    bin_dir = pathlib.Path(PYTHON).parent
    os.environ["PATH"] = f"{bin_dir}{os.pathsep}{os.environ['PATH']}"
    os.environ["VIRTUAL_ENV"] = str(bin_dir.parent)
    LOGS.mkdir(parents=True, exist_ok=True)
    steps = [step for step in STEPS if not wanted or step.name in wanted]
    total, rows = Result(), []
    for number, step in enumerate(steps, 1):
        print(f"[{number}/{len(steps)}] {step.name}: {step.what}", flush=True)
        start = time.monotonic()
        ok, result = run_step(step)
        total.passed += result.passed
        total.failed += result.failed
        total.skipped += result.skipped
        row = f"{'ok' if ok else 'FAILED':6}  {step.name:9} {time.monotonic() - start:5.0f} s  "
        rows.append(row + f"{result.passed} passed, {result.failed} failed")
        print("      " + rows[-1], flush=True)
    print("\n" + "\n".join(rows))
    skipped = f", {total.skipped} skipped" if total.skipped else ""
    print(f"\n{total.passed} passed, {total.failed} failed{skipped}")
    return 1 if total.failed else 0


if __name__ == "__main__":
    sys.exit(main())
