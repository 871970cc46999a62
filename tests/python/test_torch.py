"""What torch does with the layer beyond one step: main_grads that come and go, checkpoints,
compiled graphs, gradients of gradients."""

import pathlib
import shutil
import sysconfig

import pytest
import torch

from monomoe import Config, Group, MoELayer, testing
from monomoe.testing import Case
from test_errors import refused
from test_layer import CASE, TwoLayers, collected, functional, leaves, make_layer, train_step

# -------------------------------------------------------------------------------- main_grad


def forward_with_main_grads(value=0.0):
    layer, (x, ids, topk_weights, dy) = make_layer(), leaves()
    for p in layer.parameters():
        p.main_grad = torch.full(p.shape, value)
    return layer, layer(x, ids, topk_weights), dy


def wide():
    return functional(config=Config(weight_grad="fp32"))


def test_main_grad_is_looked_up_when_backward_runs():
    layer, y, dy = forward_with_main_grads()
    old = layer.down.main_grad
    layer.down.main_grad = torch.ones(old.shape)  # replaced
    del layer.shared_down.main_grad  # taken away
    y.backward(dy)
    assert not old.any()
    assert torch.equal(layer.down.main_grad, 1 + wide()["ddown"])
    assert torch.equal(layer.shared_down.grad, functional()["dshared_down"])
    assert layer.down.grad is None


def test_main_grad_may_come_after_forward():
    layer, (x, ids, topk_weights, dy) = make_layer(), leaves()
    y = layer(x, ids, topk_weights)
    layer.down.main_grad = torch.zeros(layer.down.shape)
    y.backward(dy)
    assert torch.equal(layer.down.main_grad, wide()["ddown"])
    assert layer.down.grad is None and layer.gate_up.grad is not None


ZEROS = "make it with torch.zeros(parameter.shape)"


@pytest.mark.parametrize("name, make, error, sentence", [
    ("gate_up", lambda s: torch.zeros(s[0]), ValueError,
     f"gate_up.main_grad: shape [6, 2, 40, 64] of its parameter wanted, [6] given; {ZEROS}"),
    ("gate_up", lambda s: torch.zeros(s[0], 2 * s[2], s[3]), ValueError,
     "gate_up.main_grad: shape [6, 2, 40, 64] of its parameter wanted, [6, 80, 64] given; "
     f"{ZEROS}"),
    ("shared_gate_up", lambda s: torch.zeros(1), ValueError,
     f"shared_gate_up.main_grad: shape [2, 24, 64] of its parameter wanted, [1] given; {ZEROS}"),
    ("gate_up", lambda s: torch.zeros(s, dtype=torch.bfloat16), TypeError,
     "gate_up.main_grad: float32 wanted, bfloat16 given; convert it with .to(torch.float32)"),
    ("down", lambda s: torch.zeros(s, dtype=torch.float64), TypeError,
     "down.main_grad: float32 wanted, float64 given; convert it with .to(torch.float32)"),
    ("down", lambda s: torch.zeros(s).mT.contiguous().mT, ValueError,
     "down.main_grad: a contiguous last dimension wanted, strides [2560, 1, 64] given; "
     "pass .contiguous()"),
    ("shared_gate_up", lambda s: torch.zeros(s, dtype=torch.int32), TypeError,
     "shared_gate_up.main_grad: float32 wanted, int32 given; convert it with .to(torch.float32)"),
    ("shared_down", lambda s: torch.zeros(s[1]).expand(s), ValueError,
     "shared_down.main_grad: rows that do not overlap wanted, strides [0, 1] given; "
     "pass .contiguous()"),
    ("shared_score", lambda s: [0.0] * s[0], TypeError,
     "shared_score.main_grad: torch.Tensor wanted, list given; pass torch.as_tensor(...) of it"),
], ids=lambda v: v if isinstance(v, str) and " " not in v else "")  # fmt: skip
def test_main_grads_are_refused_by_the_name_their_owner_uses(name, make, error, sentence):
    layer, y, dy = forward_with_main_grads(7.0)
    parameter = getattr(layer, name)
    parameter.main_grad = make(parameter.shape)
    refused(lambda: y.backward(dy), error, sentence)
    for other in layer.parameters():
        if other is not parameter:
            assert (other.main_grad == 7).all()


