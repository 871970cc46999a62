"""The command line on a machine with a Hopper GPU: tools/device_test.sh."""

import json
import subprocess
import sys

import on_gpu  # noqa: F401: sets what must be set before CUDA starts

from monomoe.cli import check, main


def test_check_passes_all_cases_on_the_gpu(capsys, monkeypatch):
    monkeypatch.setenv("MONOMOE_BACKEND", "")
    assert main(["check", "--backend", "cuda", "--ranks", "1,2,3"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("backend sm90")
    assert lines[-1] == f"{len(check.CASES)} passed, 0 failed"


def test_doctor_says_what_the_gpu_can_do(capsys):
    assert main(["doctor", "--json"]) == 0
    found = {f["subject"]: f for f in map(json.loads, capsys.readouterr().out.splitlines())}
    assert found["GPU kernels"]["found"].startswith("sm_90a (Hopper), built with CUDA 13")
    assert found["CUDA"]["state"] == found["cuda:0"]["state"] == "ok"
    assert found["cuda:0"]["found"].endswith(", usable")
    assert found["CUDA_DEVICE_MAX_CONNECTIONS"]["found"] == "32"
    assert found["layer"]["state"] == found["layer on cuda:0"]["state"] == "ok"


def test_demo_trains_and_proves_on_the_gpu(tmp_path):
    """In a process of its own: it makes torch deterministic."""
    done = subprocess.run(
        [sys.executable, "-m", "monomoe", "demo", "--steps", "60", "--out", tmp_path / "loss.png"],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    first, second = done.stdout.splitlines()[:2]
    assert first.endswith("backend sm90")
    losses = [float(word) for word in second.replace("->", " ").split()[1:3]]
    assert losses[1] < losses[0] - 1
    assert "bitwise equal for all numbers of ranks" in done.stdout
