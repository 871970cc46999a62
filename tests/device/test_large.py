"""Layers of the size they are built for, on a Hopper GPU: what takes large shapes to go wrong.
Needs a GPU, so `make test` leaves it out: tools/device_test.sh."""

import on_gpu  # noqa: F401: sets what must be set before CUDA starts
import pytest
import torch

import monomoe
from monomoe import Group, testing
from monomoe.bench import correct
from monomoe.bench.cases import BY_NAME, make_inputs


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize(
    "name", ["qwen3-30b", "mixtral", "dsv3-ep8", "kimi-ep8", "dsv4pro-ep8", "qwen3-30b-skew"]
)
def test_bench_cases_obey_the_error_rule_and_repeat(name, seed):
    inputs = make_inputs(BY_NAME[name], torch.device("cuda"), seed)
    results = []
    with Group(timeout_s=20) as group:
        for _ in range(2):
            sched = monomoe.schedule(inputs.ids, inputs.case.experts, group)
            y, ctx = monomoe.forward(inputs.x, inputs.topk_weights, inputs.weights, sched)
            results.append(testing.named(y, monomoe.backward(inputs.dy, ctx)))
        torch.cuda.synchronize()
        group.check()
    for result in results:
        bad = [v for v in correct.against_float64(inputs, result) if not v.passed]
        assert not bad, [f"{v.name}: error {v.error:.3g}, allowed {v.allowed:.3g}" for v in bad]
    assert all(torch.equal(t, results[1][key]) for key, t in results[0].items())
    del inputs, results, result, y, ctx
    torch.cuda.empty_cache()