def test_two_parameters_with_one_main_grad_are_refused():
    layer, y, dy = forward_with_main_grads()
    memory = torch.zeros(6 * 2 * 40 * 64)
    layer.gate_up.main_grad = memory.view(6, 2, 40, 64)
    layer.down.main_grad = memory[100 * 64 :][: 6 * 64 * 40].view(6, 64, 40)
    refused(
        lambda: y.backward(dy),
        ValueError,
        "gate_up.main_grad: memory of its own wanted, the memory of down.main_grad given; "
        "pass a new tensor",
    )
    assert not memory.any()


# --------------------------------------------------------------------------------- autograd


def test_gradients_have_no_gradients_and_say_so():
    """Also where the incoming gradient is a constant, and through any of the results."""
    layer, (x, ids, topk_weights, dy) = make_layer(), leaves()
    y = layer(x, ids, topk_weights)
    params = (x, topk_weights, *layer.parameters())
    made = torch.autograd.grad(y, params, dy, create_graph=True)
    for got in made:
        refused(
            lambda g=got: g.float().sum().backward(retain_graph=True),
            RuntimeError,
            "gradients of the layer: first derivatives wanted, a second one asked for; call "
            "detach() on the gradients or leave out create_graph=True",
        )
    wanted = functional()
    assert torch.equal(made[0], wanted["dx"]) and torch.equal(made[3], wanted["ddown"])


@pytest.mark.parametrize("use_reentrant", [False, True])
@pytest.mark.parametrize("main_grad", [False, True], ids=["grad", "main_grad"])
def test_checkpoint_in_a_model_gives_the_same_bits(use_reentrant, main_grad):
    from torch.utils.checkpoint import checkpoint

    def run(call):
        model = TwoLayers(None)
        for p in model.parameters():
            p.main_grad = torch.zeros(p.shape) if main_grad else None
        x, ids, topk_weights, dy = leaves()
        y = call(model, x, ids, topk_weights)
        y.backward(dy)
        grads = [p.main_grad if main_grad else p.grad for p in model.parameters()]
        return [y.detach(), x.grad, topk_weights.grad, *grads]

    def checkpointed(model, x, ids, topk_weights):
        for layer in model.layers:
            x = x + checkpoint(layer, x, ids, topk_weights, use_reentrant=use_reentrant)
        return x

    wanted = run(lambda model, *inputs: model(*inputs))
    for got, want in zip(run(checkpointed), wanted, strict=True):
        assert torch.equal(got, want)


def test_micro_batches_of_different_sizes_add_up_in_main_grad():
    """Each addition is one fp32 addition of that micro-batch's fp32 gradient, in order."""
    cases = [Case(t, 64, 40, 6, 2, shared=24, score=True, seed=t) for t in (40, 7, 0, 65)]
    layer = make_layer()
    for p in layer.parameters():
        p.main_grad = torch.zeros(p.shape)
    wanted = [torch.zeros(p.shape) for p in layer.parameters()]
    outputs = []
    for case in cases:  # all forwards first, as pipeline schedules do
        x, ids, topk_weights, dy = leaves(case)
        outputs.append((layer(x, ids, topk_weights), dy))
        alone = make_layer()
        for p in alone.parameters():
            p.main_grad = torch.zeros(p.shape)
        alone(x.detach(), ids, topk_weights.detach()).backward(dy)
        for total, p in zip(wanted, alone.parameters()):
            total += p.main_grad
    for y, dy in outputs:
        y.backward(dy)
    for p, total in zip(layer.parameters(), wanted):
        assert torch.equal(p.main_grad, total)


# ---------------------------------------------------------------------------- torch.compile


def step_of(model, call, tokens):
    for p in model.parameters():
        p.grad = None
    case = Case(tokens, 64, 40, 6, 2, shared=24, score=True, seed=tokens)
    x, ids, topk_weights, dy = leaves(case)
    y = call(x, ids, topk_weights)
    y.float().square().mean().backward()
    return [y.detach(), x.grad, topk_weights.grad, *(p.grad for p in model.parameters())]


