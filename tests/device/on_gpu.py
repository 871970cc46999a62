"""Shared by the device tests: one schedule and forward on the GPU, and bits."""

import functools
import os

os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")

import torch

import monomoe
from monomoe import testing
from monomoe.testing import Case

CASES = [
    Case(256, 128, 128, 4, 2),
    Case(33, 64, 40, 5, 2, routing="unrouted"),
    Case(257, 72, 136, 3, 3),
    Case(1, 8, 8, 1, 1),
    Case(0, 64, 64, 2, 1),
    Case(300, 256, 192, 7, 4, shared=136, score=True),
    Case(130, 264, 72, 9, 2, shared=48, limit=0.5),
    Case(1000, 512, 384, 16, 8, routing="unrouted"),
    Case(700, 256, 128, 12, 2, routing="skewed", router="signed"),
    Case(700, 256, 128, 12, 2, routing="skewed", split="ragged"),
    Case(64, 128, 128, 200, 8, ids=torch.int32),
    Case(150, 192, 320, 4, 2, routing="duplicates", limit=1.0),
    Case(40, 64, 64, 4, 2, routing="none", shared=64),
]
LARGE = CASES[7]


class Problem:
    """A case's inputs, on both devices."""

    def __init__(self, case: Case):
        self.case = case
        self.cpu = testing.make_inputs(case)
        self.gpu = self.cpu.to("cuda")

    def launch(self, group, config=None, device="cuda", tokens_per_rank=None) -> torch.Tensor:
        """y of one schedule and one forward; does not wait for the device."""
        inputs = self.gpu if device == "cuda" else self.cpu
        split = tokens_per_rank or self.case.tokens_per_rank(group.ranks)
        sched = monomoe.schedule(inputs.topk_ids, self.case.experts, group, split)
        return self.forward(sched, config, device)

    def forward(self, sched, config=None, device="cuda") -> torch.Tensor:
        inputs = self.gpu if device == "cuda" else self.cpu
        config = config or self.case.config
        return monomoe.forward(
            inputs.x, inputs.topk_weights, inputs.weights, sched, config, self.case.limit
        )[0]

    def run(self, group, config=None, device="cuda", tokens_per_rank=None) -> torch.Tensor:
        """The same, waited for and checked, on the CPU."""
        y = self.launch(group, config, device, tokens_per_rank)
        torch.cuda.synchronize()
        group.check()
        return y.cpu()


@functools.cache
def problem_of(case: Case) -> Problem:
    return Problem(case)


@functools.cache
def of_one_rank(case: Case) -> torch.Tensor:
    """y with one rank: the bits that nothing may change."""
    with monomoe.Group(timeout_s=5) as group:
        return problem_of(case).run(group)


def replays_with_new_ids(group, ids: torch.Tensor, step):
    """Captures `step` as a graph; its outputs after each replay with ids filled anew, beside those
    of a plain call."""
    with torch.cuda.stream(torch.cuda.Stream()):
        step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step()
    for fill in (None, 0, 3, -1):
        if fill is not None:
            ids.fill_(fill)
        graph.replay()
        torch.cuda.synchronize()
        group.check()
        yield captured, step()


def assert_same(y: torch.Tensor, wanted: torch.Tensor) -> None:
    testing.assert_same_bits({"y": y}, {"y": wanted})
