"""What a launch on a GPU does when a rank does not come, is late, or makes another call: it ends in
time, names the rank, and leaves the GPU usable. Needs a GPU: tools/device_test.sh."""

import os
import subprocess
import sys
import time

import pytest
import torch
from on_gpu import CASES, LARGE, assert_same, of_one_rank, problem_of

import monomoe
from monomoe import Group, testing

TIMEOUT_S = 0.3


def fault_of(group, at_most_s: float) -> str:
    """Waits for what was launched; the sentence that the group then has to say."""
    start = time.monotonic()
    torch.cuda.synchronize()
    assert time.monotonic() - start < at_most_s
    with pytest.raises(RuntimeError) as caught:
        group.check()
    return str(caught.value)


def schedule(group, case=LARGE):
    sched = monomoe.schedule(problem_of(case).gpu.topk_ids, case.experts, group)
    torch.cuda.synchronize()
    return sched


def assert_gpu_is_usable():
    """No block was left behind, no error sticks, and a new group gives the right bits."""
    assert torch.ones(1000, device="cuda").sum().item() == 1000
    for ranks in (1, 3):
        assert_same(problem_of(LARGE).run(Group.local(ranks, timeout_s=5)), of_one_rank(LARGE))


@pytest.mark.parametrize("ranks, absent", [(2, 0), (2, 1), (3, 2), (4, 1), (8, 5)])
def test_absent_rank_ends_the_launches_in_time_and_is_named(ranks, absent):
    group = Group.local(ranks, timeout_s=TIMEOUT_S)
    problem_of(LARGE).run(group)
    sched = schedule(group)
    testing.never_start(group, absent)
    y = problem_of(LARGE).forward(sched)
    text = fault_of(group, TIMEOUT_S + 2)
    assert text.startswith(
        f"group: {ranks} ranks in forward call 2 wanted, rank {absent} missing; rank "
    )
    assert f" waited {TIMEOUT_S} s for " in text
    assert text.endswith("find out why the rank did not come")
    # (The rank that never came can't write its part.)
    for rank, part in enumerate(y.split(monomoe.functional.native().split_tokens(1000, ranks))):
        assert rank == absent or part.isnan().all()
    testing.never_start(group, -1)
    for call in (group.check, lambda: problem_of(LARGE).forward(sched), lambda: schedule(group)):
        with pytest.raises(RuntimeError) as later:
            call()
        assert str(later.value) == text
    assert_gpu_is_usable()
    group.close()
    assert_gpu_is_usable()


@pytest.mark.parametrize("accumulate", [False, True])
def test_absent_rank_ends_backward_in_time_and_gradients_hold_nan(accumulate):
    case = testing.Case(200, 64, 72, 6, 2, shared=24, score=True)
    inputs = testing.make_inputs(case).to("cuda")
    group = Group.local(2, timeout_s=TIMEOUT_S)
    sched = monomoe.schedule(inputs.topk_ids, case.experts, group)
    _, ctx = monomoe.forward(inputs.x, inputs.topk_weights, inputs.weights, sched)
    torch.cuda.synchronize()
    testing.never_start(group, 1)
    main = inputs.weights.map(lambda w: torch.zeros_like(w, dtype=torch.float32))
    grads = monomoe.backward(inputs.dy, ctx, main if accumulate else None)
    text = fault_of(group, TIMEOUT_S + 2)
    assert text.startswith("group: 2 ranks in backward call 2 wanted, rank 1 missing; rank 0 (")
    of_rank_0 = [grads.x[:100], grads.topk_weights[:100]]
    of_rank_0 += [t[:3] for t in grads.weights.tensors()[:3]] + list(grads.weights.tensors()[3:])
    for tensor in of_rank_0:
        assert tensor.isnan().all()
    assert_gpu_is_usable()


def test_absent_rank_ends_a_schedule_in_time_and_is_named():
    group = Group.local(3, timeout_s=TIMEOUT_S)
    schedule(group)
    testing.never_start(group, 1)
    monomoe.schedule(problem_of(LARGE).gpu.topk_ids, LARGE.experts, group)
    text = fault_of(group, TIMEOUT_S + 2)
    assert text.startswith("group: 3 ranks in schedule call 2 wanted, rank 1 missing; rank ")
    assert text.endswith(
        " waited 0.3 s for its expert ids; no later call runs: close the group, find out why the "
        "rank did not come"
    )
    assert_gpu_is_usable()


def test_a_forward_behind_a_schedule_that_failed_gives_nan():
    """Both are launched before the host can know."""
    group = Group.local(2, timeout_s=TIMEOUT_S)
    problem_of(LARGE).run(group)
    testing.never_start(group, 0)
    sched = monomoe.schedule(problem_of(LARGE).gpu.topk_ids, LARGE.experts, group)
    testing.never_start(group, -1)
    y = problem_of(LARGE).forward(sched)
    assert "in schedule call 2 wanted, rank 0 missing" in fault_of(group, TIMEOUT_S + 2)
    assert y.isnan().all()


