"""The module and its autograd: the same bits as the functional calls, and torch's usual habits."""

import copy
import io
import math

import pytest
import torch

from monomoe import Config, Group, MoELayer, Weights, backward, forward, schedule, testing
from monomoe.functional import native
from monomoe.testing import Case

CASE = Case(40, 64, 40, 6, 2, shared=24, score=True)


def make_layer(case=CASE, group=None, **options) -> MoELayer:
    """A layer that holds the case's weights."""
    layer = MoELayer(
        case.hidden, case.intermediate, case.experts, case.top_k, shared=case.shared,
        score=case.score, swiglu_limit=case.limit, group=group, config=case.config, **options,
    )  # fmt: skip
    weights = testing.make_inputs(case).weights
    with torch.no_grad():
        layer.gate_up[:, 0], layer.gate_up[:, 1] = weights.gate, weights.up
        layer.down.copy_(weights.down)
        if case.shared:
            layer.shared_gate_up[0] = weights.shared_gate
            layer.shared_gate_up[1] = weights.shared_up
            layer.shared_down.copy_(weights.shared_down)
        if case.score:
            layer.shared_score.copy_(weights.shared_score)
    return layer


def leaves(case=CASE):
    """x and router weights that want gradients, ids and dy."""
    inputs = testing.make_inputs(case)
    x, topk_weights = inputs.x.requires_grad_(), inputs.topk_weights.requires_grad_()
    return x, inputs.topk_ids, topk_weights, inputs.dy


def functional(case=CASE, config=None) -> dict[str, torch.Tensor]:
    with Group() as group:
        return testing.run_layer(testing.make_inputs(case), group, case, config)


def collected(layer, y, x, topk_weights, attribute="grad") -> dict[str, torch.Tensor]:
    """Results of autograd by the names of the functional ones."""
    grads = {name: getattr(p, attribute) for name, p in layer.named_parameters()}
    results = {"y": y.detach(), "dx": x.grad, "dtopk_weights": topk_weights.grad}
    if grads["gate_up"] is not None:
        results |= {"dgate": grads["gate_up"][:, 0], "dup": grads["gate_up"][:, 1]}
    if grads["down"] is not None:
        results["ddown"] = grads["down"]
    if grads.get("shared_gate_up") is not None:
        results["dshared_gate"], results["dshared_up"] = grads["shared_gate_up"]
        results["dshared_down"] = grads["shared_down"]
    if grads.get("shared_score") is not None:
        results["dshared_score"] = grads["shared_score"]
    return results


def train_step(layer, case=CASE, attribute="grad"):
    x, ids, topk_weights, dy = leaves(case)
    y = layer(x, ids, topk_weights, case.tokens_per_rank(layer.group.ranks))
    y.backward(dy)
    return collected(layer, y, x, topk_weights, attribute)


@pytest.mark.parametrize("case", [
    CASE, Case(33, 24, 56, 5, 3), Case(33, 24, 56, 5, 3, limit=0.5, shared=8),
    Case(0, 24, 56, 5, 3, shared=8), Case(33, 24, 56, 5, 3, routing="none"),
], ids=lambda case: case.name)  # fmt: skip
def test_autograd_gives_the_bits_of_the_functional_calls(case):
    got, wanted = train_step(make_layer(case), case), functional(case)
    assert got.keys() == wanted.keys()
    testing.assert_same_bits(got, wanted)


@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_layer_gives_the_same_bits_for_every_number_of_ranks(ranks):
    case = Case(45, 64, 40, 6, 2, shared=24, score=True, split="ragged")
    with Group.local(ranks) as group:
        got = train_step(make_layer(case, group), case)
    testing.assert_same_bits(got, train_step(make_layer(case), case), testing.RANK_INVARIANT)


