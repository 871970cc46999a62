"""What a user's program does with the layer on a Hopper GPU: streams, graphs, memory that is freed
early, several devices, torch's own tools. F numbers: docs/field_cases.md. Needs a GPU, so
`make test` leaves it out: tools/device_test.sh."""

import dataclasses
import functools
import os
import threading
import time

os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")

import pytest
import torch

from monomoe import Config, Group, MoELayer, Weights, backward, forward, schedule, testing
from monomoe.functional import native
from monomoe.testing import Case

CASE = Case(256, 128, 128, 4, 2, shared=64, score=True)


def to_gpu(inputs: testing.Inputs, device="cuda") -> testing.Inputs:
    moved = {n: getattr(inputs, n).to(device) for n in ("x", "topk_ids", "topk_weights", "dy")}
    return dataclasses.replace(
        inputs, weights=inputs.weights.map(lambda w: w.to(device)), **moved
    )


def step(inputs, group, experts, config=None) -> list[torch.Tensor]:
    """schedule, forward and backward: all results, on the GPU."""
    sched = schedule(inputs.topk_ids, experts, group)
    y, ctx = forward(inputs.x, inputs.topk_weights, inputs.weights, sched, config)
    grads = backward(inputs.dy, ctx)
    return [y, grads.x, grads.topk_weights, *(t for t in grads.weights.tensors() if t is not None)]


def finished(results, group) -> list[torch.Tensor]:
    torch.cuda.synchronize()
    group.check()
    return [t.cpu() for t in results]


def same(got, wanted) -> None:
    for a, b in zip(got, wanted, strict=True):
        assert torch.equal(testing.bits(a), testing.bits(b))


@functools.cache
def of_default_stream(case=CASE):
    with Group(timeout_s=10) as group:
        return finished(step(to_gpu(testing.make_inputs(case)), group, case.experts), group)


SPIN = 40_000_000  # cycles, about 20 ms


# ----------------------------------------------------------------------------------- streams


@pytest.mark.parametrize("ranks", [1, 2])
def test_F80_two_layers_of_one_group_on_two_streams(ranks):
    other = Case(300, 64, 192, 6, 2)
    cases = (CASE, other)
    inputs = [to_gpu(testing.make_inputs(case)) for case in cases]
    wanted = []
    for case, given in zip(cases, inputs):
        with Group.local(ranks, timeout_s=10) as group:
            wanted.append(finished(step(given, group, case.experts), group))
    with Group.local(ranks, timeout_s=10) as group:
        streams = [torch.cuda.Stream(), torch.cuda.Stream()]
        torch.cuda.synchronize()
        for _ in range(3):
            made = []
            for n, (case, given, stream) in enumerate(zip(cases, inputs, streams)):
                with torch.cuda.stream(stream):
                    if n == 0:
                        torch.cuda._sleep(SPIN)
                    made.append(step(given, group, case.experts))
            for got, want in zip(made, wanted):
                same(finished(got, group), want)


def test_F104_inputs_that_the_callers_stream_has_still_to_write():
    wanted = of_default_stream()
    inputs = to_gpu(testing.make_inputs(CASE))
    late = to_gpu(testing.make_inputs(CASE))
    inputs.x.fill_(float("nan"))
    torch.cuda.synchronize()
    with Group(timeout_s=10) as group:
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            torch.cuda._sleep(SPIN)
            inputs.x.copy_(late.x)
            results = [t.to("cpu", non_blocking=False) for t in step(inputs, group, CASE.experts)]
        same(results, wanted)


def test_F104_backward_from_another_thread():
    wanted = of_default_stream()
    inputs = to_gpu(testing.make_inputs(CASE))
    with Group(timeout_s=10) as group:
        stream = torch.cuda.Stream()
        results = []
        torch.cuda.synchronize()
        with torch.cuda.stream(stream):
            sched = schedule(inputs.topk_ids, CASE.experts, group)
            y, ctx = forward(inputs.x, inputs.topk_weights, inputs.weights, sched)

            def other():
                with torch.cuda.stream(stream):
                    results.append(backward(inputs.dy, ctx))

            thread = threading.Thread(target=other)
            thread.start()
            thread.join()
        torch.cuda.synchronize()
        same([y.cpu(), results[0].x.cpu()], wanted[:2])


