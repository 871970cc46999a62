"""Carries the packages that `python -m monomoe bench` compares with to a machine without network.

    rivals.py pack FOLDER            here: downloads their wheels, writes FOLDER/rivals.tar.xz
    rivals.py unpack FOLDER TARGET   there: unpacks it, prints what PYTHONPATH needs

For Python 3.12 on x86-64 Linux, beside torch 2.11. Without dependencies: torch, triton, einops and
cuda-bindings are expected there. Packed for size (two compiler libraries of 180 MB become 48):
minutes here, seconds there.
"""

import lzma
import pathlib
import subprocess
import sys
import tarfile
import tempfile
import zipfile

WHEELS = (
    "sonic-moe==0.1.2.post1",
    "quack-kernels==0.3.11",
    "nvidia-cutlass-dsl==4.4.2",
    "nvidia-cutlass-dsl-libs-base==4.4.2",
    "torch-c-dlpack-ext==0.1.5",
    "liger-kernel==0.8.5",
)
ARCHIVE = "rivals.tar.xz"
PATHS = (".", "nvidia_cutlass_dsl/python_packages")  # below TARGET, for PYTHONPATH
PLATFORMS = ("2_28", "2_27", "2_24", "2_17")
DICT_BYTES = 192 << 20  # packing takes 11 times that, unpacking once


def download(folder: pathlib.Path) -> None:
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary=:all:"]
    command += ["--python-version", "3.12", "--implementation", "cp"]
    for glibc in PLATFORMS:
        command += ["--platform", f"manylinux_{glibc}_x86_64"]
    subprocess.run([*command, "-d", str(folder), *WHEELS], check=True)


def pack(folder: pathlib.Path) -> pathlib.Path:
    """Archive of all wheels, unpacked."""
    folder.mkdir(parents=True, exist_ok=True)
    archive = folder / ARCHIVE
    with tempfile.TemporaryDirectory() as temporary:
        wheels, site = pathlib.Path(temporary, "wheels"), pathlib.Path(temporary, "site")
        wheels.mkdir()
        download(wheels)
        for wheel in sorted(wheels.glob("*.whl")):
            with zipfile.ZipFile(wheel) as file:
                file.extractall(site)
            print(f"{wheel.stat().st_size / 1e6:8.1f} MB  {wheel.name}")
        write_archive(site, archive)
    print(f"{archive.stat().st_size / 1e6:8.1f} MB  {archive}")
    return archive


def write_archive(
    site: pathlib.Path, archive: pathlib.Path, dict_bytes: int = DICT_BYTES
) -> None:
    preset = 9 | lzma.PRESET_EXTREME
    filters = [
        {"id": lzma.FILTER_X86},
        {"id": lzma.FILTER_LZMA2, "preset": preset, "dict_size": dict_bytes},
    ]
    with lzma.open(archive, "wb", filters=filters) as stream:
        with tarfile.open(fileobj=stream, mode="w") as tar:
            for path in sorted(site.rglob("*")):
                if path.is_file():
                    tar.add(path, path.relative_to(site).as_posix())


def unpack(folder: pathlib.Path, target: pathlib.Path) -> str:
    """PYTHONPATH of what was unpacked."""
    with tarfile.open(folder / ARCHIVE, "r:xz") as tar:
        tar.extractall(target, filter="data")
    return ":".join(str((target / path).resolve()) for path in PATHS)


def main(args: list[str]) -> int:
    if len(args) == 2 and args[0] == "pack":
        pack(pathlib.Path(args[1]))
    elif len(args) == 3 and args[0] == "unpack":
        print(unpack(pathlib.Path(args[1]), pathlib.Path(args[2])))
    else:
        wanted = "pack FOLDER or unpack FOLDER TARGET"
        print(f"rivals.py: {wanted} wanted, {args} given", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
