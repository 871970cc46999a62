"""Puts GoogleTest's source into a folder: `fetch_gtest.py DIR`.

CMake calls it when no GoogleTest is installed (MONOMOE_FETCH_GTEST). The source comes from a PyPI
wheel that carries it (300 kB); its compiled part is not used, so any machine may take it.
"""

import hashlib
import pathlib
import subprocess
import sys
import tempfile
import zipfile

REQUIREMENT = "ros-gtest-vendor==1.15.1"  # the source of GoogleTest 1.15
SHA256 = "6a578c55eca01c7d215e54bf1dd3172ada677b591dd2f5d3c8260b882364ee6e"
TAGS = ["--python-version=311", "--implementation=cp", "--abi=cp311"]
PLATFORM = "--platform=manylinux_2_28_x86_64"
INSIDE = "/data/src/gtest_vendor/"


def main() -> int:
    target = pathlib.Path(sys.argv[1])
    if (target / "done").exists():
        return 0
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps"]
        command += ["--only-binary=:all:", *TAGS, PLATFORM, "-d", folder, REQUIREMENT]
        if subprocess.run(command).returncode != 0:
            print(
                "GoogleTest: wanted for the C++ tests, neither installed nor to be had from PyPI; "
                "install it (Debian: apt-get install libgtest-dev)",
                file=sys.stderr,
            )
            return 1
        (wheel,) = pathlib.Path(folder).glob("*.whl")
        digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
        if digest != SHA256:
            print(f"{wheel.name}: sha256 {SHA256} wanted, {digest} found", file=sys.stderr)
            return 1
        with zipfile.ZipFile(wheel) as archive:
            for name in archive.namelist():
                _, found, rest = name.partition(INSIDE)
                if found and rest and not rest.endswith("/"):
                    path = target / rest
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.write_bytes(archive.read(name))
    (target / "done").write_text(REQUIREMENT + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
