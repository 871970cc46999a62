"""Compiles the kernels and holds ptxas to a budget: `ptxas_budget.py`.

wgmma that ptxas serialises (C7510 and others), spills, a growing stack frame or more registers than the
launch allows fail the check. Machines without nvcc 13 have nothing to check and say so.
"""

import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
KERNELS = ROOT / "src" / "arch" / "sm90" / "kernel.cu"
FLAGS = [
    "-std=c++20", "-O3", "-gencode=arch=compute_90a,code=sm_90a", "-Xptxas", "-v",
    "-Werror", "all-warnings", f"-I{ROOT / 'src'}", f"-I{ROOT / 'include'}",
]  # fmt: skip

# Function -> registers, stack, spill stores, spill loads (bytes). Spills are those
# of the producer roles (56 registers a thread), and in backward of dgrad_down's
# epilogue; main loops have none (docs/notes).
BUDGET = {
    "forward_kernel": (168, 48, 68, 84),
    "backward_kernel": (168, 152, 128, 256),
    "schedule_kernel": (112, 0, 0, 0),
    "keep_polling": (0, 0, 0, 0),  # called by producers: at most their 56 registers
}


def find_nvcc() -> str | None:
    nvcc = shutil.which("nvcc") or shutil.which("/usr/local/cuda/bin/nvcc")
    if not nvcc:
        return None
    text = subprocess.run([nvcc, "--version"], capture_output=True, text=True).stdout
    release = re.search(r"release (\d+)\.", text)
    return nvcc if release and int(release.group(1)) >= 13 else None


def parse(text: str) -> dict[str, list[int]]:
    """Function -> [registers, stack, spill stores, spill loads]."""
    found: dict[str, list[int]] = {}
    current = None
    for line in text.splitlines():
        name = re.search(r"(?:Function properties for|Compiling entry function) '?(\w+)", line)
        if name:
            current = next((key for key in BUDGET if key in name.group(1)), None)
            if current:
                found.setdefault(current, [0, 0, 0, 0])
        frame = re.search(
            r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", line
        )
        if frame and current:
            found[current][1:] = [int(v) for v in frame.groups()]
        registers = re.search(r"Used (\d+) registers", line)
        if registers and current:
            found[current][0] = int(registers.group(1))
    return found


def main() -> int:
    nvcc = find_nvcc()
    if nvcc is None:
        print("no nvcc 13 or later here: the kernels were not compiled")
        return 0
    with tempfile.TemporaryDirectory() as folder:
        command = [nvcc, *FLAGS, "-cubin", str(KERNELS), "-o", f"{folder}/kernel.cubin"]
        done = subprocess.run(command, capture_output=True, text=True)
    text = done.stdout + done.stderr
    if done.returncode != 0 or "Potential Performance Loss" in text:
        print(text)
        return 1
    found = parse(text)
    failed = False
    for name, budget in BUDGET.items():
        used = found.get(name)
        over = used is None or any(u > b for u, b in zip(used, budget))
        failed |= over
        print(f"{'OVER' if over else 'ok  '} {name}: {used} of {list(budget)} "
              "(registers, stack, spill stores, spill loads)")  # fmt: skip
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
