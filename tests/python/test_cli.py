"""The commands: what they print, and that their exit code tells the truth."""

import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import monomoe
from monomoe import testing
from monomoe.cli import COMMANDS, check, demo, doctor, main
from monomoe.cli.progress import Progress

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.py"))


def command(*args: str, **environment: str) -> subprocess.CompletedProcess:
    """python -m monomoe ARGS in a fresh process."""
    return subprocess.run(
        [sys.executable, "-m", "monomoe", *args], capture_output=True, text=True, timeout=240,
        env={**os.environ, **environment},
    )  # fmt: skip


def test_without_a_command_all_are_listed(capsys):
    assert main([]) == 2
    text = capsys.readouterr().out
    assert all(f"  {name} " in text for name in COMMANDS)


# --------------------------------------------------------------------------------------- check


def test_check_has_forty_cases_with_distinct_names_that_cover_the_contract():
    names = [case.name for case in check.CASES]
    assert len(set(names)) == len(names) >= 40
    assert {case.tokens for case in check.CASES} >= {0, 1, 33}
    assert {case.routing for case in check.CASES} == set(testing.ROUTINGS)
    assert any(case.hidden % 16 == 8 and case.intermediate % 16 == 8 for case in check.CASES)
    assert any(case.experts % 2 for case in check.CASES)
    assert {case.config.save for case in check.CASES} == {"all", "preact", "none"}
    for wanted in (
        lambda c: c.shared and not c.score, lambda c: c.score, lambda c: c.limit is not None,
        lambda c: c.router == "signed", lambda c: c.values == "integer",
        lambda c: c.split == "ragged", lambda c: c.ids == torch.int32,
        lambda c: c.config.save_rows is not None, lambda c: c.config.ring_rows == 256,
        lambda c: c.config.weight_grad == "fp32",
    ):  # fmt: skip
        assert any(map(wanted, check.CASES))


