"""What a user meets first: the refusal names subject, wanted, given and remedy, and nothing was
written before it."""

import re

import pytest
import torch

from monomoe import Config, Grads, Group, MoELayer, Shape, Weights, backward, explain, forward
from monomoe import schedule, testing
from monomoe.functional import check_tensor, launch_backward, launch_forward, new_saved
from monomoe.testing import Case

CASE = Case(8, 16, 24, 4, 2, shared=8, score=True)
BF16 = torch.bfloat16


class Call:
    """Legal arguments of the three calls; a test replaces one."""

    def __init__(self, ranks: int = 2):
        inputs = testing.make_inputs(CASE)
        self.group = Group.local(ranks)
        self.ids, self.experts, self.split = inputs.topk_ids, 4, None
        self.x, self.topk_weights, self.dy = inputs.x, inputs.topk_weights, inputs.dy
        self.weights = dict(zip(Weights.names(), inputs.weights.tensors()))
        self.sched, self.config, self.limit = None, None, None
        self.accumulate = None

    def schedule(self):
        return schedule(self.ids, self.experts, self.group, tokens_per_rank=self.split)

    def forward(self):
        sched = self.schedule() if self.sched is None else self.sched
        weights = Weights(**self.weights) if isinstance(self.weights, dict) else self.weights
        return forward(self.x, self.topk_weights, weights, sched, self.config, self.limit)

    def backward(self):
        return backward(self.dy, self.forward()[1], accumulate=self.accumulate)


def refused(call, error, sentence):
    """The refusal, word for word, and of the form `subject: wanted, given; remedy`."""
    with pytest.raises(error) as caught:
        call()
    assert type(caught.value) is error
    assert str(caught.value) == sentence
    assert re.fullmatch(r"[^:]+: .+ wanted, .+; .+", sentence)


# ------------------------------------------------------------------------------------ schedule


@pytest.mark.parametrize("ids, error, sentence", [
    (torch.full((8, 2), 4),
     ValueError, "topk_ids: values in [-1, 4) wanted, 4 found at [0, 0]; "
     "fix the router or pass another number of experts; -1 means not routed"),
    (torch.tensor([[0, 1]] * 7 + [[3, -2]]),
     ValueError, "topk_ids: values in [-1, 4) wanted, -2 found at [7, 1]; "
     "fix the router or pass another number of experts; -1 means not routed"),
    (torch.tensor([[2**32 + 1, 0]] * 8),
     ValueError, "topk_ids: values in [-1, 4) wanted, 4294967297 found at [0, 0]; "
     "fix the router or pass another number of experts; -1 means not routed"),
    (torch.tensor([[-(2**31), 0]] * 8, dtype=torch.int32),
     ValueError, "topk_ids: values in [-1, 4) wanted, -2147483648 found at [0, 0]; "
     "fix the router or pass another number of experts; -1 means not routed"),
    (torch.zeros(8, 2),
     TypeError, "topk_ids: int32 or int64 wanted, float32 given; convert it with .to(torch.int32)"),
    (torch.zeros(8, 2, dtype=torch.int16),
     TypeError, "topk_ids: int32 or int64 wanted, int16 given; convert it with .to(torch.int32)"),
    (torch.zeros(8, dtype=torch.int64),
     ValueError, "topk_ids: shape [T, K] wanted, [8] given; one row a token"),
    (torch.zeros(2, 4, 2, dtype=torch.int64),
     ValueError, "topk_ids: shape [T, K] wanted, [2, 4, 2] given; one row a token"),
    (torch.zeros(8, 5, dtype=torch.int64),
     ValueError, "top_k: 1 <= K <= E = 4 wanted, 5 given; "
     "a token can't have more routes than there are experts"),
    (torch.zeros(8, 0, dtype=torch.int64),
     ValueError, "top_k: 1 <= K <= E = 4 wanted, 0 given; "
     "a token can't have more routes than there are experts"),
    ([[0, 1]],
     TypeError, "topk_ids: torch.Tensor wanted, list given; pass torch.as_tensor(...) of it"),
    (torch.zeros(8, 2, dtype=torch.int64, device="meta"),
     TypeError, "topk_ids: a tensor on a CPU or CUDA device wanted, meta given; "
     "move it there with .to(device)"),
    (torch.zeros(1, 1, 1, 1, 2, dtype=torch.int64),
     ValueError, "topk_ids: at most 4 dimensions wanted, 5 given; reshape it"),
])  # fmt: skip
def test_ids_are_refused(ids, error, sentence):
    call = Call()
    call.ids = ids
    refused(call.schedule, error, sentence)


