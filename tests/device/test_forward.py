"""Schedule and forward on a Hopper GPU: against the CPU backend and float64, and bit for bit under
every circumstance that must not matter. Needs a GPU, so `make test` leaves it out:
tools/device_test.sh."""

import on_gpu
import pytest
import torch
from on_gpu import (
    CASES,
    LARGE,
    assert_same,
    of_one_rank,
    problem_of,
    replays_with_new_ids,
)

import monomoe
from monomoe import Config, Group, reference, testing
from monomoe.testing import Case

named = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


@named
def test_forward_matches_the_cpu_backend(case):
    expected = problem_of(case).run(Group(), device="cpu").double()
    y = of_one_rank(case).double()
    assert (y - expected).norm() <= 2**-8 * expected.norm()


@named
def test_forward_matches_float64_by_the_error_rule(case):
    inputs = problem_of(case).cpu
    results = [
        {"y": reference.forward(inputs.x, inputs.topk_weights, inputs.weights, inputs.topk_ids,
                                case.config, case.limit, arithmetic=arithmetic)[0]}
        for arithmetic in (reference.TWIN, reference.EXACT)
    ]  # fmt: skip
    testing.assert_close({"y": of_one_rank(case)}, *results)


def test_integer_values_are_exact():
    for case in (
        Case(133, 136, 64, 5, 2, values="integer", shared=24, score=True),
        Case(300, 64, 264, 3, 2, values="integer", routing="unrouted"),
    ):
        inputs = problem_of(case).cpu
        exact, _ = reference.forward(
            inputs.x, inputs.topk_weights, inputs.weights, inputs.topk_ids,
            arithmetic=reference.EXACT,
        )  # fmt: skip
        assert torch.equal(of_one_rank(case), testing.nearest_integers(exact).bfloat16())


@named
@pytest.mark.parametrize("ranks", [2, 3, 4, 8])
def test_ranks_change_no_bit(case, ranks):
    assert_same(problem_of(case).run(Group.local(ranks, timeout_s=5)), of_one_rank(case))


@named
@pytest.mark.parametrize(
    "knobs",
    [
        {"ring_rows": 256, "minibatch_rows": 128},
        {"ring_rows": 512},
        {"workers": 3},
        {"fwd_comm_sms": 20},
        {"save": "all"},
        {"save": "none"},
        {"save_rows": 128, "save": "all"},
    ],
    ids=str,
)
def test_knobs_change_no_bit(case, knobs):
    for ranks in (1, 3):
        group = Group.local(ranks, timeout_s=5)
        assert_same(problem_of(case).run(group, Config(**knobs)), of_one_rank(case))


@pytest.mark.parametrize("split", [(0, 1000), (1000, 0), (0, 1, 0, 999), (0, 0, 1000, 0, 0)])
def test_ranks_without_tokens_change_no_bit(split):
    group = Group.local(len(split), timeout_s=5)
    y = problem_of(LARGE).run(group, tokens_per_rank=split)
    assert_same(y, of_one_rank(LARGE))