def test_check_passes_all_cases_on_this_machine():
    done = command("check", "--ranks", "1,3", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert [line["case"] for line in lines] == [case.name for case in check.CASES]
    for line in lines:
        assert line["passed"] and line["failures"] == [] and line["ranks"] == [1, 3]
        assert 0 <= line["error"] <= line["allowed"] and len(line["hash"]) == 16


def test_check_prints_one_line_a_case(capsys):
    name = check.CASES[4].name
    assert main(["check", "--case", name, "--ranks", "1,2", "--backend", "cpu"]) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[0] == "backend cpu, ranks 1,2" and out[-1] == "1 passed, 0 failed"
    (line,) = [line for line in out if name in line]
    assert line.startswith("pass  ")


@pytest.mark.parametrize("what", ["value", "bits"])
def test_check_fails_when_a_result_is_wrong(monkeypatch, capsys, what):
    plain = testing.run_layer

    def broken(inputs, group, case, config=None):
        got = plain(inputs, group, case, config)
        if group.ranks == 2:
            if what == "value":
                got["dx"][3, 5] += 1
            else:
                testing.bits(got["ddown"])[0, 0, 0] ^= 1
        return got

    monkeypatch.setattr(testing, "run_layer", broken)
    name = check.CASES[4].name
    assert main(["check", "--case", name, "--ranks", "1,2"]) == 1
    out = capsys.readouterr().out
    assert "FAIL" in out and "R=2: " in out and out.endswith("0 passed, 1 failed\n")
    assert ("dx[3, 5]" if what == "value" else "ddown: 1 of ") in out


def test_check_refuses_unknown_cases_and_backends(capsys):
    assert main(["check", "--case", "nonsense"]) == 1
    assert main(["check", "--backend", "sm42"]) == 1
    err = capsys.readouterr().err
    assert "--case: names of the list wanted, nonsense given" in err
    assert "--backend: one of cpu wanted, sm42 given" in err


# ---------------------------------------------------------------------------------------- demo


def test_demo_trains_plots_writes_and_proves(tmp_path):
    picture = tmp_path / "loss.png"
    done = command("demo", "--steps", "60", "--json", "--out", str(picture))
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads(done.stdout)
    assert result["steps"] == 60 and result["loss_last"] < 0.75 * result["loss_first"]
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert result["sample"].startswith("def ") and len(result["sample"]) > 100
    assert result["bitwise_equal"] and result["within_error_rule"]
    names = {"loss"} | {
        f"block {i} {name}"
        for i in (0, 1)
        for name in ("y", "dx", "dtopk_weights", "dgate_up", "ddown")
    }
    assert result["hashes"].keys() == names and result["ranks"] == [1, 2, 4]
    for hashes in result["hashes"].values():
        assert len(hashes) == 3 and len(set(hashes)) == 1
    assert result["shared_errors"].keys() == {
        f"block 1 {name}" for name in testing.PER_RANK_SUMS
    }


def test_demo_says_in_its_last_lines_what_was_proven(tmp_path):
    text = tmp_path / "text"
    text.write_bytes(b"to be or not to be, that is the question. " * 30)
    picture = tmp_path / "loss.png"
    done = command("demo", "--steps", "3", "--text", str(text), "--out", str(picture))
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert lines[-1].startswith("bitwise equal for all numbers of ranks: loss, y, dx, ")
    (row,) = [line for line in lines if line.startswith("  block 1 ddown")]
    assert len(set(row.split()[3:])) == 1 and len(row.split()) == 6
    assert "1,260 bytes of text" in done.stdout and "tokens/s" in done.stderr


def test_demo_fails_when_bits_differ(monkeypatch, tmp_path, capsys):
    plain = demo.one_step

    def broken(model, batch, group):
        results = plain(model, batch, group)
        if group.ranks == 4:
            testing.bits(results["block 0 dx"])[2, 1] ^= 1
        return results

    monkeypatch.setattr(demo, "one_step", broken)
    assert main(["demo", "--steps", "1", "--out", str(tmp_path / "loss.png")]) == 1
    assert capsys.readouterr().out.endswith("NOT bitwise equal: block 0 dx\n")


def test_demo_refuses_bad_arguments(tmp_path, capsys):
    short = tmp_path / "short"
    short.write_bytes(b"too short")
    assert main(["demo", "--text", str(short)]) == 1
    assert main(["demo", "--text", str(tmp_path / "missing")]) == 1
    assert main(["demo", "--steps", "0"]) == 1
    err = capsys.readouterr().err
    assert "--text: more than 65 bytes wanted, 9 given" in err
    assert "--steps: 1 or more wanted, 0 given" in err and "missing" in err


def test_library_text_is_large_and_is_python():
    text = demo.library_text()
    assert len(text) > 2_000_000 and text.count(b"def ") > 5_000


# ------------------------------------------------------------------------- doctor and explain


def test_doctor_says_that_the_layer_runs_here():
    done = command("doctor")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == "the layer runs here"
    for subject in ("python", "torch", "apache-tvm-ffi", "monomoe library", "backends", "layer"):
        assert any(line.startswith(f"ok       {subject} ") for line in done.stdout.splitlines())


def test_doctor_prints_json_lines(capsys):
    assert main(["doctor", "--json"]) == 0
    findings = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {"subject", "state", "found", "remedy"} == findings[0].keys()
    assert all(f["remedy"] for f in findings if f["state"] != "ok")


def test_doctor_names_what_is_missing_and_the_remedy(monkeypatch, capsys):
    def missing(name):
        raise doctor.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(doctor.metadata, "version", missing)
    assert main(["doctor"]) == 1
    out = capsys.readouterr().out
    assert "missing  torch            not installed" in out
    assert "-> pip install 'torch>=2.11'" in out
    assert out.endswith("the layer can't run here yet: see `missing` above\n")


def test_doctor_runs_where_torch_can_not_be_imported():
    code = "import sys; sys.modules['torch'] = None\nfrom monomoe.cli import main\n"
    done = subprocess.run(
        [sys.executable, "-c", code + "sys.exit(main(['doctor']))"],
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 1, done.stdout + done.stderr
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("missing  torch ")]
    assert "import of torch halted" in line


def test_doctor_notices_a_forced_backend_that_is_not_there(monkeypatch, capsys):
    monkeypatch.setenv("MONOMOE_BACKEND", "sm42")
    assert main(["doctor"]) == 1
    out = capsys.readouterr().out
    assert "'sm42' is no backend of this build" in out
    assert "unset it, or set it to one of: cpu" in out


def test_explain_prints_tiles_order_flops_bytes_and_regions(capsys):
    sizes = ["--tokens", "512", "--hidden", "64", "--intermediate", "128", "--experts", "8"]
    assert main(["explain", *sizes, "--top-k", "2", "--shared", "64", "--ranks", "2"]) == 0
    out = capsys.readouterr().out
    for word in ("T 512, H 64, I 128, E 8, K 2, shared 64, ranks 2", "tiles:", "order:", "GFLOP",
                 "MiB", "ring"):  # fmt: skip
        assert word in out
    assert main(["explain", *sizes, "--top-k", "9"]) == 1
    assert "top_k: 1 <= K <= E = 8 wanted, 9 given" in capsys.readouterr().err


def test_help_names_every_command_and_every_command_has_help(capsys):
    for argv in (["--help"], *([name, "--help"] for name in COMMANDS)):
        with pytest.raises(SystemExit) as stopped:
            main(argv)
        assert stopped.value.code == 0
        out = capsys.readouterr().out
        assert out.startswith("usage: python -m monomoe")
        for name in COMMANDS if argv == ["--help"] else argv[:1]:
            assert name in out
    with pytest.raises(SystemExit) as stopped:
        main(["nonsense"])
    assert stopped.value.code == 2


def test_public_names_are_all_there():
    for name in monomoe.__all__:
        assert getattr(monomoe, name) is not None, name
    assert re.fullmatch(r"\d+\.\d+\.\d+", monomoe.__version__)
    assert set(monomoe.__all__) < set(dir(monomoe))
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        monomoe.nonsense  # noqa: B018


# ------------------------------------------------------------------------- progress, examples


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_bar_is_drawn_on_a_terminal_and_removed(monkeypatch):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr("monomoe.cli.progress._REDRAW_S", 0.0)
    with Progress(4) as progress:
        for step in range(4):
            progress.advance(f"loss {step}")
    drawn = terminal.getvalue().split("\r\x1b[K")
    assert "] 2/4 loss 1, " in drawn[2] and "[###############               ]" in drawn[2]
    assert drawn[-1] == ""


def test_progress_prints_ten_lines_elsewhere_and_none_when_quiet(monkeypatch):
    for quiet, wanted in ((False, 10), (True, 0)):
        text = io.StringIO()
        monkeypatch.setattr(sys, "stderr", text)
        with Progress(100, quiet) as progress:
            for _ in range(100):
                progress.advance("loss")
        assert len(text.getvalue().splitlines()) == wanted


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_example_runs(example, tmp_path):
    done = subprocess.run(
        [sys.executable, str(example)], capture_output=True, text=True, timeout=120, cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout and not done.stderr


def test_there_are_examples():
    assert len(EXAMPLES) >= 3


def test_demo_proves_also_where_the_plot_can_not_be_written(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "monomoe", "demo", "--steps", "2", "--out", "/nonexistent/x.png"],
        capture_output=True, text=True, timeout=240, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "no plot of the loss" in done.stdout
    assert done.stdout.rstrip().endswith("router and routed weight gradients")