@pytest.mark.parametrize("dtype, aligned", [(torch.int32, 4), (torch.int64, 8)])
def test_misaligned_ids_are_refused(dtype, aligned):
    call = Call()
    memory = torch.zeros(8 * 2 * aligned + aligned, dtype=torch.uint8)
    call.ids = torch.frombuffer(memory.numpy(), dtype=dtype, count=16, offset=2).view(8, 2)
    refused(
        call.schedule,
        ValueError,
        f"topk_ids: elements at {aligned}-byte aligned addresses wanted, "
        "a misaligned first element given; pass .clone()",
    )


@pytest.mark.parametrize("experts, error, sentence", [
    (0, ValueError, "experts: a value in [1, 65536] wanted, 0 given; "
     "pass the number of experts of all ranks"),
    (-3, ValueError, "experts: a value in [1, 65536] wanted, -3 given; "
     "pass the number of experts of all ranks"),
    (4.0, TypeError, "experts: an integer wanted, float given; pass int(...) of it"),
])  # fmt: skip
def test_number_of_experts_is_refused(experts, error, sentence):
    call = Call()
    call.experts = experts
    refused(call.schedule, error, sentence)


@pytest.mark.parametrize("split, error, sentence", [
    ([4, 3], ValueError, "tokens_per_rank: counts that add up to T = 8 wanted, 7 given; "
     "pass the token counts of this call"),
    ([8], ValueError, "tokens_per_rank: 2 counts, one a rank wanted, 1 given; "
     "pass one count for each rank of the group"),
    ([9, -1], ValueError, "tokens_per_rank: a value in [0, 1073741824] wanted, -1 given; "
     "a rank without tokens has 0"),
    ([2**40, 8 - 2**40], ValueError, "tokens_per_rank: a value in [0, 1073741824] wanted, "
     "1099511627776 given; a rank without tokens has 0"),
    (8, TypeError, "tokens_per_rank: a sequence of integers wanted, int given; "
     "pass one count for each rank"),
    ([4.0, 4.0], TypeError, "tokens_per_rank: an integer wanted, float given; "
     "pass int(...) of it"),
])  # fmt: skip
def test_token_counts_are_refused(split, error, sentence):
    call = Call()
    call.split = split
    refused(call.schedule, error, sentence)


@pytest.mark.parametrize("make, error, sentence", [
    (lambda: Group.local(0), ValueError,
     "ranks: a value in [1, 1024] wanted, 0 given; pass the number of ranks"),
    (lambda: Group.local(2.0), TypeError,
     "ranks: an integer wanted, float given; pass int(...) of it"),
    (lambda: Group(timeout_s=0), ValueError,
     "timeout_s: a finite value > 0 wanted, 0.0 given; the default is 600"),
    (lambda: Group(timeout_s=float("inf")), ValueError,
     "timeout_s: a finite value > 0 wanted, inf given; the default is 600"),
    (lambda: Group(timeout_s="1"), TypeError,
     "timeout_s: a number wanted, str given; pass float(...) of it"),
    (lambda: schedule(torch.zeros(1, 1).int(), 1, group=7), TypeError,
     "group: monomoe.Group wanted, int given; pass monomoe.Group() or Group.local(R)"),
])  # fmt: skip
def test_group_is_refused(make, error, sentence):
    refused(make, error, sentence)


# ------------------------------------------------------------------------------------- forward


def misaligned(*shape: int) -> torch.Tensor:
    flat = torch.zeros(torch.Size(shape).numel() + 1, dtype=BF16)
    return flat[1:].view(shape)


ROWS = "rows at 16-byte aligned addresses wanted"


