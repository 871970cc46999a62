"""`python -m monomoe bench`: everything of it that runs without a GPU."""

import dataclasses
import json
import re
import statistics
from pathlib import Path

import pytest
import torch

import monomoe
from monomoe import functional, testing
from monomoe.bench import cases, correct, measure, record, report, rivals, run, systems, targets
from monomoe.bench.device import Host, content_hash
from monomoe.bench.record import Record
from monomoe.cli import main

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "bench.md").read_text(encoding="utf-8")
CPU = torch.device("cpu")


def example(**changes) -> Record:
    """A record of qwen3-30b by MonoMoE."""
    fields = dict(
        commit="abc1234", date="2026-12-01", chip="NVIDIA H200", driver="580.1", cuda="13.0",
        torch="2.11.0", case="qwen3-30b", ranks=1, pass_="fwd", system="monomoe", version="0.1.0",
        ms={"p25": 1.9, "p50": 2.0, "p75": 2.1}, samples=30, tflops=618.5, dense_ratio=0.9,
        sched_ms=0.02, launches={"schedule": 1, "forward": 1}, peak_bytes=1, kept_bytes=1,
        hash="00", config={}, clock_mhz=[1300, 1310], power_w=[690.0, 699.5],
    )  # fmt: skip
    return Record(**(fields | changes))


def timed(ms: float, **changes) -> Record:
    return example(ms={"p25": ms, "p50": ms, "p75": ms}, **changes)


# --------------------------------------------------------------------------------------- cases


def page_rows(heading: str) -> list[list[str]]:
    """Cells of the table below a heading of docs/bench.md."""
    text = PAGE.split(f"## {heading}\n")[1].split("\n## ")[0]
    rows = [line.strip("|").split("|") for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in row] for row in rows[2:]]


def test_bench_page_has_the_cases_that_are_measured():
    rows = page_rows("Cases")
    assert [row[0] for row in rows] == [case.name for case in cases.CASES]
    for row, case in zip(rows, cases.CASES):
        sizes = (case.tokens, case.hidden, case.intermediate, case.experts, case.top_k)
        assert tuple(map(int, row[1:6])) == sizes
        shared = f"{case.shared}{' gated' * case.gated}" if case.shared else "-"
        assert row[6] == shared
        assert case.zipf == ("zipf" in row[7])
    several = {case.name for case in cases.CASES if len(case.ranks) > 1}
    assert several == {"qwen3-30b", "dsv3-ep8", "kimi-ep8"}


@pytest.mark.parametrize("case", [*cases.CASES, cases.SMOKE], ids=lambda case: case.name)
def test_bench_counts_the_work_that_the_plan_counts(case):
    """src/plan/cost.h, as `explain` prints it, and the GEMMs of the yardstick."""
    shape = functional.Shape(
        case.tokens, case.hidden, case.intermediate, case.experts, case.top_k, case.shared
    )
    text = functional.explain(shape)
    planned = {
        pass_: float(re.search(rf"^{pass_}: ([\d.]+) GFLOP", text, re.M)[1])
        for pass_ in ("forward", "backward")
    }
    forward = sum(gemm.flops for gemm in cases.forward_gemms(case))
    backward = sum(gemm.flops for gemm in cases.backward_gemms(case))
    assert cases.flops(case, "fwd") == forward
    assert cases.flops(case, "fwdbwd") == forward + backward
    assert forward * 1e-9 == pytest.approx(planned["forward"], abs=1e-3)
    assert backward * 1e-9 == pytest.approx(planned["backward"], abs=1e-3)


