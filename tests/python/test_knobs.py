"""No knob changes a bit: saved rows, ring, minibatch, workers, movers, order of tasks, epochs."""

import pytest

from helpers import case_id, check, oracle, run
from monomoe import Config, Group, testing
from monomoe.testing import Case

CROWDED = Case(400, 64, 40, 3, 2, routing="skewed", shared=24, score=True)

KNOBS = [
    Config(save="all"),
    Config(save="none"),
    Config(save_rows=0),
    Config(save_rows=128),
    Config(save_rows=300),
    Config(save="all", save_rows=128),
    Config(save="all", save_rows=10_000),
    Config(ring_rows=256),
    Config(ring_rows=300, save="none"),
    Config(ring_rows=256, save="all", save_rows=256),
    Config(minibatch_rows=128),
    Config(minibatch_rows=1000, ring_rows=1 << 20),
    Config(workers=1),
    Config(workers=7, ring_rows=256),
    Config(fwd_comm_sms=0, bwd_comm_sms=0),
    Config(fwd_comm_sms=3, bwd_comm_sms=1, workers=4),
    Config(ring_rows=256, minibatch_rows=128, save_rows=128, workers=3, fwd_comm_sms=1),
]  # fmt: skip


def knob_id(config: Config) -> str:
    changed = {k: v for k, v in vars(config).items() if v != getattr(Config(), k)}
    return "_".join(f"{k}={v}" for k, v in changed.items())


@pytest.mark.parametrize("config", KNOBS, ids=knob_id)
@pytest.mark.parametrize("ranks", [1, 3])
def test_knob_does_not_change_a_bit(config, ranks):
    inputs = oracle(CROWDED)[0]
    wanted = run(CROWDED, ranks, inputs=inputs)
    testing.assert_same_bits(run(CROWDED, ranks, config, inputs), wanted)


@pytest.mark.parametrize("config", [
    Config(save="none", ring_rows=256),
    Config(save="all", save_rows=128, ring_rows=256, minibatch_rows=128),
    Config(weight_grad="fp32", save_rows=0),
], ids=knob_id)  # fmt: skip
def test_knobs_agree_with_float64_over_ranks(config):
    check(Case(600, 40, 24, 3, 2, routing="skewed", shared=8, config=config))


def test_expert_larger_than_the_ring_is_cut_into_chunks():
    """One expert with 1,400 rows through a ring of 256."""
    case = Case(700, 40, 24, 2, 2, routing="one")
    config = Config(ring_rows=256, minibatch_rows=128, save_rows=512)
    wanted = run(case)
    for ranks in (1, 2, 5):
        testing.assert_same_bits(run(case, ranks, config), wanted)
    check(case, ranks=(1, 2))


SMALL = Case(23, 24, 40, 5, 3, routing="skewed", shared=16, score=True)


def small_run(ranks, order="threads", seed=0, config=Config(ring_rows=256), hold=None):
    """SMALL in tiles of 2 x 8 with a ring of 2 tiles: every wait and reuse is reached."""
    with Group.local(ranks, timeout_s=60) as group:
        testing.set_tile(group, 2, 8, 2)
        testing.set_executor(group, order, seed)
        if hold is not None:
            testing.hold(group, *hold)
        got = testing.run_layer(oracle(SMALL)[0], group, SMALL, config)
        return got, [testing.tasks_done(group, rank) for rank in range(ranks)]


