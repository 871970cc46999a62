"""Say what this machine can run, what is missing, and how to get it.

Exit code 0 if the layer runs here on at least one backend.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
from dataclasses import asdict, dataclass
from importlib import metadata

MIN_PYTHON = (3, 10)
MIN_TORCH = (2, 11)
MEASURED_ARCH = (9, 0)  # Hopper


@dataclass(frozen=True)
class Finding:
    """One line: what was looked at, whether it is as wanted, what was found, what to do."""

    subject: str
    state: str  # "ok", "note" (works without) or "missing" (does not work without)
    found: str
    remedy: str = ""


def _version(text: str) -> tuple[int, ...]:
    numbers = []
    for part in text.split("+")[0].split("."):
        if not part.isdigit():
            break
        numbers.append(int(part))
    return tuple(numbers)


def _python() -> Finding:
    wanted = ".".join(map(str, MIN_PYTHON))
    found = f"{platform.python_version()} on {platform.machine()} {platform.system()}"
    if sys.version_info < MIN_PYTHON:
        return Finding("python", "missing", found, f"install Python {wanted} or newer")
    return Finding("python", "ok", found)


def _package(name: str, minimum: tuple[int, ...], state: str, remedy: str) -> Finding:
    try:
        found = metadata.version(name)
    except metadata.PackageNotFoundError:
        return Finding(name, state, "not installed", remedy)
    if _version(found) < minimum:
        return Finding(name, state, found, remedy)
    return Finding(name, "ok", found)


def _torch() -> Finding:
    wanted = ".".join(map(str, MIN_TORCH))
    finding = _package("torch", MIN_TORCH, "missing", f"pip install 'torch>={wanted}'")
    if finding.state == "ok":
        try:
            import torch  # noqa: F401
        except (ImportError, OSError) as error:
            return Finding("torch", "missing", f"{finding.found}, but: {error}",
                           "reinstall torch with its dependencies")  # fmt: skip
    return finding


def _compiler() -> Finding:
    """Only building needs one."""
    source = "#include <span>\nint main() { return static_cast<int>(std::span<int>{}.size()); }\n"
    seen = []
    for name in filter(None, (os.environ.get("CXX"), "c++", "g++", "clang++")):
        path = shutil.which(name)
        if path is None:
            continue
        try:
            done = subprocess.run(
                [path, "-std=c++20", "-fsyntax-only", "-x", "c++", "-"],
                input=source, capture_output=True, text=True, timeout=60,
            )  # fmt: skip
        except (OSError, subprocess.TimeoutExpired):
            continue
        if done.returncode == 0:
            version = subprocess.run([path, "--version"], capture_output=True, text=True)
            return Finding("C++20 compiler", "ok", version.stdout.splitlines()[0])
        seen.append(path)
    found = f"{', '.join(seen)} can't compile C++20" if seen else "none"
    return Finding("C++20 compiler", "note", found, "to build from source: apt install g++ (12 up)")


def _library() -> list[Finding]:
    try:
        from ..functional import native

        version = native().version()
    except (ImportError, OSError, RuntimeError, AttributeError) as error:
        return [Finding("monomoe library", "missing", str(error), "pip install .")]
    found = [Finding("monomoe library", "ok", version)]
    names = list(native().backends())
    if names:
        found.append(Finding("backends", "ok", ", ".join(names)))
    else:
        found.append(Finding("backends", "missing", "none", "rebuild: pip install ."))
    forced = os.environ.get("MONOMOE_BACKEND")
    if forced and forced not in names:
        found.append(
            Finding("MONOMOE_BACKEND", "missing", f"{forced!r} is no backend of this build",
                    "unset it, or set it to one of: " + ", ".join(names))
        )  # fmt: skip
    return found


def _layer() -> Finding:
    """A forward and backward of the smallest layer."""
    try:
        from .. import reference, testing
        from ..functional import Group

        case = testing.Case(33, 64, 40, 5, 2, shared=24, score=True)
        inputs = testing.make_inputs(case)
        with Group.local(2, timeout_s=30) as group:
            got = testing.run_layer(inputs, group, case)
        testing.assert_close(
            got,
            testing.run_reference(inputs, case, reference.TWIN),
            testing.run_reference(inputs, case, reference.EXACT),
        )
    except Exception as error:  # whatever it is, it is the finding
        return Finding("layer", "missing", f"{type(error).__name__}: {error}",
                       "python -m monomoe check says more")  # fmt: skip
    return Finding("layer", "ok", "forward and backward agree with the float64 reference")


def _gpu() -> list[Finding]:
    nvcc = shutil.which("nvcc") or shutil.which("/usr/local/cuda/bin/nvcc")
    if nvcc is None:
        findings = [
            Finding("nvcc", "note", "none", "for a GPU backend: install CUDA 13 and rebuild")
        ]
    else:
        text = subprocess.run([nvcc, "--version"], capture_output=True, text=True).stdout
        release = [line for line in text.splitlines() if "release" in line]
        findings = [Finding("nvcc", "ok", release[0].strip() if release else nvcc)]
    try:
        import torch
    except (ImportError, OSError):
        return findings
    if not torch.cuda.is_available():
        findings.append(
            Finding("GPU", "note", "none that torch can use", "the CPU backend needs none")
        )
        return findings
    for index in range(torch.cuda.device_count()):
        arch = torch.cuda.get_device_capability(index)
        found = f"{torch.cuda.get_device_name(index)}, sm_{arch[0]}{arch[1]}"
        if arch == MEASURED_ARCH:
            findings.append(Finding(f"GPU {index}", "ok", found))
        else:
            remedy = "the GPU backend is made for sm_90 (H100, H200); the CPU backend works"
            findings.append(Finding(f"GPU {index}", "note", found, remedy))
    return findings


def examine() -> list[Finding]:
    """Everything that is looked at, in the order in which it would be repaired."""
    findings = [
        _python(),
        _torch(),
        _package("numpy", (1, 24), "missing", "pip install 'numpy>=1.24'"),
        _package("apache-tvm-ffi", (0, 1, 15), "missing", "pip install 'apache-tvm-ffi>=0.1.15'"),
        _package("matplotlib", (3, 0), "note", "for the plot of the demo: pip install matplotlib"),
        _compiler(),
        *_library(),
    ]
    if not any(finding.state == "missing" for finding in findings):
        findings.append(_layer())
    return findings + _gpu()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="one JSON object a line")


def run(args: argparse.Namespace) -> int:
    findings = examine()
    for finding in findings:
        if args.json:
            print(json.dumps(asdict(finding)))
            continue
        print(f"{finding.state:<8} {finding.subject:<16} {finding.found}")
        if finding.remedy:
            print(f"{'':<25} -> {finding.remedy}")
    works = not any(finding.state == "missing" for finding in findings)
    if not args.json:
        print(
            "the layer runs here" if works else "the layer can't run here yet: see `missing` above"
        )
    return 0 if works else 1