@pytest.mark.parametrize("zipf", [False, True])
def test_ids_are_drawn_without_replacement(zipf):
    case = dataclasses.replace(cases.BY_NAME["qwen3-30b"], tokens=2048, zipf=zipf)
    ids = cases.draw_ids(case, torch.Generator().manual_seed(1))
    assert ids.dtype == torch.int32 and ids.shape == (2048, 8)
    assert 0 <= int(ids.min()) and int(ids.max()) < 128
    ordered = ids.sort(dim=1).values
    assert (ordered[:, 1:] != ordered[:, :-1]).all()
    counts = torch.bincount(ids.flatten().long(), minlength=128)
    if zipf:  # the hottest expert is in most tokens, the coldest in few
        assert int(counts.max()) > 1500 and int(counts.min()) < 40
    else:
        assert 64 < int(counts.min()) and int(counts.max()) < 192
    assert torch.equal(ids, cases.draw_ids(case, torch.Generator().manual_seed(1)))


def test_inputs_are_random_and_views_of_whole_weights():
    inputs = cases.make_inputs(cases.SMOKE, CPU)
    for name in ("x", "dy"):
        assert (getattr(inputs, name) == 0).float().mean() < 0.01
    w = inputs.weights
    assert torch.equal(inputs.gate_up.view(8, 2, 128, 64), torch.stack((w.gate, w.up), dim=1))
    assert torch.equal(inputs.shared_gate_up, torch.cat((w.shared_gate, w.shared_up)))
    assert torch.allclose(inputs.topk_weights.sum(1), torch.ones(512))
    assert sum(t.numel() for t in w.tensors()) == cases.weight_values(cases.SMOKE)
    again = cases.make_inputs(cases.SMOKE, CPU)
    assert torch.equal(inputs.x, again.x) and torch.equal(inputs.ids, again.ids)


def test_dense_does_the_counted_gemms_on_operands_as_they_lie_in_a_layer():
    dense = systems.Dense(cases.make_inputs(cases.SMOKE, CPU))
    for gemms, made in (
        (cases.forward_gemms(cases.SMOKE), dense._forward),
        (cases.backward_gemms(cases.SMOKE), dense._backward),
    ):
        assert len(gemms) == len(made)
        for gemm, (a, b, out) in zip(gemms, made):
            assert (*a.shape, b.shape[1]) == (gemm.rows, gemm.depth, gemm.cols)
            assert out.shape == (gemm.rows, gemm.cols) and (a != 0).any() and (b != 0).any()
    assert [b.stride(0) for _, b, _ in dense._forward] == [1, 1, 1, 1]  # weights [out, in]
    assert [a.stride(0) == 1 for a, _, _ in dense._backward] == [False, False, True, True] * 2


# -------------------------------------------------------------------------------------- records


@pytest.mark.parametrize(
    ("samples", "wanted"),
    [
        ([3.0], (3.0, 3.0, 3.0)),
        ([1.0, 2.0], (1.25, 1.5, 1.75)),
        ([5.0, 1.0, 4.0, 2.0, 3.0], (2.0, 3.0, 4.0)),
    ],
)
def test_quartiles(samples, wanted):
    assert tuple(record.quartiles(samples).values()) == wanted
    assert record.quartiles(samples)["p50"] == statistics.median(samples)


def test_record_has_the_documented_fields_in_their_order():
    line = example().line()
    documented = re.search(r"^\{\"commit\".*\}$", PAGE, re.M)[0]
    names = re.findall(r'"(\w+)"(?=[,:}])', re.sub(r"\{\"p25.*?\}", "", documented))
    assert list(json.loads(line)) == [n for n in names if n not in ("fwd", "fwdbwd")]
    assert Record.parse(line) == example()


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda v: v | {"pass": "bwd"}, "pass: fwd or fwdbwd wanted, 'bwd' given"),
        (lambda v: v | {"date": "1.12.2026"}, "date: YYYY-MM-DD wanted"),
        (lambda v: v | {"ms": {"p25": 2, "p50": 1, "p75": 3}}, "ms: p25 <= p50 <= p75"),
        (lambda v: v | {"ms": {"p50": 1}}, "ms: p25 <= p50 <= p75"),
        (lambda v: v | {"samples": 0}, "samples: 1 or more wanted, 0 given"),
        (lambda v: v | {"commit": ""}, "commit: of git wanted"),
        (lambda v: v | {"more": 1}, "record: the fields"),
        (lambda v: dict(reversed(v.items())), "record: the fields"),
        (lambda v: [v], "record: the fields"),
    ],
)
def test_record_that_is_wrong_is_refused(change, sentence):
    line = json.dumps(change(json.loads(example().line())))
    with pytest.raises(ValueError, match=re.escape(sentence)):
        Record.parse(line)