@pytest.mark.parametrize("ranks, odd", [(2, 0), (2, 1), (4, 2)])
@pytest.mark.parametrize(
    "part, said",
    [
        ("kind", "on rank"),
        ("schedule", "with different schedules given as call 2"),
        ("sizes", "with different hidden, top_k, experts or save mode given as call 2"),
    ],
)
def test_ranks_in_different_calls_end_at_once_and_mix_no_data(ranks, odd, part, said):
    group = Group.local(ranks, timeout_s=60)
    problem_of(LARGE).run(group)
    sched = schedule(group)
    testing.falsify(group, odd, part)
    y = problem_of(LARGE).forward(sched)
    text = fault_of(group, 5)
    assert text.startswith("group: the same call on all ranks wanted, ") and said in text
    assert text.endswith("close the group, make the same calls in the same order on every rank")
    if part == "kind":
        assert f"backward on rank {odd}" in text
    assert y.isnan().all()
    assert_gpu_is_usable()


def test_launches_that_follow_a_fault_end_at_once_with_nan():
    """Replays of a graph are launched without asking the group."""
    group = Group.local(2, timeout_s=TIMEOUT_S)
    problem_of(LARGE).run(group)
    sched = schedule(group)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = problem_of(LARGE).forward(sched)
    graph.replay()
    torch.cuda.synchronize()
    assert_same(y, of_one_rank(LARGE))
    testing.never_start(group, 1)
    problem_of(LARGE).forward(sched)
    text = fault_of(group, TIMEOUT_S + 2)
    start = time.monotonic()
    for _ in range(20):
        graph.replay()
    torch.cuda.synchronize()
    assert time.monotonic() - start < TIMEOUT_S
    assert y.isnan().all()
    with pytest.raises(RuntimeError) as later:
        group.check()
    assert str(later.value) == text
    assert_gpu_is_usable()


@pytest.mark.parametrize("ranks", [2, 4, 8])
@pytest.mark.parametrize(
    "at, us", [("launch", 3000), ("stage", 200), ("dispatch", 50), ("push", 100)]
)
def test_ranks_that_are_late_anywhere_change_no_bit(ranks, at, us):
    group = Group.local(ranks, timeout_s=10)
    problem_of(LARGE).run(group)
    for late in {0, ranks - 1}:
        testing.pause(group, late, at, us)
        testing.poison(group, 0xFF)
        for case in (LARGE, CASES[5], LARGE):
            assert_same(problem_of(case).run(group), of_one_rank(case))
        testing.pause(group, late, at, 0)


@pytest.mark.parametrize("ranks", [2, 8])
def test_ranks_that_do_not_run_at_the_same_time_are_refused(ranks):
    group = Group.local(ranks)
    testing.never_start(group, 1)
    for call in (lambda: schedule(group), lambda: schedule(group)):
        with pytest.raises(RuntimeError) as caught:
            call()
        assert str(caught.value) == (
            f"group: launches of {ranks} ranks that run at the same time on cuda:0 wanted, "
            f"{ranks - 1} met within 1 s; set CUDA_DEVICE_MAX_CONNECTIONS=32 before the process "
            "first uses CUDA, leave the GPU to it, or use fewer ranks"
        )
    testing.never_start(group, -1)
    assert_same(problem_of(LARGE).run(group), of_one_rank(LARGE))


REFUSALS = """
import torch
import monomoe
from monomoe import testing

case = testing.Case(64, 32, 40, 6, 2)
inputs = testing.make_inputs(case).to("cuda")

def run(group):
    sched = monomoe.schedule(inputs.topk_ids, case.experts, group)
    y, _ = monomoe.forward(inputs.x, inputs.topk_weights, inputs.weights, sched)
    torch.cuda.synchronize()
    group.check()
    return testing.hash_bits(y)

def sentence(call, *args):
    try:
        return call(*args)
    except RuntimeError as error:
        return error

first = run(monomoe.Group())
for ranks in (4, 24, 64):
    print(f"{ranks} ranks:", sentence(run, monomoe.Group.local(ranks, timeout_s=5)))
print("65 ranks:", sentence(run, monomoe.Group.local(65)))
with_graph = monomoe.Group()
try:
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        print("captured first:", sentence(run, with_graph))
except Exception:
    pass
print("one rank:", first)
print("later:", run(with_graph))
print("again:", run(monomoe.Group()))
"""


def test_what_a_process_can_not_do_is_refused_with_a_sentence():
    """In a process of its own, with one connection: launches of many ranks run side by side, or are
    refused; none waits until its time is up."""
    done = subprocess.run(
        [sys.executable, "-c", REFUSALS], capture_output=True, text=True, timeout=90,
        env={**os.environ, "CUDA_DEVICE_MAX_CONNECTIONS": "1"},
    )  # fmt: skip
    said = dict(line.split(": ", 1) for line in done.stdout.splitlines() if ": " in line)
    assert "again" in said, done.stdout + done.stderr
    print(done.stdout)
    assert said["later"] == said["again"] == said["one rank"]
    for ranks in (4, 24, 64):
        assert said[f"{ranks} ranks"] == said["one rank"] or said[f"{ranks} ranks"].startswith(
            f"group: launches of {ranks} ranks that run at the same time on cuda:0 wanted, "
        )
    assert said["65 ranks"] == "group: at most 64 ranks on a GPU wanted, 65 given; use fewer"
    assert said["captured first"].startswith(
        "group: one call of this shape before a CUDA graph captures it wanted, none given"
    )