@pytest.mark.parametrize("x, error, sentence", [
    (torch.zeros(8, 16), TypeError,
     "x: bfloat16 wanted, float32 given; convert it with .to(torch.bfloat16)"),
    (torch.zeros(8, 16, dtype=torch.float16), TypeError,
     "x: bfloat16 wanted, float16 given; convert it with .to(torch.bfloat16)"),
    (torch.zeros(2, 4, 16, dtype=BF16), ValueError,
     "x: shape [T, H] wanted, [2, 4, 16] given; flatten it to two dimensions"),
    (torch.zeros(16, dtype=BF16), ValueError,
     "x: shape [T, H] wanted, [16] given; flatten it to two dimensions"),
    (torch.zeros(8, 20, dtype=BF16), ValueError,
     "hidden width H: a multiple of 8 in [8, 1048576] wanted, 20 given; "
     "pad the weights, so that rows are 16 bytes"),
    (torch.zeros(7, 16, dtype=BF16), ValueError,
     "tokens_per_rank: counts that add up to T = 7 wanted, 8 given; "
     "pass the token counts of this call"),
    (torch.zeros(8, 32, dtype=BF16)[:, ::2], ValueError,
     "x: a contiguous last dimension wanted, strides [32, 2] given; pass .contiguous()"),
    (torch.zeros(16, 8, dtype=BF16).T, ValueError,
     "x: a contiguous last dimension wanted, strides [1, 8] given; pass .contiguous()"),
    (torch.zeros(8, 20, dtype=BF16)[:, :16], ValueError,
     f"x: {ROWS}, strides [20, 1] given; "
     "pass .contiguous() or pad the rows to a multiple of 8 elements"),
    (misaligned(8, 16), ValueError,
     f"x: {ROWS}, a misaligned first element given; "
     "pass .clone() or a view that starts at a multiple of 8 elements"),
    (torch.zeros(16, dtype=BF16).expand(8, 16), ValueError,
     "x: rows that do not overlap wanted, strides [0, 1] given; pass .contiguous()"),
    (None, TypeError, "x: torch.Tensor wanted, NoneType given; pass torch.as_tensor(...) of it"),
    (torch.zeros(8, 16, dtype=BF16).to_sparse(), TypeError,
     "x: a strided tensor wanted, torch.sparse_coo given; pass x.to_dense()"),
])  # fmt: skip
def test_x_is_refused(x, error, sentence):
    call = Call()
    call.sched = call.schedule()
    call.x = x
    refused(call.forward, error, sentence)


@pytest.mark.parametrize("topk_weights, error, sentence", [
    (torch.zeros(8, 2, dtype=BF16), TypeError,
     "topk_weights: float32 wanted, bfloat16 given; convert it with .to(torch.float32)"),
    (torch.zeros(8, 3), ValueError,
     "topk_weights: shape [T, K] = [8, 2] wanted, [8, 3] given; "
     "check the tensor and its dimensions"),
    (torch.zeros(7, 2), ValueError,
     "topk_weights: shape [T, K] = [8, 2] wanted, [7, 2] given; "
     "check the tensor and its dimensions"),
    (0.5, TypeError,
     "topk_weights: torch.Tensor wanted, float given; pass torch.as_tensor(...) of it"),
])  # fmt: skip
def test_router_weights_are_refused(topk_weights, error, sentence):
    call = Call()
    call.topk_weights = topk_weights
    refused(call.forward, error, sentence)


def zeros(*shape: int, dtype=BF16) -> torch.Tensor:
    return torch.zeros(shape, dtype=dtype)


CHECK = "check the tensor and its dimensions"


@pytest.mark.parametrize("name, tensor, error, sentence", [
    ("gate", zeros(4, 24), ValueError,
     "weights.gate: shape [E, I, H] wanted, [4, 24] given; "
     "stack the experts along the first dimension"),
    ("gate", zeros(3, 24, 16), ValueError,
     f"weights.gate: shape [E, I, H] = [4, 24, 16] wanted, [3, 24, 16] given; {CHECK}"),
    ("gate", zeros(4, 24, 24), ValueError,
     f"weights.gate: shape [E, I, H] = [4, 24, 16] wanted, [4, 24, 24] given; {CHECK}"),
    ("gate", zeros(4, 20, 16), ValueError,
     "intermediate width I: a multiple of 8 in [8, 1048576] wanted, 20 given; "
     "pad the weights, so that rows are 16 bytes"),
    ("gate", None, ValueError, "weights.gate: a tensor wanted, nothing given; pass it"),
    ("up", zeros(4, 16, 24), ValueError,
     f"weights.up: shape [E, I, H] = [4, 24, 16] wanted, [4, 16, 24] given; {CHECK}"),
    ("up", zeros(4, 24, 16, dtype=torch.float32), TypeError,
     "weights.up: bfloat16 wanted, float32 given; convert it with .to(torch.bfloat16)"),
    ("up", None, ValueError, "weights.up: a tensor wanted, nothing given; pass it"),
    ("down", zeros(4, 24, 16), ValueError,
     f"weights.down: shape [E, H, I] = [4, 16, 24] wanted, [4, 24, 16] given; {CHECK}"),
    ("down", zeros(4, 24, 16).transpose(1, 2), ValueError,
     "weights.down: a contiguous last dimension wanted, strides [384, 1, 16] given; "
     "pass .contiguous()"),
    ("down", misaligned(4, 16, 24), ValueError,
     f"weights.down: {ROWS}, a misaligned first element given; "
     "pass .clone() or a view that starts at a multiple of 8 elements"),
    ("shared_gate", zeros(12, 16), ValueError,
     "shared width Is: a multiple of 8 in [8, 1048576] wanted, 12 given; "
     "pad the weights, so that rows are 16 bytes"),
    ("shared_gate", zeros(8), ValueError,
     "weights.shared_gate: shape [Is, H] wanted, [8] given; pass a matrix"),
    ("shared_gate", None, ValueError,
     "weights.shared_gate: all shared tensors or none wanted, nothing given; "
     "pass shared_gate, shared_up and shared_down together"),
    ("shared_up", None, ValueError, "weights.shared_up: a tensor wanted, nothing given; pass it"),
    ("shared_down", zeros(8, 16), ValueError,
     f"weights.shared_down: shape [H, Is] = [16, 8] wanted, [8, 16] given; {CHECK}"),
    ("shared_score", zeros(1, 16), ValueError,
     f"weights.shared_score: shape [H] = [16] wanted, [1, 16] given; {CHECK}"),
    ("shared_score", [0.0] * 16, TypeError,
     "weights.shared_score: torch.Tensor wanted, list given; pass torch.as_tensor(...) of it"),
])  # fmt: skip
def test_weights_are_refused(name, tensor, error, sentence):
    call = Call()
    call.weights[name] = tensor
    refused(call.forward, error, sentence)