def test_records_are_appended_and_never_edited(tmp_path):
    path = tmp_path / "2026-12-01-h200.jsonl"
    path.write_text('{"bench": "cpu_gemm", "gflops": 1}\n')
    record.append(tmp_path, [example()])
    record.append(tmp_path, [example(case="olmoe"), example(chip="NVIDIA H100 80GB HBM3")])
    lines = path.read_text().splitlines()
    assert lines[0] == '{"bench": "cpu_gemm", "gflops": 1}' and len(lines) == 3
    assert record.read([path]) == [example(), example(case="olmoe")]
    assert (tmp_path / "2026-12-01-h100-80gb-hbm3.jsonl").exists()
    path.write_text("no record\n")
    with pytest.raises(ValueError, match=r"h200\.jsonl:1: record: a JSON object wanted"):
        record.read([path])


def test_records_of_this_repository_are_records():
    paths = sorted((ROOT / "bench" / "records").glob("*.jsonl"))
    assert paths
    for r in record.read(paths):
        assert r.case in cases.BY_NAME and r.system in run.SYSTEMS


def test_hash_tells_any_changed_bit():
    t = torch.randn(3, 1001).bfloat16()
    first = content_hash([t, t])
    assert first == content_hash([t.clone(), t.T.contiguous().T]) and len(first) == 16
    changed = t.clone()
    testing.bits(changed)[2, 1000] ^= 1
    assert first != content_hash([t, changed]) != content_hash([changed, t])


# ------------------------------------------------------------------------------------- verdicts


def the_gate(what: str, records: list[Record]) -> targets.Gate:
    (gate,) = [gate for gate in targets.gates(records) if gate.what == what]
    return gate


@pytest.mark.parametrize(
    ("ratio", "verdict"), [(0.97, "aim"), (0.969, "done"), (0.88, "done"), (0.879, "short")]
)
def test_verdict_on_the_dense_ratio(ratio, verdict):
    assert the_gate("dense ratio", [example(dense_ratio=ratio)]).verdict == verdict


def test_every_case_but_the_latency_one_has_a_wanted_ratio():
    named = {case.name for case in cases.CASES} - {"qwen3-30b-t512"}
    for table in targets.DENSE_RATIO.values():
        assert set(table) == named
        assert all(0.7 < done < aim <= 1 for done, aim in table.values())
    assert named == {row[0] for row in page_rows("Wanted")}
    for case, fwd, fwdbwd in (row[:3] for row in page_rows("Wanted")):
        for pass_, cell in (("fwd", fwd), ("fwdbwd", fwdbwd)):
            assert tuple(map(float, cell.split(", aim "))) == targets.DENSE_RATIO[pass_][case]


def test_verdict_on_ranks_compares_with_one_rank_of_the_same_run():
    one = timed(2.0)
    for ms, verdict in ((2.1, "aim"), (2.16, "done"), (2.17, "short")):
        two = timed(ms, ranks=2)
        assert the_gate("time, R = 2 / R = 1", [one, two]).verdict == verdict
    assert the_gate("other bits than R = 1, R = 2", [one, two]).verdict == "aim"
    other = timed(2.0, ranks=2, hash="01")
    assert the_gate("other bits than R = 1, R = 2", [one, other]).verdict == "short"
    assert not list(targets.gates([two]))


