"""Field cases of the interface and the build.

Each test is named after its case; docs/field_cases.md lists them all. Unless a test says otherwise,
results agree with float64 by the error rule and every number of ranks gives the same bits."""

import dataclasses
import math
import pathlib

import pytest
import torch

from field_problems import BF16, WEIGHT_GRADS, context_of, inputs_with
from field_problems import is_plus_zero, layer_run, split_agrees
from helpers import run
from monomoe import Config, Group, MoELayer, backward, schedule, testing
from monomoe.testing import Case

# ------------------------------------------------------------------------------- API misuse


@pytest.mark.parametrize("chain", [
    lambda y: y.sum(),
    lambda y: y.mean(),
    lambda y: torch.cat([y, torch.ones_like(y)], 1).square().sum(),
    lambda y: (y.t() * torch.arange(y.shape[0]).bfloat16()).sum(),
    lambda y: (y.float() * 3).sum(),
], ids=["sum", "mean", "cat", "t", "fp32"])  # fmt: skip
def test_F105_gradients_that_are_expanded_or_views(chain):
    layer, x, ids, weights, _ = layer_run()
    leaf = layer(x, ids, weights).detach().requires_grad_()
    (dy,) = torch.autograd.grad(chain(leaf), leaf)
    wanted = torch.autograd.grad(layer(x, ids, weights), (x, layer.down), dy.contiguous().clone())
    got = torch.autograd.grad(chain(layer(x, ids, weights)), (x, layer.down))
    for a, b in zip(got, wanted):
        assert torch.equal(a, b)


def test_F106_x_that_is_not_plain():
    layer, x, ids, weights, _ = layer_run()
    x = x.detach()
    wanted = layer(x, ids, weights)
    big = torch.full((66, 32), math.nan, dtype=BF16)
    big[::2, :16] = x
    assert torch.equal(layer(big[::2, :16], ids, weights), wanted)
    odd = torch.zeros(33 * 16 + 1).bfloat16()[1:].view(33, 16)
    for bad, what in (
        (x.t().contiguous().t(), "contiguous last dimension"),
        (x.view(3, 11, 16), r"shape \[T, H\]"),
        (odd, "16-byte aligned"),
    ):
        with pytest.raises(ValueError, match=f"x: .*{what}"):
            layer(bad, ids, weights)


def test_F108_type_of_ids():
    layer, x, _, weights, _ = layer_run()
    logits = torch.randn(33, 4)
    ids = logits.topk(3).indices[:, :2]  # not contiguous
    wanted = layer(x, ids, weights)
    assert torch.equal(layer(x, ids.int(), weights), wanted)
    assert torch.equal(layer(x, ids.contiguous(), weights), wanted)
    for dtype in (torch.int16, torch.uint8, torch.int8, torch.float32, torch.bool, BF16):
        with pytest.raises(TypeError, match="topk_ids: int32 or int64 wanted"):
            layer(x, ids.to(dtype), weights)


@pytest.mark.parametrize("needs", range(16))
@pytest.mark.parametrize("main_grad", [False, True], ids=["grad", "main_grad"])
def test_F109_any_inputs_may_need_gradients(needs, main_grad):
    layer, x, ids, weights, dy = layer_run()
    weights.requires_grad_()
    layer(x, ids, weights).backward(dy)
    wanted = [x.grad, weights.grad, layer.gate_up.grad, layer.down.grad]
    leaves = [x, weights, layer.gate_up, layer.down]
    for n, leaf in enumerate(leaves):
        leaf.grad = None
        leaf.requires_grad_(bool(needs >> n & 1))
        if main_grad and n > 1 and leaf.requires_grad:
            leaf.main_grad = torch.zeros(leaf.shape)
    y = layer(x, ids, weights)
    assert y.requires_grad == (needs > 0)
    if needs:
        y.backward(dy)
    for n, (leaf, want) in enumerate(zip(leaves, wanted)):
        got = leaf.grad
        if main_grad and n > 1 and needs >> n & 1:
            assert got is None
            got = leaf.main_grad.bfloat16()
        assert (got is None) == (not needs >> n & 1)
        assert got is None or torch.equal(got, want)


def test_F110_torch_compile_with_a_width_that_is_no_tile():
    torch._dynamo.reset()
    layer = MoELayer(2880, 8, 4, 2)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    for tokens in (64, 65):
        results = []
        for call in (compiled, layer):
            layer.zero_grad()
            inputs = testing.make_inputs(Case(tokens, 2880, 8, 4, 2))
            x = inputs.x.requires_grad_()
            y = call(x, inputs.topk_ids, inputs.topk_weights)
            y.float().square().mean().backward()
            results.append((y.detach(), x.grad, layer.gate_up.grad, layer.down.grad))
        for got, want in zip(*results):
            assert torch.equal(got, want)


