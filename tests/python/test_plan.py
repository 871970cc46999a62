"""`describe` and `python -m monomoe plan`: what they list is what a call does."""

import collections
import json
import re
import xml.etree.ElementTree as xml

import pytest
import torch

from helpers import case_id
from monomoe import Config, Shape, backward, describe, explain, forward, schedule, testing
from monomoe import Group
from monomoe.cli import main
from monomoe.cli.plan import amount
from monomoe.testing import Case

ALL = 1 << 20
CASES = [
    Case(0, 64, 40, 4, 2),
    Case(65, 264, 136, 6, 2, shared=136, score=True),
    Case(700, 136, 40, 3, 2, routing="skewed", config=Config(ring_rows=256, save_rows=128)),
    Case(300, 64, 200, 5, 3, routing="unrouted", shared=24, config=Config(save="none")),
    Case(40, 64, 40, 8, 2, routing="even_only"),
]


def plan_of(case, ranks, rank, is_backward, tickets=ALL):
    shape = Shape(case.tokens, case.hidden, case.intermediate, case.experts, case.top_k,
                  case.shared, ranks)  # fmt: skip
    return describe(
        testing.make_inputs(case).topk_ids, shape, case.config, backward=is_backward, rank=rank,
        tickets=tickets, score=case.score,
    )  # fmt: skip


@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize("case", CASES, ids=case_id)
def test_tasks_are_those_that_a_call_executes(case, ranks):
    inputs = testing.make_inputs(case)
    with Group.local(ranks) as group:
        sched = schedule(inputs.topk_ids, case.experts, group)
        _, ctx = forward(inputs.x, inputs.topk_weights, inputs.weights, sched, case.config)
        done = [testing.tasks_done(group, rank) for rank in range(ranks)]
        backward(inputs.dy, ctx)
        done += [testing.tasks_done(group, rank) for rank in range(ranks)]
    plans = [plan_of(case, ranks, r, b) for b in (False, True) for r in range(ranks)]
    assert [sum(plan["tasks"].values()) for plan in plans] == done
    for plan in plans:
        assert sum(line["tickets"] for line in plan["lines"]) == sum(plan["tasks"].values())
        assert all(len(line["tasks"]) == line["tickets"] for line in plan["lines"])
    rows = sum(e["rows"] for plan in plans[:ranks] for e in plan["experts"])
    assert rows == (inputs.topk_ids >= 0).sum()


@pytest.mark.parametrize("is_backward", [False, True], ids=["forward", "backward"])
@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize("case", CASES, ids=case_id)
def test_every_wait_is_for_what_the_listed_tasks_raise(case, ranks, is_backward):
    raised, seen, waits = collections.Counter(), set(), []
    for rank in range(ranks):
        plan = plan_of(case, ranks, rank, is_backward)
        for line in plan["lines"]:
            for task in line["tasks"]:
                waits += task["waits"]
                refs = list(task["raises"])
                if "last_raises" in task and (rank, task["row"]) not in seen:
                    seen.add((rank, task["row"]))  # one column of a row tile does it
                    refs += task["last_raises"]
                for ref in refs:
                    raised[ref["counter"], ref["rank"], ref["index"]] += ref["by"]
    assert waits or case.tokens == 0
    for ref in waits:
        total = raised[ref["counter"], ref["rank"], ref["index"]]
        if ref["counter"] in ("wgrad_spill", "shared_chain"):  # these count what came before
            assert total >= ref["value"], ref
        else:
            assert total == ref["value"], ref


def test_memory_is_what_explain_says():
    case = CASES[1]
    plan = plan_of(case, 1, 0, True, tickets=0)
    text = explain(Shape(65, 264, 136, 6, 2, shared=136))
    for region in plan["memory"]["regions"]:
        if region["where"] != "saved" and region["name"] not in ("spill", "dscore"):
            assert f"  {region['name']}: {region['bytes'] / 2**20:.1f} MiB" in text, region
    ends = {}
    for region in plan["memory"]["regions"]:
        assert region["offset"] >= ends.get(region["where"], 0)
        ends[region["where"]] = region["offset"] + region["bytes"]
    assert ends["heap"] <= plan["memory"]["heap_bytes"]
    assert ends["saved"] <= plan["memory"]["saved_bytes"]


def test_plan_of_a_gpu_can_be_seen_without_one():
    ids = testing.make_inputs(Case(300, 8, 8, 4, 2)).topk_ids
    plan = describe(ids, Shape(300, 256, 128, 4, 2), backend="sm90")
    assert plan["knobs"]["workers"] == 132 and plan["backend"] == "sm90"


