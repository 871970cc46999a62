"""Checks the include arrows of docs/layout.md: `check_includes.py [ROOT]`.

Prints one line a violation (file:line: rule) and exits 1 if there is any.
"""

import pathlib
import re
import sys

# What each folder of src/ may include, besides itself.
ARROWS = {
    "base": (),
    "plan": ("base",),
    "task": ("base", "plan"),
    "comm": ("base", "plan", "task"),
    "trace": ("base", "plan", "task"),
    "arch/cuda": ("base", "plan", "task", "comm", "trace"),
    "arch/sm90": ("base", "plan", "task", "comm", "trace", "arch/cuda"),
    "arch/cpu": ("base", "plan", "task", "comm", "trace"),
    "runtime": ("base", "plan", "task", "comm", "trace", "arch/cuda", "arch/sm90", "arch/cpu"),
}
MAY_USE_CUDA = {"comm/ipc.cpp", "comm/nccl.cpp", "arch/sm90/backend.cpp"}
CUDA_HEADER = re.compile(r"^(cuda|cublas|cudnn|nccl|cooperative_groups|nv/|cub/|thrust/|mma\.h)")
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')
SUFFIXES = {".h", ".cpp", ".cuh", ".cu"}
BINDING_MAY_USE = {"runtime/testing.h"}  # hooks that Python tests need


def folder_of(path: str) -> str:
    """`arch/cpu/worker.h` -> `arch/cpu`, `plan/order.h` -> `plan`."""
    parts = path.split("/")[:-1]
    return "/".join(parts[:2]) if parts[:1] == ["arch"] else "/".join(parts[:1])


def includes(path: pathlib.Path) -> list[tuple[int, bool, str]]:
    """(line, quoted, name) of every include."""
    lines = path.read_text(encoding="utf-8").splitlines()
    found = [(n, INCLUDE.match(line)) for n, line in enumerate(lines, 1)]
    return [(n, m.group(1) == '"', m.group(2)) for n, m in found if m]


def check_src(root: pathlib.Path, path: pathlib.Path) -> list[str]:
    inside = path.relative_to(root / "src").as_posix()
    folder = folder_of(inside)
    if folder not in ARROWS:
        return [f"src/{inside}:1: '{folder}' is no folder of docs/layout.md"]
    errors = []
    for line, quoted, name in includes(path):
        where = f"src/{inside}:{line}: "
        if name.startswith("monomoe/"):
            if folder != "runtime":
                errors.append(where + f"{name}: only runtime/ includes the public interface")
            elif not (root / "include" / name).exists():
                errors.append(where + f"{name}: no such file in include/")
        elif quoted:
            if not (root / "src" / name).exists():
                errors.append(where + f"{name}: no such file in src/ (write paths from src/)")
            elif folder_of(name) != folder and folder_of(name) not in ARROWS[folder]:
                errors.append(where + f"{name}: {folder} must not include {folder_of(name)}")
            if path.suffix in {".h", ".cpp"} and name.endswith((".cuh", ".cu")):
                errors.append(where + f"{name}: {path.suffix} files compile without nvcc")
        elif CUDA_HEADER.match(name) and path.suffix in {".h", ".cpp"}:
            if inside not in MAY_USE_CUDA:
                errors.append(where + f"<{name}>: {path.suffix} files compile without CUDA")
        elif (root / "src" / name).exists():
            errors.append(where + f"<{name}>: write our own headers in quotes")
    return errors


def check_include(root: pathlib.Path, path: pathlib.Path) -> list[str]:
    errors = []
    shown = path.relative_to(root).as_posix()
    for line, quoted, name in includes(path):
        where = f"{shown}:{line}: "
        if CUDA_HEADER.match(name):
            errors.append(where + f"<{name}>: public headers are free of CUDA")
        elif (quoted or "/" in name) and not name.startswith("monomoe/"):
            errors.append(where + f"{name}: public headers include monomoe/ and the standard only")
    return errors


def check_outside(root: pathlib.Path, path: pathlib.Path) -> list[str]:
    """examples/ and python/src/ are users: the public interface only."""
    errors = []
    shown = path.relative_to(root).as_posix()
    for line, _, name in includes(path):
        ours = (root / "src" / name).exists()
        if ours and not (shown.startswith("python/") and name in BINDING_MAY_USE):
            errors.append(f"{shown}:{line}: {name}: only the public interface (monomoe/) here")
    return errors


def files(root: pathlib.Path, folder: str) -> list[pathlib.Path]:
    return sorted(p for p in (root / folder).rglob("*") if p.suffix in SUFFIXES)


def check(root: pathlib.Path) -> list[str]:
    errors = []
    for path in files(root, "src"):
        errors += check_src(root, path)
    for path in files(root, "include"):
        errors += check_include(root, path)
    for path in files(root, "examples") + files(root, "python/src"):
        errors += check_outside(root, path)
    return errors


def main() -> int:
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent.parent)
    errors = check(root.resolve())
    print("\n".join(errors or ["include arrows: as in docs/layout.md"]))
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
