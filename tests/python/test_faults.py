"""Every wait is bounded: a rank that never comes ends the call in time, with a sentence."""

import threading
import time

import pytest
import torch

from monomoe import Group, MoELayer, backward, forward, schedule, testing
from monomoe.testing import Case

CASE = Case(64, 32, 40, 6, 2)
TIMEOUT_S = 0.5


def calls(group):
    inputs = testing.make_inputs(CASE)
    sched = schedule(inputs.topk_ids, CASE.experts, group)
    return inputs, lambda: forward(inputs.x, inputs.topk_weights, inputs.weights, sched)


@pytest.mark.parametrize("order", ["threads", "ticket", "adversarial"])
@pytest.mark.parametrize("ranks, absent", [(2, 0), (2, 1), (3, 2), (5, 3)])
def test_absent_rank_ends_forward_in_time_and_is_named(ranks, absent, order):
    with Group.local(ranks, timeout_s=TIMEOUT_S) as group:
        testing.set_executor(group, order)
        _, run_forward = calls(group)
        testing.never_start(group, absent)
        start = time.monotonic()
        with pytest.raises(RuntimeError) as caught:
            run_forward()
        assert time.monotonic() - start < TIMEOUT_S + 5
        assert f"rank {absent} missing" in str(caught.value)
        assert str(caught.value).startswith(f"group: {ranks} ranks in forward call ")


@pytest.mark.parametrize("absent", [0, 1])
def test_absent_rank_ends_backward_in_time_and_outputs_hold_nan(absent):
    with Group.local(2, timeout_s=TIMEOUT_S) as group:
        inputs, run_forward = calls(group)
        _, ctx = run_forward()
        testing.never_start(group, absent)
        main = inputs.weights.map(lambda w: torch.zeros(w.shape))
        with pytest.raises(RuntimeError, match=f"in backward call .*rank {absent} missing"):
            backward(inputs.dy, ctx, accumulate=main)
        for tensor in (main.gate, main.up, main.down):
            assert tensor.isnan().all()


@pytest.mark.parametrize("order", ["threads", "ticket", "adversarial"])
@pytest.mark.parametrize("absent", [0, 1])
def test_absent_rank_for_which_nobody_waits_ends_the_call_in_time(absent, order):
    """Without tokens a backward only writes zeros: no rank waits for another."""
    case = Case(0, 32, 40, 6, 2)
    with Group.local(2, timeout_s=TIMEOUT_S) as group:
        inputs = testing.make_inputs(case)
        sched = schedule(inputs.topk_ids, case.experts, group)
        _, ctx = forward(inputs.x, inputs.topk_weights, inputs.weights, sched)
        testing.set_executor(group, order)
        testing.never_start(group, absent)
        start = time.monotonic()
        with pytest.raises(RuntimeError) as caught:
            backward(inputs.dy, ctx)
        assert time.monotonic() - start < TIMEOUT_S + 5
        assert str(caught.value).startswith(
            f"group: 2 ranks in backward call 2 wanted, rank {absent} missing; "
            "the other ranks are done and waited "
        )


@pytest.mark.parametrize("part", ["schedule", "kind", "sizes"])
def test_ranks_in_different_calls_end_the_call_at_once(part):
    with Group.local(3, timeout_s=60) as group:
        inputs, run_forward = calls(group)
        _, ctx = run_forward()
        testing.falsify(group, 2, part)
        start = time.monotonic()
        with pytest.raises(RuntimeError, match="the same call on all ranks wanted, ") as first:
            backward(inputs.dy, ctx)
        assert time.monotonic() - start < 5
        if part == "kind":
            assert "backward on rank 0 and forward on rank 2 given as call 2" in str(first.value)
        testing.falsify(group, -1)
        with pytest.raises(RuntimeError) as later:
            run_forward()
        assert str(later.value) == str(first.value)


def test_later_calls_and_check_report_the_fault():
    with Group.local(2, timeout_s=TIMEOUT_S) as group:
        _, run_forward = calls(group)
        testing.never_start(group, 1)
        with pytest.raises(RuntimeError) as first:
            run_forward()
        testing.never_start(group, -1)
        for call in (run_forward, group.check):
            with pytest.raises(RuntimeError) as later:
                call()
            assert str(later.value) == str(first.value)
    group.close()


def test_absent_rank_ends_a_layer_in_time():
    with Group.local(2, timeout_s=TIMEOUT_S) as group:
        layer = MoELayer(32, 40, 6, 2, group=group)
        inputs = testing.make_inputs(CASE)
        testing.never_start(group, 0)
        with pytest.raises(RuntimeError, match="rank 0 missing"):
            layer(inputs.x, inputs.topk_ids, inputs.topk_weights)


def test_a_waiting_call_lets_other_python_threads_run():
    with Group.local(2, timeout_s=1.0) as group:
        _, run_forward = calls(group)
        testing.never_start(group, 1)
        errors = []

        def wait():
            try:
                run_forward()
            except RuntimeError as error:
                errors.append(error)

        waiting = threading.Thread(target=wait)
        waiting.start()
        ticks = 0
        while waiting.is_alive():
            time.sleep(0.01)
            ticks += 1
        assert errors and ticks >= 20


def test_threads_may_share_a_group_and_use_several():
    inputs = testing.make_inputs(CASE)
    with Group.local(2) as shared, Group.local(3) as other:
        wanted = testing.run_layer(inputs, shared, CASE)
        wrong = []

        def work(group):
            for _ in range(10):
                try:
                    testing.assert_same_bits(testing.run_layer(inputs, group, CASE), wanted)
                except AssertionError as error:
                    wrong.append(error)

        threads = [threading.Thread(target=work, args=(g,)) for g in (shared, shared, other)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not wrong