# ----------------------------------------------------------------------------- command line

SIZES = ["--tokens", "200", "--experts", "3", "--ranks", "2"]


def test_plan_prints_tasks_order_waits_and_memory(capsys):
    assert main(["plan", *SIZES, "--shared", "64", "--tickets", "5"]) == 0
    text = capsys.readouterr().out
    for line in ("forward on rank 0 of 2", "main line: ", "tickets, the first 5",
                 "  gate_up              expert 0 tile 0 column 0 ", " waits for rows_ready[0] = ",
                 "stage_flag[0] of this call", "raises rows_ready[0]", "  heap   x_stage ",
                 "  saved  preact ", "counters: rows_ready "):  # fmt: skip
        assert line in text, line
    more = ["--backward", "--rank", "1", "--routing", "one", "--tickets", "99"]
    assert main(["plan", *SIZES, *more]) == 0
    text = capsys.readouterr().out
    assert "backward on rank 1 of 2" in text and "wgrad_down" in text
    assert "expert 1 grad [0, 0] of no rows" not in text  # expert 1 is rank 0's
    assert re.search(r"expert 2 grad \[1, 0\] of tiles 0\.\.\d", text)


def test_plan_prints_json_and_takes_routes_from_a_file(capsys, tmp_path):
    torch.save(torch.tensor([[0, 2], [2, 1], [-1, 2]]), tmp_path / "ids.pt")
    command = ["plan", "--json", "--experts", "3", "--ids", str(tmp_path / "ids.pt")]
    assert main(command) == 0
    plan = json.loads(capsys.readouterr().out)
    assert [e["rows"] for e in plan["experts"]] == [1, 1, 3]


@pytest.mark.parametrize("more", [[], ["--backward"], ["--shared", "64", "--score"],
                                  ["--tokens", "0"]])  # fmt: skip
def test_plan_draws_the_first_tickets(capsys, tmp_path, more):
    command = ["plan", *SIZES, *more, "--tickets", "9"]
    assert main([*command, "--svg", str(tmp_path / "plan.svg")]) == 0
    assert "drawn: " in capsys.readouterr().out
    assert main([*command, "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    tree = xml.parse(tmp_path / "plan.svg").getroot()
    space = "{http://www.w3.org/2000/svg}"
    boxes = tree.findall(f"{space}g")
    assert len(boxes) == sum(len(line["tasks"]) for line in plan["lines"])
    width, height = float(tree.get("width")), float(tree.get("height"))
    for box in boxes:
        rect = box.find(f"{space}rect")
        assert 0 <= float(rect.get("x")) <= width - float(rect.get("width"))
        assert 0 <= float(rect.get("y")) <= height - float(rect.get("height"))
        assert box.find(f"{space}title").text.count("\n") >= 2
    kinds = {text.text for text in tree.iter(f"{space}text") if text.get("class") == "kind"}
    assert kinds == {task["kind"] for line in plan["lines"] for task in line["tasks"]}
    arrows = [p for p in tree.findall(f"{space}path") if p.get("marker-end")]
    assert (len(arrows) > 8) == bool(boxes) or more == ["--tokens", "0"]


@pytest.mark.parametrize("arguments, sentence", [
    (["--hidden", "20"], "hidden width H: a multiple of 8 in [8, 1048576] wanted, 20 given; "),
    (["--top-k", "9"], "top_k: 1 <= K <= E = 4 wanted, 9 given; "),
    (["--rank", "1"], "rank: a value in [0, 0] wanted, 1 given; "),
    (["--tickets", "-1"], "tickets: a value in [0, 1048576] wanted, -1 given; "),
    (["--ring-rows", "1"], "ring_rows: a value in [256, 2147483648] wanted, 1 given; "),
    (["--ids", "/nowhere/ids.pt"], "No such file"),
    (["--svg", "/nowhere/plan.svg"], "No such file"),
])  # fmt: skip
def test_plan_refuses_with_the_librarys_sentence(capsys, arguments, sentence):
    assert main(["plan", *arguments]) == 1
    assert sentence in capsys.readouterr().err


def test_amounts_read_well():
    assert [amount(n) for n in (0, 1023, 1024, 5 << 20, 3 << 30)] == [
        "0 B", "1023 B", "1.0 KiB", "5.0 MiB", "3.0 GiB",
    ]  # fmt: skip