def test_a_thousand_repeats_and_poison_change_no_bit():
    """Launches follow each other without the host: many are in flight."""
    group = Group.local(2, timeout_s=5)
    wanted = of_one_rank(LARGE).cuda().view(torch.int16)
    differs = torch.zeros(1000, dtype=torch.bool, device="cuda")
    for i in range(1000):
        if i % 250 == 0:
            testing.poison(group, (0xFF, 0x3C, 0x00, 0x7F)[i // 250])
        differs[i] = (problem_of(LARGE).launch(group).view(torch.int16) != wanted).any()
    torch.cuda.synchronize()
    group.check()
    assert differs.nonzero().flatten().tolist() == []


def test_epochs_wrap():
    case = CASES[1]
    group = Group.local(3, timeout_s=5)
    for epoch in (2**32 - 2, 2**31 - 2):
        testing.set_epoch(group, epoch)
        for _ in range(4):
            assert_same(problem_of(case).run(group), of_one_rank(case))


def test_flags_that_small_calls_leave_alone_do_not_look_raised():
    """A stage flag that was raised 2^31 launches ago would look raised, if it were not renewed."""
    large, small = LARGE, CASES[1]
    group = Group.local(2, timeout_s=5)
    testing.set_epoch(group, 5)
    assert_same(problem_of(large).run(group), of_one_rank(large))
    testing.set_epoch(group, 2**30 - 1, renews=False)
    for _ in range(2):  # the second is call 2^30
        assert_same(problem_of(small).run(group), of_one_rank(small))
    testing.set_epoch(group, 2**31 + 6, renews=False)
    testing.poison(group, 0xFF)
    for rank in range(2):
        testing.pause(group, rank, "stage", 300)
    assert_same(problem_of(large).run(group), of_one_rank(large))


@pytest.mark.parametrize("ranks", [1, 3])
def test_more_experts_than_fit_into_shared_memory(ranks):
    case = Case(200, 8, 8, 20000, 4, routing="duplicates")
    group = Group.local(ranks, timeout_s=20)
    expected = problem_of(case).run(Group.local(ranks), device="cpu").double()
    y = problem_of(case).run(group)
    assert_same(y, of_one_rank(case))
    assert (y.double() - expected).norm() <= 2**-8 * expected.norm()


@pytest.mark.parametrize("ranks", [1, 2])
def test_graph_replay_follows_new_ids(ranks):
    case, inputs = CASES[0], problem_of(CASES[0]).gpu
    group = Group.local(ranks, timeout_s=5)
    ids = inputs.topk_ids.clone()

    def step():
        sched = monomoe.schedule(ids, case.experts, group)
        return monomoe.forward(inputs.x, inputs.topk_weights, inputs.weights, sched)[0]

    for y, wanted in replays_with_new_ids(group, ids, step):
        assert_same(y, wanted)


def test_layers_in_flight_on_several_streams_and_of_several_groups_change_no_bit():
    """Six launches of several ranks at once would not fit: those of all groups are chained."""
    groups = [Group.local(ranks, timeout_s=10) for ranks in (2, 1, 4, 8)]
    streams = [torch.cuda.Stream() for _ in range(3)]
    cases = [LARGE, CASES[5], CASES[8]]
    for case in cases:
        of_one_rank(case)
    torch.cuda.synchronize()
    made = []
    for i in range(60):
        case, group = cases[i % 3], groups[i // 3 % 4]
        with torch.cuda.stream(streams[(i * 7 + i // 5) % 3]):
            made.append((case, problem_of(case).launch(group)))
    torch.cuda.synchronize()
    for group in groups:
        group.check()
    for case, y in made:
        assert_same(y, of_one_rank(case))


def test_only_the_first_call_of_a_shape_allocates():
    group = Group.local(3, timeout_s=5)
    cases = [LARGE, CASES[5], CASES[1]]
    for case in cases:
        problem_of(case).run(group)
    torch.cuda.synchronize()
    free, _ = torch.cuda.mem_get_info()
    for case in cases * 5:
        problem_of(case).run(group)
    assert torch.cuda.mem_get_info()[0] == free


def test_a_call_that_does_not_fit_into_memory_is_refused_and_the_group_goes_on():
    group = Group.local(2, timeout_s=5)
    assert_same(problem_of(LARGE).run(group), of_one_rank(LARGE))
    tokens, hidden, experts = 1 << 18, 4096, 8
    x = torch.zeros(tokens, hidden, dtype=torch.bfloat16, device="cuda")
    ids = torch.zeros(tokens, 8, dtype=torch.int32, device="cuda")
    weights = monomoe.Weights(
        *(torch.zeros(experts, *shape, dtype=torch.bfloat16, device="cuda")
          for shape in ((8, hidden), (8, hidden), (hidden, 8)))
    )  # fmt: skip
    sched = monomoe.schedule(ids, experts, group)
    torch.cuda.synchronize()
    # The slots alone take 16 GiB.
    hold = torch.empty(torch.cuda.mem_get_info()[0] - (4 << 30), dtype=torch.uint8, device="cuda")
    with pytest.raises(RuntimeError, match="memory: .* bytes of workspace wanted, less left"):
        monomoe.forward(x, torch.ones(tokens, 8, device="cuda"), weights, sched)
    del hold
    torch.cuda.empty_cache()
    assert_same(problem_of(LARGE).run(group), of_one_rank(LARGE))


def test_bad_ids_are_reported_at_the_next_call():
    problem = on_gpu.Problem(CASES[0])
    group = Group(timeout_s=5)
    problem.gpu.topk_ids[3, 1] = 99
    with pytest.raises(ValueError, match=r"99 found at \[3, 1\]"):
        problem.run(group)
    group.check()


def test_forward_is_one_kernel_and_schedule_another():
    case, group = CASES[5], Group()
    problem_of(case).run(group)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        problem_of(case).launch(group)
        torch.cuda.synchronize()
    names = [e.name for e in profile.events() if e.device_type == torch.autograd.DeviceType.CUDA]
    assert len(names) == 2 and "schedule" in names[0] and "forward" in names[1], names
