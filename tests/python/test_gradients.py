"""Which gradients there are, in which type, and what accumulation adds."""

import pytest
import torch

from helpers import check, oracle, run
from monomoe import Config, Group, Weights, backward, forward, schedule, testing
from monomoe.testing import Case

FULL = Case(65, 64, 40, 6, 2, shared=24, score=True)
SPARSE = Case(65, 64, 40, 8, 2, routing="even_only", shared=24, score=True)


def context(case, group, config=None):
    inputs = testing.make_inputs(case)
    split = case.tokens_per_rank(group.ranks)
    sched = schedule(inputs.topk_ids, case.experts, group, tokens_per_rank=split)
    y, ctx = forward(
        inputs.x, inputs.topk_weights, inputs.weights, sched, config or case.config, case.limit
    )
    return inputs, y, ctx


@pytest.mark.parametrize("router", ["softmax", "signed"])
def test_router_gradient_is_right_for_zero_and_negative_weights(router):
    case = Case(66, 64, 40, 6, 3, router=router)
    check(case)
    inputs = testing.make_inputs(case)
    if router == "signed":
        zero = inputs.topk_weights == 0
        assert zero.sum() > 10 and (inputs.topk_weights < 0).sum() > 10
        got = run(case, 2)
        assert got["dtopk_weights"][zero].count_nonzero() == zero.sum()


def test_float32_weight_gradients_are_rounded_once_to_bf16():
    wide = run(FULL, 2, Config(weight_grad="fp32"))
    narrow = run(FULL, 2)
    for name in ("dgate", "dup", "ddown", *testing.PER_RANK_SUMS):
        assert wide[name].dtype == torch.float32 and narrow[name].dtype == torch.bfloat16
        testing.assert_same_bits({name: wide[name].bfloat16()}, {name: narrow[name]})


@pytest.mark.parametrize("ranks", [1, 3])
def test_accumulation_adds_the_float32_gradient_once(ranks):
    wide = run(FULL, ranks, Config(weight_grad="fp32"))
    rng = torch.Generator().manual_seed(1)
    with Group.local(ranks) as group:
        inputs, _, ctx = context(FULL, group)
        main = inputs.weights.map(lambda w: torch.randn(w.shape, generator=rng))
        before = main.map(torch.Tensor.clone)
        grads = backward(inputs.dy, ctx, accumulate=main)
    assert grads.weights is main
    for name in Weights.names():
        wanted = getattr(before, name) + wide[f"d{name}"]
        testing.assert_same_bits({name: getattr(main, name)}, {name: wanted})


@pytest.mark.parametrize("ranks", [1, 3])
def test_accumulation_leaves_experts_without_rows_untouched(ranks):
    """NaN in their main_grad survives: it was not even read and written back."""
    with Group.local(ranks) as group:
        inputs, _, ctx = context(SPARSE, group)
        main = inputs.weights.map(lambda w: torch.zeros(w.shape))
        pattern = 0x7FC12345  # a NaN with a payload
        for t in (main.gate, main.up, main.down):
            testing.bits(t)[1::2] = pattern
        backward(inputs.dy, ctx, accumulate=main)
    for t in (main.gate, main.up, main.down):
        assert (testing.bits(t)[1::2] == pattern).all()
        assert torch.isfinite(t[::2]).all() and t[::2].count_nonzero()


def test_accumulating_twice_adds_twice():
    with Group() as group:
        inputs, _, ctx = context(FULL, group)
        wide = run(FULL, 1, Config(weight_grad="fp32"))
        main = inputs.weights.map(lambda w: torch.zeros(w.shape))
        backward(inputs.dy, ctx, accumulate=main)
        backward(inputs.dy, ctx, accumulate=main)
    for name in Weights.names():
        testing.assert_same_bits({name: getattr(main, name)}, {name: 2 * wide[f"d{name}"]})