def test_compiled_model_serves_every_number_of_tokens_with_one_more_graph():
    from torch._dynamo.testing import CompileCounterWithBackend

    torch._dynamo.reset()
    counter = CompileCounterWithBackend("aot_eager")
    with Group.local(2) as group:
        model = TwoLayers(group)
        compiled = torch.compile(model, fullgraph=True, backend=counter)
        graphs = []
        for tokens in (64, 65, 40, 129):
            for got, want in zip(
                step_of(model, compiled, tokens), step_of(model, model, tokens), strict=True
            ):
                assert torch.equal(got, want), tokens
            graphs.append(counter.frame_count)
    assert graphs[1:] == [graphs[1]] * 3  # the second size makes the sizes symbols


INDUCTOR_CAN_BUILD = (
    shutil.which("g++") and (pathlib.Path(sysconfig.get_path("include")) / "Python.h").exists()
)


@pytest.mark.skipif(not INDUCTOR_CAN_BUILD, reason="inductor wants g++ and Python.h")
def test_code_that_inductor_makes_gives_the_same_bits():
    """The backend that users have; y and what is ours. (It may round the model's own sums less.)"""
    torch._dynamo.reset()
    layer = make_layer()
    compiled = torch.compile(layer, fullgraph=True)
    x, ids, topk_weights, dy = leaves()
    y = compiled(x, ids, topk_weights)
    y.backward(dy)
    testing.assert_same_bits(collected(layer, y, x, topk_weights), functional())


def test_compiled_graph_uses_the_main_grads_that_forward_saw():
    torch._dynamo.reset()
    layer = make_layer()
    for p in layer.parameters():
        p.main_grad = torch.zeros(p.shape)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    x, ids, topk_weights, dy = leaves()
    for n in (1, 2):
        compiled(x, ids, topk_weights).backward(dy)
        assert torch.equal(layer.down.main_grad, n * wide()["ddown"])
    assert all(p.grad is None for p in layer.parameters())


def test_without_gradients_a_compiled_layer_gives_the_same_bits():
    torch._dynamo.reset()
    layer = make_layer()
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    x, ids, topk_weights, _ = leaves()
    with torch.no_grad():
        y = compiled(x, ids, topk_weights)
    testing.assert_same_bits({"y": y}, functional(), ["y"])


def test_a_refusal_of_a_compiled_call_has_the_same_sentence():
    torch._dynamo.reset()
    layer = make_layer()
    compiled = torch.compile(layer, backend="aot_eager")
    x, ids, topk_weights, _ = leaves()
    with pytest.raises(ValueError, match=r"topk_ids: values in \[-1, 6\) wanted, 6 found"):
        compiled(x, torch.full_like(ids, 6), topk_weights)


# -------------------------------------------------------------------------- the usual habits


def test_opaque_outputs_of_ops_repeat_bit_for_bit():
    """Gaps that nobody reads included: torch compares and hashes whole tensors."""
    layer, (x, ids, topk_weights, _) = make_layer(), leaves()
    params = [p.detach() for p in layer.parameters()]
    handle = layer.group.handle
    seen = []
    for byte in (0x00, 0xFF):
        torch.full((1 << 20,), byte, dtype=torch.uint8)  # what the allocator hands out next
        tables = torch.ops.monomoe.schedule(ids, handle, 6, None)
        y, saved = torch.ops.monomoe.forward(
            x.detach(), topk_weights.detach(), *params, tables, handle, None, Config().pack(), None
        )
        seen.append((tables, y, saved))
    for a, b in zip(*seen):
        assert torch.equal(a, b)


def test_parameters_move_and_share_like_those_of_any_module():
    layer = make_layer()
    assert layer.to("cpu") is layer and layer.share_memory() is layer
    assert layer.gate_up.is_shared()
    testing.assert_same_bits(train_step(layer), functional())
    with torch.device("meta"):
        ghost = MoELayer(64, 40, 6, 2, shared=24, score=True)
    ghost.to_empty(device="cpu").load_state_dict(layer.state_dict())
    testing.assert_same_bits(train_step(ghost), functional())


def test_autocast_leaves_the_layer_alone():
    layer, (x, ids, topk_weights, dy) = make_layer(CASE), leaves()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = layer(x, ids, topk_weights)
    y.backward(dy)
    testing.assert_same_bits(collected(layer, y, x, topk_weights), functional())
