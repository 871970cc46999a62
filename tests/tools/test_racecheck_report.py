"""What tools/racecheck_report.py makes of racecheck's output."""

import io
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))
import racecheck_report

PLAN = "monomoe::BasicPlan<monomoe::FixedTile, monomoe::FixedPass<(bool)0>>"
KNOWN = f"""========= COMPUTE-SANITIZER
========= Error: Race reported between Write access at monomoe::ptx::store_cluster_16(unsigned int, const uint4 &)+0x47160 in barrier.cuh:79
=========     and Read access at void monomoe::sm90::consumer_role<{PLAN}>(const monomoe::cuda::Context<T1> &, monomoe::sm90::WorkerSmem &, int)+0x2c70 in compute.cuh:123 [24 hazards]
=========     and Read access at void monomoe::sm90::down_part<{PLAN}>(const monomoe::cuda::Context<T1> &, const monomoe::sm90::Consumer &, const monomoe::sm90::Work &, const float (&)[32], int)+0xffb0 in epilogue.cuh:176 [16 hazards]
=========
========= Error: Race reported between Read access at monomoe::ptx::load_volatile(const int &)+0x23140 in shared.cuh:16
=========     and Write access at monomoe::sm90::BegunStages::wait(const monomoe::sm90::StageCursor &)+0x23520 in load.cuh:45 [96 hazards]
=========
========= Error: Race reported between Write access at monomoe::ptx::bulk_load(void *, const void *, unsigned int, unsigned long *)+0x491f0 in tma.cuh:35
=========     and Read access at monomoe::sm90::<unnamed>::backward_kernel(monomoe::cuda::Launch)+0x79b0 [12192 hazards]
=========
"""
SUMMARY = "========= RACECHECK SUMMARY: 4 hazards displayed (4 errors, 0 warnings)\n"
TRUE_RACE = f"""========= Error: Race reported between Write access at void monomoe::sm90::store_rows<{PLAN}>(int)+0x10 in epilogue.cuh:50
=========     and Read access at void monomoe::sm90::store_rows<{PLAN}>(int)+0x20 in epilogue.cuh:52 [8 hazards]
"""


def report(text, monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdin", io.StringIO(text))
    code = racecheck_report.main()
    return code, capsys.readouterr().out


def test_known_false_alarms_pass(monkeypatch, capsys):
    code, out = report(KNOWN + SUMMARY, monkeypatch, capsys)
    assert code == 0 and "4 reports, 0 kinds" in out
    assert sum(line.startswith("known ") for line in out.splitlines()) == 4


def test_no_report_passes(monkeypatch, capsys):
    text = "========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)\n"
    assert report(text, monkeypatch, capsys)[0] == 0


@pytest.mark.parametrize(
    "text",
    [
        KNOWN + TRUE_RACE + SUMMARY,
        KNOWN,  # no summary: it was stopped
        SUMMARY,  # reports that can't be read
        KNOWN.replace("Read access", "Write access") + SUMMARY,
    ],
)
def test_anything_else_fails(text, monkeypatch, capsys):
    assert report(text, monkeypatch, capsys)[0] == 1