def test_verdict_on_schedule_takes_the_larger_bound():
    what = "schedule, of what it may take"
    assert the_gate(what, [timed(1.0, sched_ms=0.025)]).verdict == "aim"
    assert the_gate(what, [timed(1.0, sched_ms=0.026)]).verdict == "short"
    assert the_gate(what, [timed(4.0, sched_ms=0.06)]).verdict == "aim"
    assert the_gate(what, [timed(4.0, sched_ms=0.061)]).verdict == "short"


def test_verdict_on_launches_wants_one_each():
    records = [example(launches={"schedule": 1, "forward": 2})]
    assert the_gate("launches of schedule", records).verdict == "aim"
    assert the_gate("launches of forward", records).verdict == "short"


def test_verdict_on_rivals():
    rival = timed(2.0, system="torch-eager")
    assert the_gate("time / torch-eager", [timed(2.0), rival]).verdict == "aim"
    assert the_gate("time / torch-eager", [timed(2.01), rival]).verdict == "short"
    big = dict(case="t16k-e64", pass_="fwdbwd")
    sonic = timed(10.0, system="sonicmoe", **big)
    assert the_gate("time / sonicmoe", [timed(9.0, **big), sonic]).verdict == "aim"
    assert the_gate("time / sonicmoe", [timed(9.1, **big), sonic]).verdict == "short"


def test_verdict_on_reading_the_weights_once():
    case = cases.BY_NAME["qwen3-30b-t512"]
    rate = 4.0e12  # bytes a second, reads and writes
    read_ms = 2 * 3 * 128 * 768 * 2048 / rate * 1e3
    config = {"copy_bytes_s": rate}
    for share, verdict in ((1.29, "aim"), (1.31, "short")):
        gate = the_gate(
            "time / reading the weights", [timed(share * read_ms, case=case.name, config=config)]
        )
        assert gate.verdict == verdict and gate.value == pytest.approx(share)


def test_verdict_on_options_compares_with_the_plain_measurement():
    def both(ms, **config):
        plain = timed(10.0, pass_="fwdbwd")
        return [plain, timed(ms, pass_="fwdbwd", config={"copy_bytes_s": 4e12} | config)]

    what = "save = none / save = preact"
    assert the_gate(what, both(12.7, save="none")).verdict == "aim"
    assert the_gate(what, both(12.8, save="none")).verdict == "short"
    what = "default ring / ring of all rows"
    assert the_gate(what, both(9.6, ring_rows=147456)).verdict == "aim"
    assert the_gate(what, both(9.5, ring_rows=147456)).verdict == "short"
    what = "accumulation, of its extra bytes' time"
    extra_ms = 6 * 3 * 128 * 768 * 2048 / 4e12 * 1e3
    assert the_gate(what, both(10 + 0.99 * extra_ms, weight_grads="accumulate")).verdict == "aim"
    assert the_gate(what, both(10 + 1.01 * extra_ms, weight_grads="accumulate")).verdict == "short"


def test_verdict_on_kept_bytes():
    what = "kept bytes, of what is allowed"
    for kept, verdict in ((100, "aim"), (101, "short")):
        r = example(pass_="fwdbwd", kept_bytes=kept, config={"kept_allowed": 100})
        assert the_gate(what, [r]).verdict == verdict


def test_later_record_replaces_an_equal_one():
    records = [example(dense_ratio=0.5), example(dense_ratio=0.9)]
    assert the_gate("dense ratio", records).value == 0.9


def test_summary_has_a_column_a_system_and_a_verdict_a_case():
    accumulated = example(pass_="fwdbwd", config={"weight_grads": "accumulate"}, dense_ratio=0.7)
    records = [
        example(), example(ranks=4), example(system="sonicmoe", dense_ratio=0.75),
        example(case="olmoe", dense_ratio=0.5), example(pass_="fwdbwd"), accumulated,
    ]  # fmt: skip
    text = report.summary(records)
    assert "monomoe  monomoe R=4  sonicmoe" in text and "gradients added to fp32" in text
    assert re.search(r"^qwen3-30b +0\.900 +0\.900 +0\.750$", text, re.M)
    assert re.search(r"^olmoe +0\.500 +- +-$", text, re.M)
    assert re.search(r"^SHORT +olmoe fwd: \d gates, 1 short$", text, re.M)
    assert "dense ratio 0.500; at least 0.88 wanted, aim 0.97" in text
    assert report.summary([]) == ""


