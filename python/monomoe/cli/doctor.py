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
CONNECTIONS = 32  # for many ranks on one GPU


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


def _layer(device: str) -> Finding:
    """A forward and backward of the smallest layer."""
    subject = "layer" if device == "cpu" else f"layer on {device}"
    try:
        from .. import reference, testing
        from ..functional import Group

        case = testing.Case(33, 64, 40, 5, 2, shared=24, score=True)
        inputs = testing.make_inputs(case)
        with Group.local(2, timeout_s=30) as group:
            got = testing.run_layer(inputs.to(device), group, case)
            got = {name: tensor.cpu() for name, tensor in got.items()}
            group.check()
        testing.assert_close(
            got,
            testing.run_reference(inputs, case, reference.TWIN),
            testing.run_reference(inputs, case, reference.EXACT),
        )
    except Exception as error:  # whatever it is, it is the finding
        return Finding(subject, "missing", f"{type(error).__name__}: {error}",
                       "python -m monomoe check says more")  # fmt: skip
    return Finding(subject, "ok", "forward and backward agree with the float64 reference")


def _nvcc() -> Finding:
    nvcc = shutil.which("nvcc") or shutil.which("/usr/local/cuda/bin/nvcc")
    if nvcc is None:
        return Finding("nvcc", "note", "none", "for a GPU backend: install CUDA 13 and rebuild")
    text = subprocess.run([nvcc, "--version"], capture_output=True, text=True).stdout
    release = [line for line in text.splitlines() if "release" in line]
    return Finding("nvcc", "ok", release[0].strip() if release else nvcc)


def _gpu() -> list[Finding]:
    """Kernels in the library, versions, and each GPU."""
    try:
        from ..functional import native

        said = list(native().environment())
    except (ImportError, OSError, RuntimeError, AttributeError):
        return []  # _library says so
    found = dict(zip(map(str, said[::2]), map(str, said[1::2])))
    if "CUDA driver" not in found:
        remedy = "for a GPU backend: install CUDA 13 and rebuild"
        return [Finding("GPU kernels", "note", found["kernels"], remedy)]
    findings = [Finding("GPU kernels", "ok", found["kernels"])]
    runtime, driver = found["CUDA runtime"], found["CUDA driver"]
    text = f"runtime {runtime}, driver for {driver}"
    if driver == "none":
        findings.append(Finding("CUDA", "note", text, "the CPU backend needs no driver"))
    elif _version(driver)[:1] < _version(runtime)[:1]:
        findings.append(Finding("CUDA", "note", text, f"install a driver for CUDA {runtime}"))
    else:
        findings.append(Finding("CUDA", "ok", text))
    gpus = {name: text for name, text in found.items() if name.startswith("cuda:")}
    usable = [name for name, text in gpus.items() if text.endswith(", usable")]
    for name, text in gpus.items():
        if name in usable:
            findings.append(Finding(name, "ok", text))
        else:
            findings.append(Finding(name, "note", text, "the CPU backend works all the same"))
    if not gpus:
        findings.append(Finding("GPU", "note", "none", "the CPU backend needs none"))
    if usable:
        findings += [_connections(), _layer(usable[0])]
    return findings


def _connections() -> Finding:
    """Launches of the ranks of a local group wait for each other, so they must run side by side."""
    name = "CUDA_DEVICE_MAX_CONNECTIONS"
    value = os.environ.get(name, "")
    if value.isdigit() and int(value) >= CONNECTIONS:
        return Finding(name, "ok", value)
    return Finding(name, "note", value or "not set", f"for many ranks on one GPU: export {name}="
                   f"{CONNECTIONS} before the process starts")  # fmt: skip


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
        findings += [_layer("cpu"), *_gpu()]
    return [*findings, _nvcc()]


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