def test_F82_memory_that_is_freed_while_a_side_stream_uses_it():
    wanted = of_default_stream()
    given = testing.make_inputs(CASE)
    with Group(timeout_s=10) as group:
        side, main = torch.cuda.Stream(), torch.cuda.current_stream()
        kept = []
        for n in range(60):
            inputs = to_gpu(given)
            side.wait_stream(main)
            with torch.cuda.stream(side):
                torch.cuda._sleep(SPIN // 20)
                results = step(inputs, group, CASE.experts)
                kept.append(results[0].clone())
            for t in (inputs.x, inputs.topk_ids, inputs.topk_weights, inputs.dy):
                t.record_stream(side)  # torch's rule for what another stream still reads
            inputs.weights.map(lambda w: w.record_stream(side))
            del inputs, results
            torch.full((256, 128), float("nan"), dtype=torch.bfloat16, device="cuda")
            torch.full((1 << 20,), 0xFF, dtype=torch.uint8, device="cuda")
        for y in finished(kept, group):
            same([y], wanted[:1])


# --------------------------------------------------------------------------------- residency

OCCUPY = r"""
extern "C" __global__ void occupy(int million_cycles) {
  extern __shared__ char memory[];
  memory[threadIdx.x] = 0;
  const long long begin = clock64();
  while (clock64() - begin < million_cycles * 1000000LL) {}
}
"""


@pytest.mark.parametrize("blocks", [1, 2, 8])
def test_F92_fewer_free_multiprocessors_than_the_launch_would_take(blocks):
    """Another stream's kernel holds some of them whole for half a second."""
    make = getattr(torch.cuda, "_compile_kernel", None)
    if make is None:
        pytest.skip("this torch can't compile a kernel")
    try:
        occupy = make(OCCUPY, "occupy")
    except (RuntimeError, OSError) as error:
        pytest.skip(f"no NVRTC here: {error}")
    size = 200 * 1024
    occupy.set_shared_memory_config(size)
    wanted = of_default_stream()
    inputs = to_gpu(testing.make_inputs(CASE))
    for config in (None, Config(workers=5)):
        with Group.local(2, timeout_s=10) as group:
            side = torch.cuda.Stream()
            torch.cuda.synchronize()
            with torch.cuda.stream(side):
                occupy(grid=(blocks, 1, 1), block=(32, 1, 1), args=[1000], shared_mem=size)
            time.sleep(0.01)
            got = finished(step(inputs, group, CASE.experts, config), group)
        same(got[:3], wanted[:3])


# ------------------------------------------------------------------------------------ graphs

ROUTINGS = ["random", "one", "even_only", "none"]


def refill(inputs, case) -> None:
    fresh = testing.make_inputs(case)
    for name in ("x", "topk_ids", "topk_weights", "dy"):
        getattr(inputs, name).copy_(getattr(fresh, name))


def captured(inputs, group, experts, sizes=None):
    """A graph of a whole step, its results, and the step outside of it."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        step(inputs, group, experts)  # allocates what a shape needs
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = step(inputs, group, experts)
    return graph, results


@pytest.mark.parametrize("ranks", [1, 2])
def test_F114_graph_of_schedule_forward_and_backward(ranks):
    with Group.local(ranks, timeout_s=10) as group:
        inputs = to_gpu(testing.make_inputs(CASE))
        graph, results = captured(inputs, group, CASE.experts)
        for n, routing in enumerate(ROUTINGS * 2):
            case = dataclasses.replace(CASE, routing=routing, seed=n)
            refill(inputs, case)
            graph.replay()
            got = finished(results, group)
            with Group.local(ranks, timeout_s=10) as other:
                same(got, finished(step(inputs, other, CASE.experts), other))


def test_F79_several_graphs_on_one_group_and_eager_calls_between():
    with Group(timeout_s=10) as group:
        made = {}
        for tokens in (1, 2, 4, 8):
            inputs = to_gpu(testing.make_inputs(dataclasses.replace(CASE, tokens=tokens)))
            made[tokens] = inputs, *captured(inputs, group, CASE.experts)
        for n, tokens in enumerate((8, 1, 4, 1, 2, 8, 8, 2)):
            inputs, graph, results = made[tokens]
            refill(inputs, dataclasses.replace(CASE, tokens=tokens, seed=n))
            graph.replay()
            got = finished(results, group)
            same(got, finished(step(inputs, group, CASE.experts), group))


# ----------------------------------------------------------------------------------- devices


def test_F103_tensors_on_another_device_than_the_current_one():
    if torch.cuda.device_count() < 2:
        pytest.skip("one GPU here")
    wanted = of_default_stream()
    torch.cuda.set_device(0)
    inputs = to_gpu(testing.make_inputs(CASE), "cuda:1")
    with Group(timeout_s=10) as group:
        results = step(inputs, group, CASE.experts)
        assert torch.cuda.current_device() == 0
        assert all(t.device.index == 1 for t in results)
        torch.cuda.synchronize(1)
        group.check()
        same([t.cpu() for t in results], wanted)
        mixed = dataclasses.replace(inputs, weights=inputs.weights.map(lambda w: w.to("cuda:0")))
        with pytest.raises(TypeError, match="move all tensors of a call to one device"):
            step(mixed, group, CASE.experts)


def test_tensors_on_the_cpu_and_the_gpu_are_not_mixed():
    inputs = to_gpu(testing.make_inputs(CASE))
    with Group(timeout_s=10) as group:
        sched = schedule(inputs.topk_ids, CASE.experts, group)
        with pytest.raises(TypeError, match="topk_weights: a tensor on cuda:0 wanted, cpu given"):
            forward(inputs.x, inputs.topk_weights.cpu(), inputs.weights, sched)


# ------------------------------------------------------------------------------------- torch


def layer_and_inputs():
    inputs = to_gpu(testing.make_inputs(CASE))
    layer = MoELayer(128, 128, 4, 2, shared=64, score=True, device="cuda")
    weights: Weights = inputs.weights
    with torch.no_grad():
        layer.gate_up[:, 0], layer.gate_up[:, 1] = weights.gate, weights.up
        layer.down.copy_(weights.down)
        layer.shared_gate_up[0], layer.shared_gate_up[1] = weights.shared_gate, weights.shared_up
        layer.shared_down.copy_(weights.shared_down)
        layer.shared_score.copy_(weights.shared_score)
    return layer, inputs


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("main_grad", [False, True], ids=["grad", "main_grad"])
def test_training_step_of_the_layer(compiled, main_grad):
    wanted = of_default_stream()
    layer, inputs = layer_and_inputs()
    for p in layer.parameters():
        p.main_grad = torch.zeros(p.shape, device="cuda") if main_grad else None
    call = torch.compile(layer, fullgraph=True, backend="aot_eager") if compiled else layer
    x, weights = inputs.x.requires_grad_(), inputs.topk_weights.requires_grad_()
    y = call(x, inputs.topk_ids, weights)
    y.backward(inputs.dy)
    torch.cuda.synchronize()
    layer.group.check()
    same([y.detach().cpu(), x.grad.cpu(), weights.grad.cpu()], wanted[:3])
    down = layer.down.main_grad.bfloat16() if main_grad else layer.down.grad
    same([down.cpu()], [wanted[5]])


def test_ops_pass_opcheck():
    """Without the comparison of whole outputs: gaps in opaque ones are not written on a GPU."""
    layer, inputs = layer_and_inputs()
    handle = layer.group.handle
    params = [p.detach() for p in layer.parameters()]
    tables = torch.ops.monomoe.schedule(inputs.topk_ids, handle, 4, None)
    options = (handle, None, Config().pack(), None)
    args = (inputs.x, inputs.topk_weights, *params, tables, *options)
    utils = ("test_schema", "test_autograd_registration", "test_faketensor")
    torch.library.opcheck(torch.ops.monomoe.schedule, (inputs.topk_ids, handle, 4, None),
                          test_utils=utils)  # fmt: skip
    torch.library.opcheck(torch.ops.monomoe.forward, args, test_utils=utils)
    _, saved = torch.ops.monomoe.forward(*args)
    torch.library.opcheck(
        torch.ops.monomoe.backward,
        (inputs.dy, *args[: 2 + len(params)], tables, saved, *options, [True] * 7),
        test_utils=utils,
    )


def test_nothing_grows_in_steps_of_random_shapes():
    groups = [Group(timeout_s=10), Group.local(2, timeout_s=10)]
    cases = [Case(t, 128, 128, 8, 2, seed=t) for t in (0, 1, 33, 200, 512)]
    given = [to_gpu(testing.make_inputs(case)) for case in cases]

    def round_of_steps(count):
        for n in range(count):
            at = (n * 7 + n // 3) % len(cases)
            step(given[at], groups[n % 2], 8)
        torch.cuda.synchronize()
        free, _ = torch.cuda.mem_get_info()
        return torch.cuda.memory_allocated(), free

    round_of_steps(40)
    allocated, free = round_of_steps(10)
    more_allocated, less_free = round_of_steps(300)
    assert more_allocated == allocated and less_free >= free
    for group in groups:
        group.check()
        group.close()


def test_the_library_says_that_it_has_the_gpu():
    assert list(native().backends())[0] == "sm90"