@pytest.mark.parametrize("options, error, sentence", [
    ({"fwd_comm_sms": -1}, ValueError, "fwd_comm_sms: a value in [0, 65536] wanted, -1 given; "
     "0 leaves all moving to compute workers"),
    ({"bwd_comm_sms": -1}, ValueError, "bwd_comm_sms: a value in [0, 65536] wanted, -1 given; "
     "0 leaves all moving to compute workers"),
    ({"workers": 0}, ValueError, "workers: a value in [1, 65536] wanted, 0 given; "
     "None lets the policy choose"),
    ({"minibatch_rows": 127}, ValueError, "minibatch_rows: a value in [128, 2147483648] wanted, "
     "127 given; None lets the policy choose"),
    ({"ring_rows": 255}, ValueError, "ring_rows: a value in [256, 2147483648] wanted, 255 given; "
     "None lets the policy choose"),
    ({"save_rows": -1}, ValueError, "save_rows: a value in [0, 2147483648] wanted, -1 given; "
     "rows that do not fit are computed again"),
    ({"save": "some"}, ValueError, "config.save: one of 'all', 'preact', 'none' wanted, 'some' "
     "given; pass one of them"),
    ({"weight_grad": "fp16"}, ValueError, "config.weight_grad: one of 'bf16', 'fp32' wanted, "
     "'fp16' given; pass one of them"),
    ({"workers": 1.5}, TypeError,
     "config.workers: an integer wanted, float given; pass int(...) of it"),
])  # fmt: skip
def test_config_is_refused(options, error, sentence):
    call = Call()
    call.config = Config(**options)
    refused(call.forward, error, sentence)


@pytest.mark.parametrize("limit, error, sentence", [
    (0.0, ValueError, "swiglu_limit: a finite value > 0 wanted, 0.0 given; pass None for no clamp"),
    (-1, ValueError, "swiglu_limit: a finite value > 0 wanted, -1.0 given; pass None for no clamp"),
    (float("nan"), ValueError,
     "swiglu_limit: a finite value > 0 wanted, nan given; pass None for no clamp"),
    ("7", TypeError, "swiglu_limit: a number wanted, str given; pass float(...) of it"),
])  # fmt: skip
def test_limit_is_refused(limit, error, sentence):
    call = Call()
    call.limit = limit
    refused(call.forward, error, sentence)


@pytest.mark.parametrize("attribute, value, sentence", [
    ("weights", (1, 2, 3), "weights: monomoe.Weights wanted, tuple given; "
     "pass monomoe.Weights(gate, up, down)"),
    ("sched", torch.zeros(3), "sched: monomoe.Schedule wanted, Tensor given; "
     "pass the result of monomoe.schedule"),
    ("config", {"workers": 1}, "config: monomoe.Config wanted, dict given; "
     "pass monomoe.Config(...)"),
])  # fmt: skip
def test_values_of_another_kind_are_refused(attribute, value, sentence):
    call = Call()
    call.sched = call.schedule()
    setattr(call, attribute, value)
    refused(call.forward, TypeError, sentence)


def test_schedule_of_other_sizes_is_refused():
    call = Call()
    call.sched = schedule(call.ids, 5, call.group)
    refused(
        call.forward,
        ValueError,
        f"weights.gate: shape [E, I, H] = [5, 24, 16] wanted, [4, 24, 16] given; {CHECK}",
    )


# ------------------------------------------------------------------------------------ backward


