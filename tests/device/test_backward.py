"""Backward on a Hopper GPU: every gradient by the error rule against float64, and bit for bit under
every circumstance that must not matter. Needs a GPU, so `make test` leaves it out:
tools/device_test.sh."""

import dataclasses
import functools

import pytest
import torch
from on_gpu import replays_with_new_ids

from monomoe import Config, Group, MoELayer, Weights, backward, forward, reference, schedule
from monomoe import testing
from monomoe.testing import Case

CASES = [
    Case(256, 128, 128, 4, 2),
    Case(33, 64, 40, 5, 2, routing="unrouted"),
    Case(257, 72, 136, 3, 3, router="signed"),
    Case(1, 8, 8, 1, 1),
    Case(0, 64, 64, 2, 1, shared=24, score=True),
    Case(300, 256, 192, 7, 4, shared=136, score=True, router="signed"),
    Case(130, 264, 72, 9, 2, shared=48, limit=0.5),
    Case(1000, 512, 384, 16, 8, routing="unrouted"),
    Case(700, 256, 136, 12, 2, routing="skewed", split="ragged"),
    Case(64, 128, 128, 200, 8),
    Case(200, 136, 264, 6, 2, routing="even_only", shared=264, score=True, split="ragged"),
    Case(150, 192, 320, 4, 2, routing="duplicates", limit=1.0, ids=torch.int32),
    Case(40, 64, 64, 4, 2, routing="none", shared=64),
]
CROWDED = Case(900, 136, 200, 3, 2, routing="skewed", shared=72, score=True)  # long experts


def named(cases):
    return pytest.mark.parametrize("case", cases, ids=lambda case: case.name)


def run(case: Case, ranks=1, config=None, group=None) -> dict[str, torch.Tensor]:
    """All results, on the CPU."""
    group = group or Group.local(ranks, timeout_s=5)
    got = testing.run_layer(testing.make_inputs(case).to("cuda"), group, case, config)
    torch.cuda.synchronize()
    group.check()
    return {name: t.cpu() for name, t in got.items()}


@functools.cache
def of_one_rank(case: Case) -> dict[str, torch.Tensor]:
    return run(case)


@functools.cache
def references(case: Case):
    inputs = testing.make_inputs(case)
    return tuple(
        testing.run_reference(inputs, case, how) for how in (reference.EXACT, reference.TWIN)
    )


def judge(case: Case, got) -> None:
    exact, twin = references(case)
    testing.assert_close(got, twin, exact, rerun=f"pytest tests/device -k '{case.name}'")


@named(CASES + [CROWDED])
def test_gradients_obey_the_error_rule(case):
    judge(case, of_one_rank(case))


@named([
    Case(200, 128, 192, 5, 3, shared=72, score=True, values="integer"),
    Case(260, 72, 136, 3, 2, routing="skewed", values="integer", config=Config(ring_rows=256)),
])  # fmt: skip
@pytest.mark.parametrize("ranks", [1, 3])
def test_integer_values_are_exact(case, ranks):
    exact = references(case)[0]
    for name, got in run(case, ranks).items():
        wanted = testing.nearest_integers(exact[name].double())
        assert torch.equal(got.double(), wanted), name


@named(CASES + [CROWDED])
@pytest.mark.parametrize("ranks", [2, 3, 4, 8])
def test_ranks_change_no_bit(case, ranks):
    got = run(case, ranks)
    testing.assert_same_bits(got, of_one_rank(case), testing.RANK_INVARIANT)
    if case.shared:
        judge(case, got)  # gradients of the shared expert: sums of a rank's own tokens


KNOBS = [
    Config(ring_rows=256),
    Config(ring_rows=512, minibatch_rows=128),
    Config(ring_rows=256, save="all"),
    Config(ring_rows=384, save="none"),
    Config(save="all"),
    Config(save="none"),
    Config(save_rows=0),
    Config(save_rows=128),
    Config(save="all", save_rows=256, ring_rows=256),
    Config(workers=1),
    Config(workers=3, ring_rows=256, save="none"),
    Config(bwd_comm_sms=20, fwd_comm_sms=4),
]


@pytest.mark.parametrize("knobs", KNOBS, ids=lambda c: "_".join(
    f"{k}={v}" for k, v in vars(c).items() if v != getattr(Config(), k)))  # fmt: skip
@named([CASES[5], CASES[7], CROWDED])
def test_knobs_change_no_bit(case, knobs):
    for ranks in (1, 3):
        same = run(case, ranks)
        testing.assert_same_bits(run(case, ranks, knobs), same)


@named([CASES[5], CASES[10], CROWDED])
def test_float32_gradients_round_to_the_bf16_ones(case):
    wide = run(case, config=Config(weight_grad="fp32", ring_rows=256))
    judge(dataclasses.replace(case, config=Config(weight_grad="fp32")), wide)
    rounded = {n: t.bfloat16() if n.startswith("d") and n not in testing.RANK_INVARIANT[1:3] else t
               for n, t in wide.items()}  # fmt: skip
    testing.assert_same_bits(rounded, of_one_rank(case))