def test_parameters_have_the_documented_shapes_and_linear_bounds():
    torch.manual_seed(0)
    layer = MoELayer(64, 40, 6, 2, shared=24, score=True)
    shapes = {name: tuple(p.shape) for name, p in layer.named_parameters()}
    assert shapes == {
        "gate_up": (6, 2, 40, 64), "down": (6, 64, 40), "shared_gate_up": (2, 24, 64),
        "shared_down": (64, 24), "shared_score": (64,),
    }  # fmt: skip
    for name, inputs in (("gate_up", 64), ("down", 40), ("shared_gate_up", 64),
                         ("shared_down", 24), ("shared_score", 64)):  # fmt: skip
        p, bound = getattr(layer, name), 1 / math.sqrt(inputs)
        assert p.dtype == torch.bfloat16
        assert 0.85 * bound < p.abs().max() <= bound * (1 + 2**-8), name
    plain = MoELayer(64, 40, 6, 2)
    assert [name for name, _ in plain.named_parameters()] == ["gate_up", "down"]
    assert "hidden=64, intermediate=40, experts=6, top_k=2, shared=0" in repr(plain)


@pytest.mark.parametrize("ranks", [1, 3])
def test_main_grad_gets_the_float32_gradient_and_autograd_none(ranks):
    wanted = functional(config=Config(weight_grad="fp32"))
    with Group.local(ranks) as group:
        layer = make_layer(group=group)
        for p in layer.parameters():
            p.main_grad = torch.ones(p.shape)
        got = train_step(layer, attribute="main_grad")
        assert all(p.grad is None for p in layer.parameters())
    names = ("dgate", "dup", "ddown")
    testing.assert_same_bits({n: got[n] for n in names}, {n: 1 + wanted[n] for n in names})


def test_main_grad_adds_up_over_micro_batches():
    layer = make_layer()
    for p in layer.parameters():
        p.main_grad = torch.zeros(p.shape)
    first = {n: t.clone() for n, t in train_step(layer, attribute="main_grad").items()}
    second = train_step(layer, attribute="main_grad")
    for name in ("dgate", "dup", "ddown", *testing.PER_RANK_SUMS):
        testing.assert_same_bits({name: second[name]}, {name: 2 * first[name]})


def test_experts_without_rows_leave_main_grad_untouched():
    case = Case(40, 64, 40, 8, 2, routing="even_only")
    layer = make_layer(case)
    for p in layer.parameters():
        p.main_grad = torch.full(p.shape, math.nan)
        p.main_grad[::2] = 0
    train_step(layer, case)
    for p in layer.parameters():
        assert p.main_grad[1::2].isnan().all() and p.main_grad[::2].isfinite().all()


def test_parameters_with_and_without_main_grad_may_be_mixed():
    wide, narrow = functional(config=Config(weight_grad="fp32")), functional()
    layer = make_layer()
    layer.down.main_grad = torch.zeros(layer.down.shape)
    layer.shared_down.main_grad = torch.zeros(layer.shared_down.shape)
    got = train_step(layer)
    assert layer.down.grad is None and layer.shared_down.grad is None
    assert torch.equal(layer.down.main_grad, wide["ddown"])
    assert torch.equal(layer.shared_down.main_grad, wide["dshared_down"])
    for name in ("dgate", "dup", "dshared_gate", "dshared_up", "dshared_score"):
        assert torch.equal(got[name], narrow[name]), name


FROZEN = ["x", "topk_weights", "gate_up", "down", "shared_gate_up", "shared_down", "shared_score"]


@pytest.mark.parametrize("frozen", [[name] for name in FROZEN] + [FROZEN[2:], FROZEN[:2],
                                    ["x", "gate_up", "shared_score"]], ids="-".join)  # fmt: skip