@pytest.mark.parametrize("dy, error, sentence", [
    (torch.zeros(8, 16), TypeError,
     "dy: bfloat16 wanted, float32 given; convert it with .to(torch.bfloat16)"),
    (zeros(8, 24), ValueError, f"dy: shape [T, H] = [8, 16] wanted, [8, 24] given; {CHECK}"),
    (zeros(7, 16), ValueError, f"dy: shape [T, H] = [8, 16] wanted, [7, 16] given; {CHECK}"),
    (torch.ones((), dtype=BF16).expand(8, 16), ValueError,
     "dy: a contiguous last dimension wanted, strides [0, 0] given; pass .contiguous()"),
    (zeros(16).expand(8, 16), ValueError,
     "dy: rows that do not overlap wanted, strides [0, 1] given; pass .contiguous()"),
    (None, TypeError, "dy: torch.Tensor wanted, NoneType given; pass torch.as_tensor(...) of it"),
])  # fmt: skip
def test_dy_is_refused(dy, error, sentence):
    call = Call()
    call.dy = dy
    refused(call.backward, error, sentence)


@pytest.mark.parametrize("name, target, error, sentence", [
    ("down", zeros(4, 16, 24), TypeError,
     "accumulate.down: float32 wanted, bfloat16 given; convert it with .to(torch.float32)"),
    ("down", torch.zeros(4, 24, 16), ValueError,
     f"accumulate.down: shape [E, H, I] = [4, 16, 24] wanted, [4, 24, 16] given; {CHECK}"),
    ("gate", torch.zeros(4, 24, 16).transpose(1, 2).contiguous().transpose(1, 2), ValueError,
     "accumulate.gate: a contiguous last dimension wanted, strides [384, 1, 24] given; "
     "pass .contiguous()"),
    ("gate", None, ValueError,
     "accumulate.up: gate and up together or neither wanted, one of them given; "
     "they come from one product"),
    ("gate", torch.zeros(16 * 27).as_strided((4, 24, 16), (16, 16, 1)), ValueError,
     "accumulate.gate: elements that do not overlap wanted, strides [16, 16, 1] given; "
     "pass a tensor of its own"),
    ("down", torch.zeros(16, 24).expand(4, 16, 24), ValueError,
     "accumulate.down: rows that do not overlap wanted, strides [0, 24, 1] given; "
     "pass .contiguous()"),
    ("shared_score", [1.0], TypeError, "accumulate.shared_score: torch.Tensor wanted, list given; "
     "pass torch.as_tensor(...) of it"),
])  # fmt: skip
def test_main_grads_are_refused(name, target, error, sentence):
    call = Call()
    shapes = {n: w.shape for n, w in call.weights.items()}
    targets = {n: torch.zeros(shape) for n, shape in shapes.items()}
    call.accumulate = Weights(**{**targets, name: target})
    refused(call.backward, error, sentence)


def test_main_grads_that_overlap_in_part_and_are_strided_are_refused():
    """Rows of one reach into rows of the other; neither is dense."""
    call = Call()
    memory = torch.zeros(4 * 40 * 64 + 64)
    strides = (40 * 64, 64, 1)
    targets = {n: torch.zeros(w.shape) for n, w in call.weights.items()}
    targets["gate"] = memory.as_strided((4, 24, 16), strides)
    targets["down"] = memory.as_strided((4, 16, 24), strides, 12)
    call.accumulate = Weights(**targets)
    refused(
        call.backward,
        ValueError,
        "accumulate.gate: memory of its own wanted, the memory of accumulate.down given; "
        "pass a new tensor",
    )
    targets["down"] = memory.as_strided((4, 16, 24), strides, 16)  # beside each other: legal
    call.accumulate = Weights(**targets)
    call.backward()


def test_one_main_grad_for_two_weights_is_refused():
    call = Call()
    targets = {n: torch.zeros(w.shape) for n, w in call.weights.items()}
    call.accumulate = Weights(**{**targets, "up": targets["gate"]})
    refused(
        call.backward,
        ValueError,
        "accumulate.gate: memory of its own wanted, the memory of accumulate.up given; "
        "pass a new tensor",
    )


def test_output_that_is_an_input_is_refused():
    call = Call()
    sched = call.schedule()
    _, ctx = call.forward()
    route = (sched.tables, sched.experts, sched.top_k, sched.tokens_per_rank)
    config, x = Config().pack(), call.x.clone()
    saved = torch.zeros_like(ctx.saved)
    refused(
        lambda: launch_forward(call.group.id, call.x, call.topk_weights, ctx.weights, route, config,
                               None, call.x, saved),
        ValueError, "y: memory of its own wanted, the memory of x given; pass a new tensor",
    )  # fmt: skip
    grads = Grads(call.dy, None, Weights(None, None, None))
    refused(
        lambda: launch_backward(call.group.id, call.dy, ctx.x, ctx.topk_weights, ctx.weights, route,
                                config, None, ctx.saved, grads, False),
        ValueError, "dx: memory of its own wanted, the memory of dy given; pass a new tensor",
    )  # fmt: skip
    assert torch.equal(call.x, x) and (saved == 0).all()