def accumulate(case, group, start: float, config=Config(weight_grad="fp32")):
    """main_grads that began as `start`, and what was written to them."""
    inputs = testing.make_inputs(case).to("cuda")
    sched = schedule(
        inputs.topk_ids, case.experts, group, tokens_per_rank=case.tokens_per_rank(group.ranks)
    )
    _, ctx = forward(inputs.x, inputs.topk_weights, inputs.weights, sched, config, case.limit)
    main = inputs.weights.map(lambda w: torch.full(w.shape, start, device="cuda"))
    grads = backward(inputs.dy, ctx, accumulate=main)
    torch.cuda.synchronize()
    group.check()
    return {f"d{name}": t.cpu() for name, t in zip(Weights.names(), grads.weights.tensors())
            if t is not None}  # fmt: skip


@named([CASES[5], CASES[10], CROWDED])
@pytest.mark.parametrize("ranks", [1, 3])
def test_accumulation_adds_the_float32_gradient_once(case, ranks):
    fp32 = Config(weight_grad="fp32")
    wanted = run(case, ranks, fp32)
    got = accumulate(case, Group.local(ranks, timeout_s=5), 1.5)
    for name, t in got.items():
        testing.assert_same_bits({name: t}, {name: 1.5 + wanted[name]})


def test_accumulation_leaves_experts_without_rows_untouched():
    case = CASES[10]  # even experts only
    got = accumulate(case, Group(timeout_s=5), float("nan"))
    fresh = accumulate(case, Group(timeout_s=5), 0.0)
    for name in ("dgate", "dup", "ddown"):
        assert got[name].isnan().all()
        assert (fresh[name][1::2] == 0).all() and fresh[name][::2].abs().sum() > 0


def test_experts_without_rows_get_gradient_plus_zero():
    got = of_one_rank(CASES[10])
    for name in ("dgate", "dup", "ddown"):
        assert (testing.bits(got[name][1::2]) == 0).all()


def test_only_what_is_asked_for_is_computed_with_the_same_bits():
    case = CASES[5]
    inputs = testing.make_inputs(case).to("cuda")
    group = Group.local(2, timeout_s=5)
    sched = schedule(inputs.topk_ids, case.experts, group)
    _, ctx = forward(inputs.x, inputs.topk_weights, inputs.weights, sched, None, case.limit)
    full = backward(inputs.dy, ctx)
    none = Weights(None, None, None)
    part = backward(inputs.dy, ctx, accumulate=none)
    only_down = backward(inputs.dy, ctx, accumulate=dataclasses.replace(
        none, down=torch.zeros_like(inputs.weights.down, dtype=torch.float32)))  # fmt: skip
    torch.cuda.synchronize()
    group.check()
    for some in (part, only_down):
        assert torch.equal(testing.bits(some.x), testing.bits(full.x))
        assert torch.equal(testing.bits(some.topk_weights), testing.bits(full.topk_weights))
    assert torch.equal(only_down.weights.down.bfloat16(), full.weights.down)