# -------------------------------------------------------------------------------------- samples


class Counted(Host):
    """Times by a counter: a call takes as many ms as it adds."""

    def __init__(self):
        super().__init__()
        self.now = 0.0
        self.spacers = 0

    def spacer(self):
        self.spacers += 1

    def sample(self, call):
        before = self.now
        call()
        took = self.now - before
        return lambda: took


def test_systems_take_turns_after_the_warm_up():
    device, seen = Counted(), []

    def call(name, ms):
        def run():
            seen.append(name)
            device.now += ms

        return run

    calls = {name: call(name, ms) for name, ms in (("a", 1.0), ("b", 2.0), ("c", 3.0))}
    protocol = measure.Protocol(samples=12, warmups=5, warm_s=0.0)
    samples = measure.interleave(device, calls, protocol)
    assert samples.ms == {"a": [1.0] * 12, "b": [2.0] * 12, "c": [3.0] * 12}
    rounds = [tuple(seen[i : i + 3]) for i in range(0, len(seen), 3)]
    assert len(rounds) == 17 and all(sorted(one) == ["a", "b", "c"] for one in rounds)
    assert len(set(rounds)) > 1  # the order is drawn anew
    assert device.spacers == len(seen)


def test_warm_up_lasts_long_enough():
    device, count = Host(), 0

    def call():
        nonlocal count
        count += 1

    measure.interleave(device, {"a": call}, measure.Protocol(1, warmups=20, warm_s=0.0))
    assert count == 21
    measure.interleave(device, {"a": call}, measure.Protocol(1, warmups=1, warm_s=0.05))
    assert count > 23


# ----------------------------------------------------------------------------------- correctness


@pytest.fixture(scope="module")
def smoke():
    """The inputs of the smoke case and the layer's own results."""
    inputs = cases.make_inputs(cases.SMOKE, CPU)
    system = systems.MonoMoE(inputs)
    yield inputs, correct.run_once(system, backward=True)
    system.close()


def test_right_results_pass_the_comparison_with_float64(smoke):
    inputs, results = smoke
    verdicts = correct.against_float64(inputs, results)
    assert {v.name for v in verdicts} == set(results) and all(v.passed for v in verdicts)
    assert [v.name for v in correct.against_float64(inputs, {"y": results["y"]})] == ["y"]


@pytest.mark.parametrize("name", [*testing.RANK_INVARIANT, *testing.PER_RANK_SUMS])
def test_a_wrong_result_does_not_pass(smoke, name):
    inputs, results = smoke
    wrong = results | {name: results[name] * 1.03}
    bad = {v.name for v in correct.against_float64(inputs, wrong) if not v.passed}
    assert bad == {name}
    errors = correct.relative_errors(wrong, results)
    assert max(errors, key=errors.get) == name and errors[name] == pytest.approx(0.03, rel=0.1)
    assert all(error == 0 for other, error in errors.items() if other != name)


def test_accumulated_gradients_have_the_written_bits(smoke):
    inputs, results = smoke
    system = systems.MonoMoE(inputs)
    main_grads = systems.main_grads(inputs)
    main_grads.down.fill_(7)  # what is there before does not count
    assert correct.accumulates(system, main_grads, results) == []
    other = results | {"ddown": results["ddown"] + 1}
    assert correct.accumulates(system, main_grads, other) == ["ddown"]
    system.close()


def test_torch_computes_the_same_layer(smoke):
    inputs, results = smoke
    got = correct.run_once(systems.TorchEager(inputs), backward=True)
    assert got.keys() == results.keys()
    assert max(correct.relative_errors(got, results).values()) < 2**-6


