"""Schedule and forward on a Hopper GPU: against the CPU backend, and bit for bit under every
circumstance that must not matter. Needs a GPU, so `make test` leaves it out: tools/device_test.sh."""

import dataclasses
import os

os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")

import pytest
import torch

import monomoe


@dataclasses.dataclass(frozen=True)
class Case:
    tokens: int
    hidden: int
    intermediate: int
    experts: int
    top_k: int
    shared: int = 0
    score: bool = False
    skip: float = 0.0  # share of -1 routes
    skewed: bool = False  # all routes to few experts
    limit: float | None = None

    def __str__(self) -> str:
        return "_".join(f"{k[0].upper()}{v}" for k, v in dataclasses.asdict(self).items() if v)


CASES = [
    Case(256, 128, 128, 4, 2),
    Case(33, 64, 40, 5, 2, skip=0.1),
    Case(257, 72, 136, 3, 3),
    Case(1, 8, 8, 1, 1),
    Case(0, 64, 64, 2, 1),
    Case(300, 256, 192, 7, 4, shared=136, score=True),
    Case(130, 264, 72, 9, 2, shared=48, limit=0.5),
    Case(1000, 512, 384, 16, 8, skip=0.3),
    Case(700, 256, 128, 12, 2, skewed=True),
    Case(64, 128, 128, 200, 8),
]


class Problem:
    def __init__(self, c: Case):
        g = torch.Generator().manual_seed(c.tokens + c.hidden)

        def normal(*shape, scale=1.0):
            return (torch.randn(*shape, generator=g) * scale).bfloat16()

        by_h, by_i = c.hidden**-0.5, c.intermediate**-0.5
        self.c = c
        self.x = normal(c.tokens, c.hidden)
        gate_up = normal(c.experts, 2, c.intermediate, c.hidden, scale=by_h)
        shared = [None] * 3
        if c.shared:
            shared = [normal(c.shared, c.hidden, scale=by_h) for _ in range(2)]
            shared.append(normal(c.hidden, c.shared, scale=c.shared**-0.5))
        self.weights = monomoe.Weights(
            gate_up[:, 0], gate_up[:, 1], normal(c.experts, c.hidden, c.intermediate, scale=by_i),
            *shared, normal(c.hidden, scale=by_h) if c.score else None,
        )  # fmt: skip
        logits = torch.randn(c.tokens, c.experts, generator=g)
        if c.skewed:
            logits[:, 1] += 5
        self.ids = logits.topk(c.top_k, dim=1).indices
        self.ids[torch.rand(c.tokens, c.top_k, generator=g) < c.skip] = -1
        self.topk_weights = torch.softmax(torch.randn(c.tokens, c.top_k, generator=g), 1)

    def forward(self, group, device="cuda", config=None):
        move = lambda t: t.to(device)  # noqa: E731
        sched = monomoe.schedule(move(self.ids), self.c.experts, group)
        y, _ = monomoe.forward(
            move(self.x), move(self.topk_weights), self.weights.map(move), sched, config,
            self.c.limit,
        )  # fmt: skip
        if device == "cuda":
            torch.cuda.synchronize()
            group.check()
        return y.cpu()


def bits(y):
    return y.view(torch.int16)


@pytest.fixture(params=CASES, ids=str)
def problem(request):
    return Problem(request.param)


def test_forward_matches_the_cpu_backend(problem):
    expected = problem.forward(monomoe.Group(), "cpu").double()
    y = problem.forward(monomoe.Group(timeout_s=5)).double()
    assert (y - expected).norm() <= 2**-8 * expected.norm()


@pytest.mark.parametrize("ranks", [2, 3, 4, 8])
def test_ranks_change_no_bit(problem, ranks):
    expected = problem.forward(monomoe.Group(timeout_s=5))
    y = problem.forward(monomoe.Group.local(ranks, timeout_s=5))
    assert torch.equal(bits(y), bits(expected))


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
def test_knobs_change_no_bit(problem, knobs):
    expected = problem.forward(monomoe.Group(timeout_s=5))
    for ranks in (1, 3):
        group = monomoe.Group.local(ranks, timeout_s=5)
        y = problem.forward(group, config=monomoe.Config(**knobs))
        assert torch.equal(bits(y), bits(expected))


def test_repeats_and_poison_change_no_bit():
    problem = Problem(CASES[7])
    group = monomoe.Group.local(2, timeout_s=5)
    expected = problem.forward(group)
    for i in range(300):
        if i % 100 == 0:
            monomoe.testing.poison(group, (0xFF, 0x3C, 0x00)[i // 100])
        assert torch.equal(bits(problem.forward(group)), bits(expected)), i


def test_epochs_wrap():
    problem = Problem(CASES[1])
    group = monomoe.Group.local(3, timeout_s=5)
    expected = problem.forward(group)
    monomoe.testing.set_epoch(group, 2**32 - 2)
    for _ in range(4):
        assert torch.equal(bits(problem.forward(group)), bits(expected))


def test_graph_replay_follows_new_ids():
    problem = Problem(CASES[0])
    c = problem.c
    group = monomoe.Group(timeout_s=5)
    x, weights = problem.x.cuda(), problem.weights.map(lambda t: t.cuda())
    ids, topk_weights = problem.ids.cuda(), problem.topk_weights.cuda()

    def step():
        sched = monomoe.schedule(ids, c.experts, group)
        return monomoe.forward(x, topk_weights, weights, sched)[0]

    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = step()
    for fill in (None, 0, 3, -1):
        if fill is not None:
            ids.fill_(fill)
        graph.replay()
        torch.cuda.synchronize()
        group.check()
        assert torch.equal(bits(y), bits(step()))


def test_bad_ids_are_reported_at_the_next_call():
    problem = Problem(CASES[0])
    group = monomoe.Group(timeout_s=5)
    problem.ids[3, 1] = 99
    with pytest.raises(ValueError, match=r"99 found at \[3, 1\]"):
        problem.forward(group)
    group.check()


def test_forward_is_one_kernel_and_schedule_another():
    problem = Problem(CASES[5])
    group = monomoe.Group()
    problem.forward(group)
    ids, x = problem.ids.cuda(), problem.x.cuda()
    weights, topk_weights = problem.weights.map(lambda t: t.cuda()), problem.topk_weights.cuda()
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        sched = monomoe.schedule(ids, problem.c.experts, group)
        monomoe.forward(x, topk_weights, weights, sched)
        torch.cuda.synchronize()
    names = [e.name for e in profile.events() if e.device_type == torch.autograd.DeviceType.CUDA]
    assert len(names) == 2 and "schedule" in names[0] and "forward" in names[1], names