@pytest.mark.parametrize("ranks", [1, 2])
def test_F111_recomputed_forward_that_routes_differently(ranks):
    from torch.utils.checkpoint import checkpoint

    with Group.local(ranks) as group:
        layer, x, ids, weights, dy = layer_run(group=group)
        flipped = ids.clone()
        flipped[-1, 0] = (flipped[-1, 0] + 1) % 4
        routes = iter([ids, flipped])
        y = checkpoint(lambda x: layer(x, next(routes), weights), x, use_reentrant=False)
        y.backward(dy)
        got = x.grad.clone()
        # Backward belongs to the routing that the second pass saw, whole and finite.
        x.grad = None
        layer(x, flipped, weights).backward(dy)
        assert torch.equal(got, x.grad)
        # Saved routing fed back in: the bits of no checkpoint.
        x.grad = None
        checkpoint(layer, x, ids, weights, use_reentrant=False).backward(dy)
        got, x.grad = x.grad, None
        layer(x, ids, weights).backward(dy)
        assert torch.equal(got, x.grad)
        # Tables of another number of tokens, experts or split do not fit a context.
        inputs = testing.make_inputs(Case(33, 16, 24, 4, 2))
        ctx = context_of(inputs, 4, group)
        other = schedule(inputs.topk_ids[:-1], 4, group)
        with pytest.raises((ValueError, RuntimeError), match="wanted"):
            backward(inputs.dy, dataclasses.replace(ctx, schedule=other))


@pytest.mark.parametrize("ranks", [1, 2])
def test_F116_empty_batch_everywhere(ranks):
    case = Case(0, 16, 24, 4, 2, shared=8)
    with Group.local(ranks) as group:
        got = testing.run_layer(testing.make_inputs(case), group, case)
        assert got["y"].shape == got["dx"].shape == (0, 16)
        for name in (*WEIGHT_GRADS, *testing.PER_RANK_SUMS):
            assert name not in got or is_plus_zero(got[name])
        inputs = testing.make_inputs(case)
        main = inputs.weights.map(lambda w: torch.full(w.shape, 5.0))
        backward(inputs.dy, context_of(inputs, 4, group), accumulate=main)
        assert all((t == 5).all() for t in main.tensors() if t is not None)
        after = Case(33, 16, 24, 4, 2)
        testing.assert_same_bits(
            testing.run_layer(testing.make_inputs(after), group, after), run(after, ranks)
        )


def test_F117_a_row_does_not_depend_on_its_batch_mates():
    one = Case(1, 64, 40, 8, 2)
    token = testing.make_inputs(one)
    wanted = run(one, inputs=token)
    for tokens in (2, 17, 128, 257, 1024):
        for n, config in enumerate((None, Config(minibatch_rows=128, ring_rows=256, workers=3))):
            case = Case(tokens, 64, 40, 8, 2, routing="skewed" if n else "random", seed=tokens)
            at = (tokens * (n + 1) // 3) % tokens
            batch = inputs_with(case, weights=token.weights)
            for name in ("x", "dy", "topk_ids", "topk_weights"):
                getattr(batch, name)[at] = getattr(token, name)[0]
            got = run(case, 1 + n, config, batch)
            for name in ("y", "dx", "dtopk_weights"):
                testing.assert_same_bits({name: got[name][at]}, {name: wanted[name][0]})


def test_F118_more_tokens_than_before():
    """A group in one process has no limit; process groups have max_tokens."""
    with Group.local(2) as group:
        split_agrees(Case(0, 16, 24, 4, 2), [32, 32], [0, 65], [500, 1], [32, 32], group=group)


# ---------------------------------------------------------------------------- build, install


def test_F121_the_build_does_not_ask_the_environment_for_architectures():
    root = pathlib.Path(__file__).resolve().parent.parent.parent
    files = [root / "CMakeLists.txt", root / "pyproject.toml", *(root / "cmake").glob("*.cmake")]
    text = "".join(path.read_text(encoding="utf-8") for path in files)
    assert "ARCH_LIST" not in text and "CUDAARCHS" not in text and "90a" in text


def test_F124_the_library_knows_neither_torch_nor_this_python():
    """One file serves every version of both: it names neither in what it wants from the linker."""
    import monomoe

    binary = (pathlib.Path(monomoe.__file__).parent / "_monomoe.so").read_bytes()
    for name in (b"libtorch", b"libc10", b"libpython", b"PyObject", b"_ZN2at"):
        assert name not in binary, name
    assert b"libtvm_ffi" in binary