def test_main_grads_may_be_strided_by_whole_rows_and_share_one_buffer():
    wanted = run(FULL, 2, Config(weight_grad="fp32"))
    with Group.local(2) as group:
        inputs, _, ctx = context(FULL, group)
        both = torch.zeros(6, 2, 40, 64)
        padded = torch.full((6, 64, 48), 7.0)
        padded[..., :40] = 0
        main = Weights(both[:, 0], both[:, 1], padded[..., :40])
        backward(inputs.dy, ctx, accumulate=main)
    testing.assert_same_bits({"dgate": both[:, 0], "dup": both[:, 1], "ddown": padded[..., :40]},
                             {n: wanted[n] for n in ("dgate", "dup", "ddown")})  # fmt: skip
    assert (padded[..., 40:] == 7).all()


@pytest.mark.parametrize("save", ["all", "preact", "none"])
def test_backward_twice_gives_the_same_bits_twice(save):
    with Group.local(3) as group:
        inputs, y, ctx = context(FULL, group, Config(save=save))
        saved = ctx.saved.clone()
        first = testing.named(y, backward(inputs.dy, ctx))
        testing.assert_same_bits(testing.named(y, backward(inputs.dy, ctx)), first)
        assert torch.equal(ctx.saved, saved)


def test_contexts_of_several_forwards_may_be_used_in_any_order():
    other = Case(40, 64, 40, 6, 2, seed=3)
    with Group.local(2) as group:
        a_in, a_y, a = context(FULL, group)
        b_in, b_y, b = context(other, group)
        c_in, c_y, c = context(FULL, group, Config(save="none"))
        b_got = testing.named(b_y, backward(b_in.dy, b))
        c_got = testing.named(c_y, backward(c_in.dy, c))
        a_got = testing.named(a_y, backward(a_in.dy, a))
    testing.assert_same_bits(a_got, run(FULL, 2))
    testing.assert_same_bits(b_got, run(other, 2))
    testing.assert_same_bits(c_got, run(FULL, 2))


def test_one_schedule_serves_layers_of_different_widths():
    wide, narrow = Case(33, 72, 104, 5, 2), Case(33, 24, 8, 5, 2)
    inputs = testing.make_inputs(wide), testing.make_inputs(narrow)
    assert torch.equal(inputs[0].topk_ids, inputs[1].topk_ids)
    with Group.local(2) as group:
        sched = schedule(inputs[0].topk_ids, 5, group)
        made = [forward(i.x, i.topk_weights, i.weights, sched) for i in inputs]
        got = [testing.named(y, backward(i.dy, ctx)) for i, (y, ctx) in zip(inputs, made)]
    for case, results in zip((wide, narrow), got):
        testing.assert_same_bits(results, run(case, 2))


def test_inputs_are_never_written():
    with Group.local(3) as group:
        inputs, _, ctx = context(FULL, group)
        backward(inputs.dy, ctx)
    fresh = testing.make_inputs(FULL)
    for name in ("x", "topk_ids", "topk_weights", "dy"):
        assert torch.equal(getattr(inputs, name), getattr(fresh, name)), name
    for got, wanted in zip(inputs.weights.tensors(), fresh.weights.tensors()):
        assert torch.equal(got, wanted)


def test_row_strided_inputs_are_taken_as_they_are():
    wanted, inputs = run(FULL, 2), testing.make_inputs(FULL)

    def padded(t: torch.Tensor) -> torch.Tensor:
        wide = torch.full((*t.shape[:-1], t.shape[-1] + 16), float("nan"), dtype=t.dtype)
        wide[..., 8:-8] = t
        return wide[..., 8:-8]

    with Group.local(2) as group:
        sched = schedule(inputs.topk_ids, FULL.experts, group)
        weights = Weights(*(padded(w) if w.dim() > 1 else w for w in inputs.weights.tensors()))
        y, ctx = forward(padded(inputs.x), inputs.topk_weights, weights, sched)
        got = testing.named(y, backward(padded(inputs.dy), ctx))
    testing.assert_same_bits(got, wanted)


def test_shared_gradients_of_many_ranks_obey_the_error_rule():
    inputs, exact, twin = oracle(Case(301, 64, 40, 6, 2, shared=136, score=True, split="ragged"))
    case = Case(301, 64, 40, 6, 2, shared=136, score=True, split="ragged")
    for ranks in (1, 2, 3, 5, 8):
        got = run(case, ranks, inputs=inputs)
        for name in testing.PER_RANK_SUMS:
            assert testing.judge(name, got[name], twin[name], exact[name]).passed, (name, ranks)
