"""Field cases of workspaces and ranks: calls in flight, late and dead ranks, exit.

Each test is named after its case; docs/field_cases.md lists them all. Unless a test says otherwise,
results agree with float64 by the error rule and every number of ranks gives the same bits."""

import subprocess
import sys
import threading
import time

import pytest
import torch

from field_problems import agrees, context_of, inputs_with, layer_run, with_counts
from helpers import run
from monomoe import Config, Group, backward, testing
from monomoe.testing import Case

# -------------------------------------------------------------------------------- workspace


@pytest.mark.parametrize("ranks", [1, 2])
def test_F78_fewer_tiles_than_in_the_call_before(ranks):
    with Group.local(ranks) as group:
        for tiles in (11, 9, 1, 11):
            case, inputs = with_counts([128] * (tiles - 1) + [100] + [0] * (11 - tiles))
            got = testing.run_layer(inputs, group, case)
            testing.assert_same_bits(got, run(case, ranks, inputs=inputs))


@pytest.mark.parametrize("ranks", [1, 2])
def test_F80_two_calls_in_flight_on_one_group(ranks):
    """From two threads, where a GPU would have two streams."""
    cases = [Case(65, 16, 24, 4, 2), Case(200, 40, 16, 3, 1)]
    wanted = [run(case, ranks) for case in cases]
    wrong = []
    with Group.local(ranks) as group:

        def work(case, want):
            inputs = testing.make_inputs(case)
            for _ in range(25):
                try:
                    testing.assert_same_bits(testing.run_layer(inputs, group, case), want)
                except AssertionError as error:
                    wrong.append(error)

        threads = [threading.Thread(target=work, args=a) for a in zip(cases, wanted)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not wrong


def test_F84_second_backward_over_one_graph():
    from torch.utils.checkpoint import checkpoint

    layer, x, ids, weights, dy = layer_run()
    y = layer(x, ids, weights)
    wanted = torch.autograd.grad(y, (x, *layer.parameters()), dy, retain_graph=True)
    (dx,) = torch.autograd.grad(y, x, dy, retain_graph=True)
    dparams = torch.autograd.grad(y, list(layer.parameters()), dy)
    for got, want in zip((dx, *dparams), wanted, strict=True):
        assert torch.equal(got, want)
    y = checkpoint(layer, x, ids, weights, use_reentrant=False)
    for _ in range(2):
        (dx,) = torch.autograd.grad(y, x, dy, retain_graph=True)
        assert torch.equal(dx, wanted[0])


@pytest.mark.parametrize("order", ["ab", "ba"])
@pytest.mark.parametrize("ranks", [1, 2])
def test_F85_two_forwards_then_two_backwards(order, ranks):
    cases = {"a": Case(33, 16, 24, 4, 2), "b": Case(70, 16, 24, 4, 2, routing="skewed", seed=1)}
    with Group.local(ranks) as group:
        made, got = {}, {}
        for name, case in cases.items():
            inputs = testing.make_inputs(case)
            made[name] = inputs, context_of(inputs, 4, group)
        inputs = testing.make_inputs(cases["b"])  # a forward in between that keeps nothing
        context_of(inputs, 4, group, config=Config(save="none"))
        for name in order:
            inputs, ctx = made[name]
            got[name] = backward(inputs.dy, ctx)
    for name, case in cases.items():
        wanted = run(case, ranks)
        assert torch.equal(got[name].x, wanted["dx"])
        assert torch.equal(got[name].weights.down, wanted["ddown"])


# -------------------------------------------------------------------- protocol between ranks


def test_F90_experts_of_all_ranks_but_one_receive_nothing():
    """Scaled: 24 rounds for 100; delays are random orders of tasks."""
    case = Case(32, 16, 24, 8, 2)
    wanted = {}
    with Group.local(4, timeout_s=60) as group:
        for n in range(24):
            owner = n % 4
            inputs = inputs_with(case, topk_ids=torch.tensor([[2 * owner, 2 * owner + 1]] * 32))
            testing.set_executor(group, "adversarial" if n % 3 else "threads", n)
            got = testing.run_layer(inputs, group, case)
            want = wanted.setdefault(owner, agrees(case, inputs, (1,)) if n < 4 else None)
            testing.assert_same_bits(got, want, testing.RANK_INVARIANT)


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_F91_most_rows_at_one_rank_with_the_smallest_ring(ranks):
    case = Case(8 * 256 // ranks, 16, 24, 16, 1)
    inputs = testing.make_inputs(case)
    hot = torch.rand(case.tokens, generator=torch.Generator().manual_seed(0)) < 0.9
    own = 16 // ranks
    inputs.topk_ids[hot] = torch.randint(own, (int(hot.sum()), 1))
    start = time.monotonic()
    agrees(case, inputs, (ranks, 1), Config(ring_rows=256))
    assert time.monotonic() - start < 60


@pytest.mark.parametrize("phase", ["forward", "backward"])
def test_F94_a_rank_that_is_dead_ends_the_call_in_time(phase):
    """A rank of this process (killed processes come with groups over processes). Scaled: a limit of
    0.5 s for 5."""
    case = Case(64, 16, 24, 4, 2)
    inputs = testing.make_inputs(case)
    with Group.local(2, timeout_s=0.5) as group:
        if phase == "backward":
            ctx = context_of(inputs, 4, group)
        testing.never_start(group, 1)
        start = time.monotonic()
        with pytest.raises(RuntimeError, match=f"in {phase} call .*rank 1 missing"):
            backward(inputs.dy, ctx) if phase == "backward" else context_of(inputs, 4, group)
        assert time.monotonic() - start < 2.5


def test_F95_a_rank_that_is_late_is_not_dead():
    """Scaled: a limit of 1.5 s for 5, delays of 0.5 and 3 s for 4 and 6: machines are shared."""
    case = Case(64, 16, 24, 4, 2)
    inputs = testing.make_inputs(case)
    wanted = run(case, 2)
    with Group.local(2, timeout_s=1.5) as group:
        testing.start_late(group, 1, 0.5)
        start = time.monotonic()
        testing.assert_same_bits(testing.run_layer(inputs, group, case), wanted)
        assert time.monotonic() - start > 1.0  # forward and backward waited
    for phase in ("forward", "backward"):
        with Group.local(2, timeout_s=1.5) as group:
            if phase == "backward":
                ctx = context_of(inputs, 4, group)
            testing.start_late(group, 1, 3.0)
            with pytest.raises(RuntimeError, match="rank 1 missing"):
                backward(inputs.dy, ctx) if phase == "backward" else context_of(inputs, 4, group)
    with Group.local(2) as group:
        assert group.timeout_s == 600  # a checkpoint of minutes ends no healthy job
        testing.start_late(group, 0, 0.5)
        testing.assert_same_bits(testing.run_layer(inputs, group, case), wanted)


@pytest.mark.parametrize("split, first", [([0, 64], 0), ([32, 32], 2), ([0, 64], 2)])
def test_F96_rank_without_tokens_or_rows_takes_part_in_backward(split, first):
    with Group.local(2) as group:
        layer, x, _, weights, dy = layer_run(Case(64, 16, 24, 4, 2), group)
        ids = torch.randint(first, 4, (64, 2))
        layer(x, ids, weights, split).backward(dy)
        alone, x1, *_ = layer_run(Case(64, 16, 24, 4, 2))
        alone(x1, ids, weights).backward(dy)
    assert torch.equal(x.grad, x1.grad)
    for p, q in zip(layer.parameters(), alone.parameters()):
        assert p.grad is not None and torch.equal(p.grad, q.grad)
        assert first == 0 or not p.grad[:first].any()


def test_F99_first_call_of_a_new_group_with_a_late_rank():
    """Scaled: up to 20 ms for 1 s."""
    case = Case(16, 16, 24, 4, 2)
    inputs, wanted = testing.make_inputs(case), run(case, 2)
    for n in range(50):
        with Group.local(2, timeout_s=30) as group:
            testing.start_late(group, n % 2, 0.0004 * n)
            testing.assert_same_bits(testing.run_layer(inputs, group, case), wanted)


EXIT = """
import sys, torch, monomoe
from monomoe.testing import Case, make_inputs, run_layer
case = Case(16, 16, 24, 4, 2)
group = monomoe.Group.local(2)
layer = monomoe.MoELayer(16, 24, 4, 2, group=group)
i = make_inputs(case)
y = layer(i.x.requires_grad_(), i.topk_ids, i.topk_weights)
mode = sys.argv[1]
if mode == "twice":
    y.backward(i.dy); group.close(); group.close()
    for _ in range(20):
        with monomoe.Group.local(2) as g: run_layer(make_inputs(case), g, case)
if mode == "raise":
    raise KeyError("a user's error")
sys.exit(7 if mode == "code" else 0)
"""


@pytest.mark.parametrize("mode, code", [("code", 7), ("raise", 1), ("twice", 0)])
def test_F102_exit_and_tear_down(mode, code):
    """Of groups in this process. The time is for importing torch too."""
    command = [sys.executable, "-c", EXIT, mode]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == code, done.stderr
    assert mode == "raise" or done.stderr == ""