@pytest.mark.parametrize("with_main_grad", [False, True], ids=["grad", "main_grad"])
def test_what_is_frozen_gets_no_gradient_and_the_rest_keeps_its_bits(frozen, with_main_grad):
    wanted = functional(config=Config(weight_grad="fp32") if with_main_grad else None)
    layer = make_layer()
    x, ids, topk_weights, dy = leaves()
    for name in frozen:
        {"x": x, "topk_weights": topk_weights, **dict(layer.named_parameters())}[
            name
        ].requires_grad_(False)
    if with_main_grad:
        for p in layer.parameters():
            if p.requires_grad:
                p.main_grad = torch.zeros(p.shape)
    y = layer(x, ids, topk_weights)
    y.backward(dy)
    attribute = "main_grad" if with_main_grad else "grad"
    for name, p in layer.named_parameters():
        assert (getattr(p, attribute, None) is None) == (name in frozen)
        assert p.grad is None or not with_main_grad
        if not hasattr(p, attribute):
            p.main_grad = None
    got = collected(layer, y, x, topk_weights, attribute)
    got = {name: t for name, t in got.items() if t is not None}
    for name, tensor in got.items():
        assert torch.equal(tensor, wanted[name]), name
    assert (x.grad is None) == ("x" in frozen)
    assert (topk_weights.grad is None) == ("topk_weights" in frozen)


def test_gradients_that_are_not_needed_are_not_allocated(monkeypatch):
    from monomoe import ops

    seen = []
    plain = ops.launch_backward
    monkeypatch.setattr(ops, "launch_backward", lambda *a: (seen.append(a[9]), plain(*a)))
    layer = make_layer()
    layer.down.requires_grad_(False)
    x, ids, topk_weights, dy = leaves()
    layer(x.detach(), ids, topk_weights).backward(dy)
    (grads,) = seen
    assert grads.x is None and grads.weights.down is None
    assert grads.topk_weights is not None and grads.weights.gate is not None


def test_sum_backward_gives_the_gradient_of_ones():
    """autograd hands over a gradient of stride 0, which the functional call refuses."""
    layer, (x, ids, topk_weights, _) = make_layer(), leaves()
    layer(x, ids, topk_weights).sum().backward()
    inputs = testing.make_inputs(CASE)
    with Group() as group:
        sched = schedule(inputs.topk_ids, CASE.experts, group)
        _, ctx = forward(inputs.x, inputs.topk_weights, inputs.weights, sched)
        wanted = backward(torch.ones_like(inputs.dy), ctx)
    assert torch.equal(x.grad, wanted.x) and torch.equal(topk_weights.grad, wanted.topk_weights)
    assert torch.equal(layer.down.grad, wanted.weights.down)


@pytest.mark.parametrize("make", [
    lambda dy: dy.T.contiguous().T,
    lambda dy: torch.cat([dy, dy], 1)[:, 64:],
    lambda dy: torch.cat([dy[:, :1], dy], 1)[:, 1:],
    lambda dy: torch.cat([dy.flatten()[:1], dy.flatten()])[1:].view_as(dy),
], ids=["columns", "strided", "misaligned_rows", "misaligned_start"])  # fmt: skip
def test_gradient_of_any_layout_is_understood(make):
    layer, (x, ids, topk_weights, dy) = make_layer(), leaves()
    y = layer(x, ids, topk_weights)
    torch.autograd.backward(y, make(dy))
    testing.assert_same_bits(collected(layer, y, x, topk_weights), functional())


def test_unused_output_and_zero_gradients():
    layer, (x, ids, topk_weights, dy) = make_layer(), leaves()
    y = layer(x, ids, topk_weights)
    (x.sum() + 0 * y.detach().sum()).backward()
    assert layer.down.grad is None
    y.backward(torch.zeros_like(dy))
    assert not layer.down.grad.count_nonzero()


def test_backward_twice_with_retained_graph_doubles_the_gradients():
    layer, (x, ids, topk_weights, dy) = make_layer(), leaves()
    y = layer(x, ids, topk_weights)
    y.backward(dy, retain_graph=True)
    once = x.grad.clone()
    y.backward(dy)
    assert torch.equal(x.grad, 2 * once)