def test_overlapping_router_gradients_are_refused():
    call = Call()
    sched = call.schedule()
    _, ctx = call.forward()
    route = (sched.tables, sched.experts, sched.top_k, sched.tokens_per_rank)
    grads = Grads(None, torch.zeros(2).expand(8, 2), Weights(None, None, None))
    refused(
        lambda: launch_backward(call.group.id, call.dy, ctx.x, ctx.topk_weights, ctx.weights, route,
                                Config().pack(), None, ctx.saved, grads, False),
        ValueError, "dtopk_weights: elements that do not overlap wanted, strides [0, 1] given; "
        "pass a tensor of its own",
    )  # fmt: skip


def test_main_grad_of_a_weight_that_does_not_exist_is_refused():
    call = Call()
    call.weights["shared_score"] = None
    targets = {n: torch.zeros(w.shape) for n, w in call.weights.items() if w is not None}
    call.accumulate = Weights(**targets, shared_score=torch.zeros(16))
    refused(call.backward, ValueError, "accumulate.shared_score: nothing wanted, a tensor given; "
            "the layer has no such weight")  # fmt: skip


def test_backward_wants_a_context():
    refused(
        lambda: backward(zeros(8, 16), None),
        TypeError,
        "ctx: monomoe.Context wanted, NoneType given; pass the second result of monomoe.forward",
    )


# --------------------------------------------------------------------------------------- group

CLOSED = "group: an open group wanted, a closed one given; make a new group and a new schedule"


def test_calls_on_a_closed_group_are_refused():
    call = Call()
    sched = call.schedule()
    _, ctx = call.forward()
    call.group.close()
    call.group.close()  # twice is fine
    assert call.group.closed and "closed" in repr(call.group)
    refused(call.schedule, RuntimeError, CLOSED)
    call.sched = sched
    refused(call.forward, RuntimeError, CLOSED)
    refused(lambda: backward(call.dy, ctx), RuntimeError, CLOSED)
    refused(call.group.check, RuntimeError, CLOSED)


def test_group_closes_with_its_block_and_with_its_last_reference():
    with Group() as group:
        assert not group.closed
        group.check()
    assert group.closed
    other = Group.local(3)
    number = other.id
    from monomoe.functional import native

    assert native().group_ranks(number) == 3
    del other
    refused(lambda: native().group_ranks(number), RuntimeError, CLOSED)


def test_ids_of_groups_are_never_used_again():
    seen = set()
    for _ in range(5):
        with Group() as group:
            assert group.id not in seen and int(group.handle) == group.id
            seen.add(group.id)


def test_unknown_backend_is_refused(monkeypatch):
    call = Call()
    monkeypatch.setenv("MONOMOE_BACKEND", "sm42")
    refused(call.forward, RuntimeError, "MONOMOE_BACKEND: one of {cpu} wanted, sm42 given; "
            "unset it or run `python -m monomoe doctor`")  # fmt: skip


# ------------------------------------------------------------------------ layer, explain, memory


def test_layer_refuses_another_top_k():
    layer = MoELayer(16, 24, 4, 2)
    refused(lambda: layer(zeros(8, 16), torch.zeros(8, 3).long(), torch.zeros(8, 3)), ValueError,
            "topk_ids: [T, 2] wanted, [8, 3] given; pass the router's 2 choices a token or make "
            "the layer with top_k=3")  # fmt: skip


def test_layer_refuses_a_score_without_a_shared_expert():
    refused(
        lambda: MoELayer(16, 24, 4, 2, score=True),
        ValueError,
        "score: a shared expert wanted, shared=0 given; pass shared=Is or score=False",
    )


KEEP = "keep fp32 copies in the optimizer, or give the parameters an fp32 main_grad"


@pytest.mark.parametrize("convert", [
    lambda m: m.to(torch.float16), lambda m: m.half(), lambda m: m.to("cpu", torch.float16),
    lambda m: torch.nn.Sequential(m).type(torch.float16),
], ids=["to", "half", "to_device", "inside_a_model"])  # fmt: skip
def test_converting_a_layer_is_refused_before_it_is_done(convert):
    layer = MoELayer(16, 24, 4, 2, shared=8)
    before = [p.clone() for p in layer.parameters()]
    refused(lambda: convert(layer), TypeError,
            f"MoELayer.to: torch.bfloat16 wanted, torch.float16 given; {KEEP}")  # fmt: skip
    for p, old in zip(layer.parameters(), before):
        assert p.dtype == BF16 and torch.equal(p, old)
    assert layer.to("cpu").bfloat16().to(BF16) is layer