def test_torch_adds_to_main_grads_in_their_layout(smoke):
    inputs, results = smoke
    main_grads = systems.main_grads(inputs)
    system = systems.TorchEager(inputs)
    system.backward(system.forward(), main_grads)
    names = [f"d{name}" for name in monomoe.Weights.names()]
    got = dict(zip(names, main_grads.tensors()))
    wanted = {name: results[name] for name in names}
    assert max(correct.relative_errors(got, wanted).values()) < 2**-6


def test_sonicmoe_layout_is_gate_and_up_in_turn(smoke):
    inputs, _ = smoke
    system = rivals.SonicMoE.__new__(rivals.SonicMoE)
    packed = system.pack(inputs.gate_up)
    assert packed.shape == (256, 64, 8) and packed.stride() == (64, 1, 256 * 64)
    assert torch.equal(packed[::2, :, 3], inputs.weights.gate[3])
    assert torch.equal(packed[1::2, :, 3], inputs.weights.up[3])
    assert torch.equal(system.unpack(packed), inputs.gate_up.view(8, 2, 128, 64))
    down = system.pack_down(inputs.weights.down)
    assert down.shape == (64, 128, 8) and torch.equal(system.unpack_down(down), inputs.weights.down)


# ------------------------------------------------------------------------------------ the command

FAST = ("--device", "cpu", "--samples", "1", "--commit", "abc1234")


@pytest.fixture
def quick(monkeypatch):
    """Without the minutes of a real warm-up."""
    monkeypatch.setattr(measure, "Protocol", lambda samples: _PROTOCOL(samples, 1, 0.0))


_PROTOCOL = measure.Protocol


def test_command_measures_checks_and_records(quick, tmp_path, capsys):
    arguments = ["--records", str(tmp_path), "--systems", "monomoe,dense,torch-eager"]
    assert main(["bench", *FAST, *arguments]) == 0
    (path,) = tmp_path.glob("*.jsonl")
    records = record.read([path])
    made = {(r.pass_, r.system, r.ranks, targets.kind(r)) for r in records}
    plain = [("monomoe", 1), ("monomoe", 2), ("dense", 1), ("torch-eager", 1)]
    wanted = {(pass_, *s, "") for pass_ in record.PASSES for s in plain}
    wanted |= {(pass_, "monomoe", 1, "ring_rows=2048") for pass_ in record.PASSES}
    wanted |= {("fwdbwd", "monomoe", 1, "save=none")}
    wanted |= {("fwdbwd", s, 1, "weight_grads=accumulate") for s in ("monomoe", "torch-eager")}
    assert made == wanted and len(records) == len(wanted)
    for r in records:
        assert r.case == "smoke" and r.commit == "abc1234" and r.samples == 1
        assert r.dense_ratio > 0 and (r.sched_ms is not None) == (r.system == "monomoe")
        assert (r.hash is None) == (r.system == "dense")
    for pass_ in record.PASSES:
        hashes = {r.hash for r in records if r.pass_ == pass_ and r.system == "monomoe"}
        assert len(hashes) == 1  # ranks and options change no bit
    out = capsys.readouterr().out
    assert "ratio to dense, fwdbwd, gradients added to fp32" in out and "smoke fwdbwd: " in out

    assert main(["bench", "--report", str(path)]) == 0
    again = capsys.readouterr().out
    assert again.split("\n\n", 1)[1] == out.split("\n\n", 1)[1]


def test_command_does_not_time_wrong_results(quick, monkeypatch, tmp_path, capsys):
    plain = functional.forward

    def broken(*args):
        y, ctx = plain(*args)
        return y * 1.1, ctx

    monkeypatch.setattr(functional, "forward", broken)
    arguments = ["--records", str(tmp_path), "--systems", "monomoe,dense", "--pass", "fwd"]
    assert main(["bench", *FAST, *arguments]) == 1
    assert not list(tmp_path.iterdir())
    assert "WRONG  smoke monomoe R=1: y: error" in capsys.readouterr().out


