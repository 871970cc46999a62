"""What is carried to a machine without network arrives whole."""

import subprocess
import sys
from pathlib import Path

TOOL = Path(__file__).parents[2] / "tools" / "rivals.py"
sys.path.insert(0, str(TOOL.parent))

import rivals  # noqa: E402


def test_archive_holds_what_was_packed(tmp_path):
    site = tmp_path / "site"
    files = {
        "pack/age.py": b"x = 1\n",
        "nvidia_cutlass_dsl/lib/lib.so": bytes(range(256)) * 5000,
        "empty": b"",
    }
    for name, data in files.items():
        (site / name).parent.mkdir(parents=True, exist_ok=True)
        (site / name).write_bytes(data)
    rivals.write_archive(site, tmp_path / rivals.ARCHIVE, dict_bytes=1 << 20)
    assert (tmp_path / rivals.ARCHIVE).stat().st_size < 50_000
    target = tmp_path / "target"
    paths = rivals.unpack(tmp_path, target).split(":")
    assert {p.relative_to(target).as_posix(): p.read_bytes() for p in target.rglob("*")
            if p.is_file()} == files  # fmt: skip
    assert paths == [str(target), str(target / "nvidia_cutlass_dsl" / "python_packages")]


def test_wheels_are_pinned():
    assert all(wheel.count("==") == 1 for wheel in rivals.WHEELS)


def test_rivals_refuses_other_arguments():
    done = subprocess.run([sys.executable, TOOL, "pack"], capture_output=True, text=True)
    assert done.returncode == 2 and "pack FOLDER or unpack FOLDER TARGET wanted" in done.stderr