@pytest.mark.parametrize("ranks", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("save", ["all", "preact", "none"])
def test_order_of_tasks_does_not_change_a_bit(ranks, save):
    config = Config(ring_rows=256, save=save, save_rows=None if save == "none" else 384)
    wanted = small_run(1)[0]
    names = testing.RANK_INVARIANT
    testing.assert_same_bits(small_run(ranks, "ticket", config=config)[0], wanted, names)
    for seed in range(5):
        got = small_run(ranks, "adversarial", seed, config)[0]
        testing.assert_same_bits(got, wanted, names)


@pytest.mark.parametrize("ring_rows", [256, 384, 512, 1024, 4096])
def test_ring_of_few_small_tiles_does_not_change_a_bit(ring_rows):
    wanted = small_run(2)[0]
    testing.assert_same_bits(small_run(2, config=Config(ring_rows=ring_rows))[0], wanted)


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_rank_that_pauses_before_any_task_does_not_change_a_bit(rank):
    wanted, tasks = small_run(3, "ticket")
    assert tasks[rank] > 20
    for task_idx in range(0, tasks[rank], 7):
        got, _ = small_run(3, "ticket", hold=(rank, task_idx))
        testing.assert_same_bits(got, wanted)


def test_small_tiles_agree_with_float64():
    _, exact, twin = oracle(SMALL)
    for ranks in (1, 2, 3, 5, 8):
        testing.assert_close(small_run(ranks)[0], twin, exact)


@pytest.mark.parametrize("epoch", [2**32 - 1, 2**32 - 3, 0, 2**31 - 1])
def test_epochs_may_wrap_around(epoch):
    case = Case(65, 64, 40, 6, 2, shared=24)
    inputs = testing.make_inputs(case)
    wanted = run(case, 3)
    with Group.local(3, timeout_s=60) as group:
        testing.run_layer(inputs, group, case)
        testing.set_epoch(group, epoch)
        for _ in range(4):
            testing.assert_same_bits(testing.run_layer(inputs, group, case), wanted)


def test_flags_that_small_calls_leave_alone_do_not_look_raised():
    """A stage flag that was raised 2^31 calls ago would look raised, if it were not renewed."""
    large, small = Case(300, 64, 40, 6, 2), Case(10, 64, 40, 6, 2)
    given = {case: testing.make_inputs(case) for case in (large, small)}
    wanted = {case: run(case, 2) for case in (large, small)}
    for seed in range(10):
        with Group.local(2, timeout_s=60) as group:
            testing.set_executor(group, "adversarial", seed)
            testing.set_epoch(group, 5)
            testing.run_layer(given[large], group, large)
            testing.set_epoch(group, 2**30 - 1, renews=False)
            for case in (small, small):  # the second forward or backward is call 2^30
                testing.assert_same_bits(testing.run_layer(given[case], group, case), wanted[case])
            testing.set_epoch(group, 2**31 + 100, renews=False)
            testing.poison(group, 0xFF)
            testing.assert_same_bits(testing.run_layer(given[large], group, large), wanted[large])


def test_a_hundred_runs_give_the_same_bits():
    case = Case(65, 64, 40, 6, 2, shared=24, score=True)
    inputs = testing.make_inputs(case)
    with Group.local(3, timeout_s=60) as group:
        first = testing.run_layer(inputs, group, case)
        for _ in range(100):
            testing.assert_same_bits(testing.run_layer(inputs, group, case), first)


@pytest.mark.parametrize("case", [
    Case(0, 64, 40, 6, 2), Case(1, 8, 8, 1, 1), Case(33, 64, 40, 6, 2, routing="none"),
], ids=case_id)  # fmt: skip
def test_knobs_are_legal_for_next_to_no_work(case):
    for config in KNOBS:
        testing.assert_same_bits(run(case, 3, config), run(case, 3))


def test_one_group_serves_shapes_that_grow_and_shrink():
    cases = [Case(t, h, i, e, k, shared=s) for t, h, i, e, k, s in (
        (5, 8, 8, 2, 1, 0), (300, 72, 136, 6, 2, 24), (0, 8, 8, 1, 1, 0), (64, 264, 40, 9, 4, 8),
        (1, 8, 200, 3, 3, 136), (300, 72, 136, 6, 2, 24))]  # fmt: skip
    with Group.local(3, timeout_s=60) as group:
        for case in cases:
            got = testing.run_layer(testing.make_inputs(case), group, case)
            testing.assert_same_bits(got, run(case, 3))