def test_second_derivative_is_refused():
    layer, (x, ids, topk_weights, dy) = make_layer(), leaves()
    y = layer(x, ids, topk_weights)
    (dx,) = torch.autograd.grad(y, x, dy.requires_grad_(), create_graph=True)
    with pytest.raises(RuntimeError, match="first derivatives wanted, a second one asked for; call detach"):
        dx.sum().backward()


def test_input_changed_before_backward_is_noticed():
    layer, (x, ids, topk_weights, dy) = make_layer(), leaves()
    x2 = x * 1
    y = layer(x2, ids, topk_weights)
    with torch.no_grad():
        x2.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.backward(dy)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_without_gradients_nothing_is_saved_and_bits_are_the_same(mode, monkeypatch):
    from monomoe import ops

    kept = []
    plain = ops.new_saved
    monkeypatch.setattr(ops, "new_saved", lambda *a: kept.append(plain(*a)) or kept[-1])
    layer, (x, ids, topk_weights, _) = make_layer(), leaves()
    with mode():
        y = layer(x, ids, topk_weights)
    assert not y.requires_grad
    assert (
        kept[0].numel()
        < plain(
            layer.group.id, 1, x, topk_weights, testing.make_inputs(CASE).weights, Config().pack()
        ).numel()
    )
    testing.assert_same_bits({"y": y}, functional(), ["y"])


def test_several_layers_and_forwards_in_flight():
    """Two layers share a group; all forwards come before all backwards."""
    with Group.local(2) as group:
        one, two = make_layer(group=group), make_layer(group=group)
        runs = []
        for layer in (one, two, one):
            x, ids, topk_weights, dy = leaves()
            runs.append((layer, x, topk_weights, dy, layer(x, ids, topk_weights)))
        for layer, x, topk_weights, dy, y in reversed(runs):
            for p in layer.parameters():
                p.grad = None
            y.backward(dy)
            got = collected(layer, y, x, topk_weights)
            testing.assert_same_bits(got, functional(), testing.RANK_INVARIANT)


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_activation_checkpointing_gives_the_same_bits(use_reentrant):
    from torch.utils.checkpoint import checkpoint

    layer, (x, ids, topk_weights, dy) = make_layer(), leaves()
    y = checkpoint(layer, x, ids, topk_weights, use_reentrant=use_reentrant)
    y.backward(dy)
    testing.assert_same_bits(collected(layer, y, x, topk_weights), functional())


def test_copies_share_the_group_and_nothing_else():
    with Group.local(2) as group:
        layer = make_layer(group=group)
        twin = copy.deepcopy(layer)
        assert twin.group is layer.group
        got = train_step(twin)
        assert layer.down.grad is None
    testing.assert_same_bits(got, functional(), testing.RANK_INVARIANT)


def test_state_dict_round_trip():
    layer, other = make_layer(), MoELayer(64, 40, 6, 2, shared=24, score=True)
    file = io.BytesIO()
    torch.save(layer.state_dict(), file)
    file.seek(0)
    other.load_state_dict(torch.load(file))
    testing.assert_same_bits(train_step(other), train_step(layer))


def test_pickling_a_group_is_refused_with_a_sentence():
    with pytest.raises(TypeError, match="^group: .* to pickle wanted, .*; save state_dict"):
        torch.save(make_layer(), io.BytesIO())


def test_group_lives_until_the_last_backward_needs_it():
    x, ids, topk_weights, dy = leaves()
    layer = make_layer(group=Group.local(2))
    number = layer.group.id
    y = layer(x, ids, topk_weights)
    del layer
    y.backward(dy)
    testing.assert_same_bits({"dx": x.grad}, functional(), ["dx"])
    del y
    with pytest.raises(RuntimeError, match="a closed one given"):
        native().group_check(number)


def test_default_group_is_shared_by_layers():
    assert MoELayer(8, 8, 1, 1).group is MoELayer(8, 8, 1, 1).group