def test_command_does_not_time_a_wrong_rival_but_the_rest(quick, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(systems.TorchEager, "call", lambda self: self.x * self.gate_up.sum())
    arguments = ["--records", str(tmp_path), "--systems", "monomoe,torch-eager", "--pass", "fwd"]
    assert main(["bench", *FAST, *arguments, "--plain"]) == 1
    (path,) = tmp_path.glob("*.jsonl")
    assert {r.system for r in record.read([path])} == {"monomoe"}
    assert "it is not timed" in capsys.readouterr().out


def test_command_measures_forward_alone_where_backward_is_refused(quick, monkeypatch, capsys):
    def refuse(*_):
        raise RuntimeError("backward: a CPU tensor wanted, a CUDA tensor given; move the layer")

    monkeypatch.setattr(functional, "backward", refuse)
    arguments = ["--records", "none", "--systems", "monomoe,dense", "--plain"]
    assert main(["bench", *FAST, *arguments]) == 0
    out = capsys.readouterr().out
    assert "no fwdbwd: backward: a CPU tensor wanted" in out and "pass fwd," in out
    assert main(["bench", *FAST, *arguments, "--pass", "fwdbwd"]) == 1
    assert "--pass: fwd wanted" in capsys.readouterr().err


def test_command_does_not_take_a_fault_for_a_refusal(monkeypatch):
    def fault(*_):
        raise RuntimeError("backward: rank 1 did not raise rows_ready in 20 s")

    monkeypatch.setattr(functional, "backward", fault)
    with pytest.raises(RuntimeError, match="did not raise"):
        run.backward_refusal(Host())


def test_command_starts_no_case_out_of_time(quick, capsys):
    arguments = ["--records", "none", "--systems", "dense", "--minutes", "-1"]
    assert main(["bench", *FAST, *arguments]) == 1
    assert "no time for: smoke; pass --minutes or --cases" in capsys.readouterr().out


def test_command_says_which_systems_are_not_there(quick, monkeypatch, capsys):
    monkeypatch.setitem(__import__("sys").modules, "sonicmoe", None)
    arguments = ["--records", "none", "--pass", "fwd", "--plain"]
    assert main(["bench", *FAST, *arguments, "--systems", "dense,sonicmoe"]) == 1
    assert "not measured: sonicmoe: " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--cases", "qwen3"], "--cases: of qwen3-30b, olmoe, "),
        (["--pass", "bwd"], "--pass: of fwd, fwdbwd wanted, bwd given"),
        (["--systems", "megablocks"], "wanted, megablocks given; leave it out for the default"),
        (["--systems", ""], "wanted, nothing given"),
        (["--samples", "0"], "--samples: 1 or more wanted, 0 given"),
        (["--records", "/no/such/folder"], "--records: a folder that exists wanted"),
        (["--report", "/no/such/file"], "No such file"),
    ],
)
def test_command_refuses_bad_arguments(arguments, sentence, capsys):
    assert main(["bench", *FAST, *arguments]) == 1
    assert sentence in capsys.readouterr().err


def test_command_refuses_bad_ranks(capsys):
    with pytest.raises(SystemExit):
        main(["bench", *FAST, "--ranks", "0,1"])
    assert "numbers from 1 wanted, '0,1' given" in capsys.readouterr().err


def test_command_wants_a_commit_for_records(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(record, "commit_of", lambda _: None)
    assert main(["bench", "--device", "cpu", "--records", str(tmp_path)]) == 1
    assert "--commit: of what is measured wanted" in capsys.readouterr().err


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_command_wants_a_gpu(capsys):
    assert main(["bench", "--records", "none"]) == 1
    assert "bench: a GPU that torch can use wanted, none found" in capsys.readouterr().err


def test_commit_is_what_git_says(tmp_path):
    assert record.commit_of(tmp_path) is None
    if (ROOT / ".git").exists():
        assert re.match(r"[0-9a-f]{7}", record.commit_of(ROOT))