def test_repeats_and_poison_change_no_bit():
    config = Config(ring_rows=256, save_rows=128)
    group = Group.local(2, timeout_s=5)
    expected = run(CROWDED, config=config, group=group)
    for i in range(60):
        if i % 20 == 0:
            testing.poison(group, (0xFF, 0x3C, 0x00)[i // 20])
        testing.assert_same_bits(run(CROWDED, config=config, group=group), expected)


def test_epochs_wrap():
    group = Group.local(3, timeout_s=5)
    expected = run(CASES[1], group=group)
    testing.set_epoch(group, 2**32 - 3)
    for _ in range(4):
        testing.assert_same_bits(run(CASES[1], group=group), expected)


def test_contexts_of_several_forwards_may_be_used_in_any_order_and_twice():
    case = CASES[5]
    inputs = testing.make_inputs(case).to("cuda")
    group = Group.local(2, timeout_s=5)
    contexts = []
    for _ in range(3):
        sched = schedule(inputs.topk_ids, case.experts, group)
        contexts.append(
            forward(inputs.x, inputs.topk_weights, inputs.weights, sched, None, case.limit)
        )
    results = [testing.named(contexts[i][0], backward(inputs.dy, contexts[i][1]))
               for i in (2, 0, 1, 0)]  # fmt: skip
    torch.cuda.synchronize()
    group.check()
    for got in results:
        testing.assert_same_bits(got, results[0])
    testing.assert_same_bits(results[0], of_one_rank(case), testing.RANK_INVARIANT)


@pytest.mark.parametrize("ranks", [1, 2])
def test_graph_replay_follows_new_ids(ranks):
    case = CASES[5]
    inputs = testing.make_inputs(case).to("cuda")
    group = Group.local(ranks, timeout_s=5)

    def step():
        return testing.run_layer(inputs, group, case)

    for captured, wanted in replays_with_new_ids(group, inputs.topk_ids, step):
        testing.assert_same_bits(captured, wanted)


def make_layer(case, group, config=None) -> MoELayer:
    torch.manual_seed(0)
    return MoELayer(
        case.hidden, case.intermediate, case.experts, case.top_k, shared=case.shared,
        score=case.score, swiglu_limit=case.limit, group=group, config=config, device="cuda",
    )  # fmt: skip


@pytest.mark.parametrize("ranks", [1, 3])
def test_autograd_gives_the_bits_of_the_functional_calls(ranks):
    case = CASES[5]
    group = Group.local(ranks, timeout_s=5)
    layer = make_layer(case, group)
    inputs = testing.make_inputs(case).to("cuda")
    x, topk_weights = inputs.x.requires_grad_(), inputs.topk_weights.requires_grad_()
    y = layer(x, inputs.topk_ids, topk_weights)
    y.backward(inputs.dy)
    weights = Weights(
        layer.gate_up[:, 0], layer.gate_up[:, 1], layer.down, layer.shared_gate_up[0],
        layer.shared_gate_up[1], layer.shared_down, layer.shared_score,
    ).map(torch.Tensor.detach)  # fmt: skip
    sched = schedule(inputs.topk_ids, case.experts, group)
    wanted_y, ctx = forward(x.detach(), topk_weights.detach(), weights, sched, None, case.limit)
    grads = backward(inputs.dy, ctx)
    torch.cuda.synchronize()
    group.check()
    pairs = [
        (y, wanted_y), (x.grad, grads.x), (topk_weights.grad, grads.topk_weights),
        (layer.gate_up.grad[:, 0], grads.weights.gate), (layer.gate_up.grad[:, 1], grads.weights.up),
        (layer.down.grad, grads.weights.down), (layer.shared_down.grad, grads.weights.shared_down),
        (layer.shared_gate_up.grad[1], grads.weights.shared_up),
        (layer.shared_score.grad, grads.weights.shared_score),
    ]  # fmt: skip
    for got, wanted in pairs:
        assert torch.equal(testing.bits(got), testing.bits(wanted))


def test_training_steps_learn_and_repeat():
    case = Case(256, 128, 96, 8, 2, shared=64, score=True)
    inputs = testing.make_inputs(case).to("cuda")

    def train(ranks):
        layer = make_layer(case, Group.local(ranks, timeout_s=5))
        optimizer = torch.optim.Adam(layer.parameters(), lr=3e-3)
        losses = []
        for _ in range(30):
            y = layer(inputs.x, inputs.topk_ids, inputs.topk_weights)
            loss = (y.float() - inputs.dy.float()).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        torch.cuda.synchronize()
        layer.group.check()
        return torch.stack(losses).cpu()

    first = train(1)
    assert first[-1] < 0.7 * first[0] and first.isfinite().all()
    assert torch.equal(first, train(1))
    assert (train(2) - first).abs().max() < 0.05 * first[0]


def test_a_rank_that_never_starts_leaves_nan_in_every_output():
    case = CASES[5]
    inputs = testing.make_inputs(case).to("cuda")
    group = Group.local(2, timeout_s=0.5)
    sched = schedule(inputs.topk_ids, case.experts, group)
    y, ctx = forward(inputs.x, inputs.topk_weights, inputs.weights, sched, None, case.limit)
    torch.cuda.synchronize()
    testing.never_start(group, 1)
    got = testing.named(y, backward(inputs.dy, ctx))
    torch.cuda.synchronize()
    with pytest.raises(RuntimeError, match="rank 1"):
        group.check()
    own = case.tokens - case.tokens // 2
    assert y.isfinite().all() and got["dx"][:own].isnan().all()
    assert got["dtopk_weights"][:own].isnan().all()
    experts = case.experts - case.experts // 2
    for name in ("dgate", "dup", "ddown"):
        assert got[name][:experts].isnan().all(), name
    for name in testing.PER_RANK_SUMS:
        assert got[name].isnan().all(), name
    assert torch.ones(1, device="cuda").item() == 1  # the context is usable


def test_backward_is_one_kernel():
    case = CASES[5]
    inputs = testing.make_inputs(case).to("cuda")
    group = Group()
    testing.run_layer(inputs, group, case)
    sched = schedule(inputs.topk_ids, case.experts, group)
    _, ctx = forward(inputs.x, inputs.topk_weights, inputs.weights, sched)
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        backward(inputs.dy, ctx)
        torch.cuda.synchronize()
    names = [e.name for e in profile.events() if e.device_type == torch.autograd.DeviceType.CUDA]
    assert len(names) == 1 and "backward" in names[0], names