def test_an_optimizer_learns_a_target():
    """A layer fits a fixed random map: gradients point downhill through router and experts."""
    torch.manual_seed(0)
    layer = MoELayer(32, 64, 4, 2, shared=32, score=True)
    router = torch.nn.Linear(32, 4, bias=False)
    x, target = torch.randn(64, 32).bfloat16(), torch.randn(64, 32)
    optimizer = torch.optim.Adam([*layer.parameters(), *router.parameters()], lr=1e-2)
    losses = []
    for _ in range(60):
        route = router(x.float()).softmax(-1).topk(2)
        loss = (layer(x, route.indices, route.values).float() - target).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.35 * losses[0]


# --------------------------------------------------------------------------------------- torch


def op_arguments(group):
    inputs = testing.make_inputs(CASE)
    layer = make_layer(group=group)
    params = [p.detach() for p in layer.parameters()]
    tables = torch.ops.monomoe.schedule(inputs.topk_ids, group.handle, CASE.experts, None)
    options = (group.handle, None, Config().pack(), None)
    return inputs, params, tables, options


def test_ops_have_true_schemas_and_fakes(group):
    inputs, params, tables, options = op_arguments(group)
    forward_args = (inputs.x, inputs.topk_weights, *params, tables, *options)
    _, saved = torch.ops.monomoe.forward(*forward_args)
    backward_args = (inputs.dy, inputs.x, inputs.topk_weights, *params, tables, saved, *options)
    main_grads = [torch.zeros(p.shape) for p in params]
    calls = [
        (torch.ops.monomoe.schedule, (inputs.topk_ids, group.handle, CASE.experts, None)),
        (torch.ops.monomoe.forward, forward_args),
        (torch.ops.monomoe.backward, (*backward_args, [True] * 7)),
        (torch.ops.monomoe.backward, (*backward_args, [False, True, False, True] + [False] * 3)),
        (torch.ops.monomoe.backward_accumulate, (*backward_args, main_grads, [True] * 7)),
        (torch.ops.monomoe.backward_accumulate,
         (*backward_args, main_grads[:1], [False, True, True] + [False] * 4)),
    ]  # fmt: skip
    for op, args in calls:
        torch.library.opcheck(op, args)


class TwoLayers(torch.nn.Module):
    def __init__(self, group):
        super().__init__()
        self.layers = torch.nn.ModuleList([make_layer(group=group), make_layer(group=group)])

    def forward(self, x, ids, topk_weights):
        for layer in self.layers:
            x = x + layer(x, ids, topk_weights)
        return x


@pytest.mark.parametrize("main_grad", [False, True], ids=["grad", "main_grad"])
def test_compiled_model_gives_the_bits_of_the_eager_one_and_serves_every_group(main_grad):
    from torch._dynamo.testing import CompileCounterWithBackend

    torch._dynamo.reset()
    counter = CompileCounterWithBackend("aot_eager")

    def run(model, call):
        for p in model.parameters():
            p.grad = None
            if main_grad:
                p.main_grad = torch.zeros(p.shape)
        x, ids, topk_weights, dy = leaves()
        y = call(x, ids, topk_weights)
        y.backward(dy)
        grads = [p.main_grad if main_grad else p.grad for p in model.parameters()]
        return [y.detach(), x.grad, topk_weights.grad, *grads]

    with Group() as one, Group.local(3) as three:
        model = TwoLayers(one)
        wanted = run(model, model)
        compiled = torch.compile(model, fullgraph=True, backend=counter)
        for got, want in zip(run(model, compiled), wanted, strict=True):
            assert torch.equal(got, want)
        graphs = counter.frame_count
        for layer in model.layers:
            layer.group = three
        results = run(model, compiled)
        assert counter.frame_count == graphs
    for got, want in zip(results[:3], wanted):
        assert torch.equal(got, want)


def test_weights_names_are_the_arguments():
    assert Weights.names() == (
        "gate", "up", "down", "shared_gate", "shared_up", "shared_down", "shared_score",
    )  # fmt: skip