def test_a_layer_whose_parameters_were_replaced_is_refused():
    layer = MoELayer(16, 24, 4, 2)
    layer.gate_up = torch.nn.Parameter(layer.gate_up.float())
    refused(
        lambda: layer(zeros(8, 16), torch.zeros(8, 2).long(), torch.zeros(8, 2)),
        TypeError,
        "weights.gate: bfloat16 wanted, float32 given; convert it with .to(torch.bfloat16)",
    )


LARGE = "an integer of 64 bits wanted, 9223372036854775808 given; pass a smaller one"


@pytest.mark.parametrize("subject, make", [
    ("experts", lambda n: schedule(torch.zeros(1, 1).int(), n)),
    ("tokens_per_rank", lambda n: schedule(torch.zeros(1, 1).int(), 1, tokens_per_rank=[n])),
    ("tokens_per_rank", lambda n: MoELayer(8, 8, 1, 1)(
        zeros(1, 8), torch.zeros(1, 1).int(), torch.zeros(1, 1), [n])),
    ("ranks", lambda n: Group.local(n)),
    ("config.ring_rows", lambda n: Config(ring_rows=n).pack()),
    ("shape.hidden", lambda n: MoELayer(n, 8, 1, 1)),
])  # fmt: skip
def test_integers_that_do_not_fit_64_bits_are_refused(subject, make):
    refused(lambda: make(2**63), ValueError, f"{subject}: {LARGE}")
    with pytest.raises(ValueError, match=f"{subject}: an integer of 64 bits wanted, -9223"):
        make(-(2**63))  # bind.cpp's word for "not given"


def test_huge_numbers_are_infinite():
    call = Call()
    call.limit = 10**400
    sentence = "swiglu_limit: a finite value > 0 wanted, inf given; pass None for no clamp"
    refused(call.forward, ValueError, sentence)


@pytest.mark.parametrize("options, error, sentence", [
    ({"group": 7}, TypeError,
     "group: monomoe.Group wanted, int given; pass monomoe.Group() or Group.local(R)"),
    ({"config": {}}, TypeError,
     "config: monomoe.Config wanted, dict given; pass monomoe.Config(...)"),
    ({"swiglu_limit": "7"}, TypeError,
     "swiglu_limit: a number wanted, str given; pass float(...) of it"),
])  # fmt: skip
def test_layer_options_of_another_kind_are_refused(options, error, sentence):
    refused(lambda: MoELayer(16, 24, 4, 2, **options), error, sentence)


@pytest.mark.parametrize("shape, error, sentence", [
    (Shape(8, 20, 24, 4, 2), ValueError, "hidden width H: a multiple of 8 in [8, 1048576] wanted, "
     "20 given; pad the weights, so that rows are 16 bytes"),
    (Shape(-1, 16, 24, 4, 2), ValueError,
     "tokens: a value in [0, 1073741824] wanted, -1 given; split the batch"),
    (Shape(8, 16, 24, 4, 5), ValueError, "top_k: 1 <= K <= E = 4 wanted, 5 given; "
     "a token can't have more routes than there are experts"),
    (Shape(8, 16, 24, 4, 2.5), TypeError,
     "shape.top_k: an integer wanted, float given; pass int(...) of it"),
    ((8, 16), TypeError, "shape: monomoe.Shape wanted, tuple given; pass monomoe.Shape(...)"),
])  # fmt: skip
def test_explain_refuses_illegal_shapes(shape, error, sentence):
    refused(lambda: explain(shape), error, sentence)


@pytest.mark.parametrize("broken", ["x", "topk_weights", "weights", "limit", "config"])
def test_forward_writes_nothing_before_a_refusal(broken):
    call = Call()
    sched = call.schedule()
    tables = sched.tables.clone()
    route = (sched.tables, sched.experts, sched.top_k, sched.tokens_per_rank)
    weights, config, limit = Weights(**call.weights), Config().pack(), None
    y, saved = torch.full((8, 16), 7.0).to(BF16), None
    saved = new_saved(call.group.id, 2, call.x, call.topk_weights, weights, config).fill_(7)
    if broken == "x":
        call.x = call.x.float()
    elif broken == "topk_weights":
        call.topk_weights = call.topk_weights.double()
    elif broken == "weights":
        weights = Weights(**{**call.weights, "shared_score": zeros(24)})
    elif broken == "limit":
        limit = -1.0
    else:
        config = Config(ring_rows=1).pack()
    with pytest.raises((ValueError, TypeError)):
        launch_forward(call.group.id, call.x, call.topk_weights, weights, route, config, limit, y,
                       saved)  # fmt: skip
    assert (y == 7).all() and (saved == 7).all() and torch.equal(sched.tables, tables)


@pytest.mark.parametrize("broken", ["dy", "down", "shared_score", "saved"])
def test_backward_writes_nothing_before_a_refusal(broken):
    call = Call()
    _, ctx = call.forward()
    sched = ctx.schedule
    route = (sched.tables, sched.experts, sched.top_k, sched.tokens_per_rank)
    main = ctx.weights.map(lambda w: torch.full(w.shape, 7.0))
    grads = Grads(torch.full((8, 16), 7.0).to(BF16), torch.full((8, 2), 7.0), main)
    dy, saved, given = call.dy, ctx.saved, grads
    if broken == "dy":
        dy = dy[:7]
    elif broken == "saved":
        saved = saved[:8]
    else:
        tensors = dict(zip(Weights.names(), main.tensors()))
        tensors[broken] = tensors[broken].double()
        given = Grads(grads.x, grads.topk_weights, Weights(**tensors))
    with pytest.raises((ValueError, TypeError)):
        launch_backward(call.group.id, dy, ctx.x, ctx.topk_weights, ctx.weights, route,
                        Config().pack(), None, saved, given, True)  # fmt: skip
    for tensor in (grads.x, grads.topk_weights, *main.tensors()):
        assert (tensor == 7).all()


def test_schedule_writes_nothing_before_a_refusal():
    from monomoe.functional import native, new_tables

    call = Call()
    tables = new_tables(call.group.id, call.ids, 4).fill_(7)
    call.ids[7, 1] = 4
    with pytest.raises(ValueError):
        native().schedule(call.group.id, call.ids, tables, 4, 2, [4, 4])
    assert (tables == 7).all()


def test_a_refused_call_leaves_the_group_usable():
    call = Call()
    wanted = call.forward()[0]
    call.x = call.x.float()
    with pytest.raises(TypeError):
        call.forward()
    call.x = call.x.bfloat16()
    call.group.check()
    assert torch.equal(call.forward()[0], wanted)


@pytest.mark.parametrize(
    "arguments, kind, text",
    [
        ((12, 24, 4, 2), ValueError, "hidden width H: a multiple of 8"),
        ((16, -64, 4, 2), ValueError, "intermediate width I: a multiple of 8"),
        ((16, 24, 0, 2), ValueError, "experts: a value in [1, 65536] wanted, 0 given"),
        ((16, 24, 4, 5), ValueError, "top_k: 1 <= K <= E = 4 wanted, 5 given"),
        ((16, 24, 4, 2, 12), ValueError, "shared width Is: a multiple of 8"),
    ],
)
def test_layer_that_no_call_could_use_is_refused_when_made(arguments, kind, text):
    with pytest.raises(kind) as info:
        MoELayer(*arguments)
    assert text in str(info.value)


def test_layer_of_another_dtype_is_refused_when_made():
    with pytest.raises(TypeError, match="dtype: torch.bfloat16 wanted, torch.float32 given"):
        MoELayer(16, 24, 4, 2, dtype=torch.float32)


def test_layer_names_the_input_that_does_not_fit():
    layer = MoELayer(16, 24, 4, 2)
    x, ids, weights = torch.zeros(8, 16).bfloat16(), torch.zeros(8, 2).long(), torch.zeros(8, 2)
    with pytest.raises(ValueError, match=r"x: \[T, 16\] wanted, \[8, 24\] given"):
        layer(torch.zeros(8, 24).bfloat16(), ids, weights)
    with pytest.raises(ValueError, match=r"topk_ids: \[8, 2\] wanted, \[5, 2\] given"):
        layer(x, ids[:5], weights)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ["nested", "quantized"])
def test_tensors_of_other_kinds_are_refused(kind):
    layer = MoELayer(16, 24, 4, 2)
    if kind == "nested":
        x = torch.nested.nested_tensor([zeros(8, 16)])
    elif hasattr(torch, "quantize_per_tensor"):  # about to leave torch
        x = torch.quantize_per_tensor(torch.zeros(8, 16), 1.0, 0, torch.qint8)
    else:
        return
    refused(lambda: layer(x, torch.zeros(8, 2).long(), torch.zeros(8, 2)), TypeError,
            f"x: a tensor of plain values wanted, a {kind} one given; "
            "pass its padded or dequantized tensor")  # fmt: skip


def test_lazily_negated_views_are_refused_by_name():
    weights = torch.complex(torch.zeros(4, 2), torch.ones(4, 2)).conj().imag
    assert weights.is_neg()
    with pytest.raises(ValueError, match="topk_weights: values in memory wanted"):
        check_tensor("topk_weights", weights)
