"""docs/errors.md against the library: each message of the table is provoked here, word for word and
with its type, unless its row names a C++ or a device test. (That the table has all messages of the
sources is tools/check_errors_doc.py's part.)"""

import io
import math
import pathlib
import re
import sys

import pytest
import torch

from monomoe import Config, Grads, Group, MoELayer, Schedule, Shape, Weights, backward, describe
from monomoe import explain, forward, functional, schedule, testing
from monomoe.functional import launch_backward, launch_forward, native, new_saved
from test_errors import BF16, Call, misaligned, zeros

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tools"))
import check_errors_doc  # noqa: E402

HERE = "test_error_table.py"


def spoiled(method: str, **attributes):
    """A legal call with other arguments."""

    def provoke():
        call = Call()
        if method != "schedule" and "sched" not in attributes:
            call.sched = call.schedule()
        for name, value in attributes.items():
            setattr(call, name, value)
        getattr(call, method)()

    return provoke


def weight(name, tensor):
    def provoke():
        call = Call()
        call.weights[name] = tensor
        call.forward()

    return provoke


def main_grad(**changed):
    def provoke():
        call = Call()
        targets = {n: torch.zeros(w.shape) for n, w in call.weights.items()}
        call.accumulate = Weights(**{**targets, **changed})
        call.backward()

    return provoke


def route_of(call, **changed):
    sched = call.schedule()
    fields = {"tables": sched.tables, "experts": 4, "top_k": 2, "split": (4, 4), **changed}
    return tuple(fields.values())


def low_level(saved=None, grads=None, **changed):
    """launch_forward, or launch_backward with `grads`, whose arguments are the caller's."""
    call = Call()
    weights, config = Weights(**call.weights), Config().pack()
    own = new_saved(call.group.id, 2, call.x, call.topk_weights, weights, config)
    saved = own if saved is None else saved(own)
    route = route_of(call, **changed)
    if grads is None:
        y = torch.empty_like(call.x)
        launch_forward(call.group.id, call.x, call.topk_weights, weights, route, config, None, y,
                       saved)  # fmt: skip
    else:
        launch_backward(call.group.id, call.dy, call.x, call.topk_weights, weights, route, config,
                        None, saved, grads, False)  # fmt: skip


def with_group(call):
    """A call of the compiled library with the id of an open group of two ranks."""

    def provoke():
        with Group.local(2) as group:
            call(group.id)

    return provoke


def foreign_schedule():
    call = Call()
    call.sched = schedule(call.ids, 4, call.group, tokens_per_rank=[8, 0])
    call.sched = Schedule(call.ids, call.sched.tables, 4, 2, (4, 4), call.group)
    call.forward()


def other_group():
    call = Call()
    call.sched = schedule(call.ids, 4, call.group)
    with Group.local(3) as three:
        call.sched = Schedule(call.ids, call.sched.tables, 4, 2, (3, 3, 2), three)
        call.forward()


def closed():
    call = Call()
    call.group.close()
    call.schedule()


def absent(tokens=64, backwards=False):
    case = testing.Case(tokens, 16, 24, 4, 2)
    inputs = testing.make_inputs(case)
    with Group.local(2, timeout_s=0.2) as group:
        sched = schedule(inputs.topk_ids, 4, group)
        if backwards:
            _, ctx = forward(inputs.x, inputs.topk_weights, inputs.weights, sched)
        testing.never_start(group, 1)
        if backwards:
            backward(inputs.dy, ctx)
        forward(inputs.x, inputs.topk_weights, inputs.weights, sched)


def layer_call(x=None, ids=None, weights=None):
    layer = MoELayer(16, 24, 4, 2)
    given = (zeros(8, 16), torch.zeros(8, 2).long(), torch.zeros(8, 2))
    layer(*(own if other is None else other for own, other in zip(given, (x, ids, weights))))


def layer_main_grad():
    layer = MoELayer(16, 24, 4, 2)
    layer.down.main_grad = torch.zeros(3)
    y = layer(zeros(8, 16), torch.zeros(8, 2).long(), torch.zeros(8, 2))
    y.sum().backward()


def second_derivative():
    layer = MoELayer(16, 24, 4, 2)
    x = zeros(8, 16).requires_grad_()
    y = layer(x, torch.zeros(8, 2).long(), torch.zeros(8, 2))
    (dx,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    dx.sum().backward()


def backend(monkeypatch):
    monkeypatch.setenv("MONOMOE_BACKEND", "sm42")
    Call().forward()


def no_library(monkeypatch):
    monkeypatch.setattr(functional, "__file__", "/nowhere/functional.py")
    functional.native.__wrapped__()


def negated():
    return torch.complex(torch.zeros(8, 2), torch.ones(8, 2)).conj().imag


def ids(*values, dtype=torch.int64):
    return torch.tensor([values] * 8, dtype=dtype)


STRIDED = torch.zeros(4, 24, 16).transpose(1, 2).contiguous().transpose(1, 2)
GATE = torch.zeros(4, 24, 16)
NOTHING = Weights(None, None, None)


def no_such_weight():
    call = Call()
    call.weights["shared_score"] = None
    targets = {n: torch.zeros(w.shape) for n, w in call.weights.items() if w is not None}
    call.accumulate = Weights(**targets, shared_score=torch.zeros(16))
    call.backward()


PROVOCATIONS = [
    # arguments of any call
    spoiled("forward", x=None),
    spoiled("forward", x=zeros(8, 16).to_sparse()),
    lambda: spoiled("forward", x=torch.nested.nested_tensor([zeros(8, 16)]))(),
    spoiled("forward", x=torch.zeros(8, 16, dtype=BF16, device="meta")),
    spoiled("forward", topk_weights=negated()),
    spoiled("forward", x=torch.zeros(1, 1, 1, 8, 16, dtype=BF16)),
    spoiled("schedule", experts=4.0),
    spoiled("schedule", experts=2**63),
    spoiled("forward", limit="7"),
    spoiled("forward", config=Config(save="some")),
    spoiled("forward", config={}),
    with_group(lambda g: native().schedule(g)),
    with_group(lambda g: native().schedule(g, torch.zeros(1, 1, 1, 1, 1), None, 1, 1, [1])),
    # schedule
    spoiled("schedule", ids=torch.zeros(8, 2)),
    spoiled("schedule", ids=torch.zeros(8, dtype=torch.int64)),
    spoiled("schedule", ids=ids(0, 4)),
    spoiled("schedule", ids=torch.frombuffer(bytearray(200), dtype=torch.int64, count=16,
                                             offset=4).view(8, 2)),
    spoiled("schedule", ids=torch.zeros(8, 5).long()),
    spoiled("schedule", ids=torch.zeros(1, 1, dtype=torch.int32).expand(2**30, 2)),
    spoiled("schedule", experts=0),
    spoiled("schedule", split=8),
    spoiled("schedule", split=[4, 3]),
    spoiled("schedule", split=[8]),
    spoiled("schedule", split=[9, -1]),
    with_group(lambda g: native().schedule(g, ids(0, 1), torch.zeros(3).int(), 4, 2, [4, 4])),
    with_group(lambda g: native().schedule(g, ids(0, 1), torch.zeros(3).int(), 4, 3, [4, 4])),
    lambda: native().split_tokens(-1, 2),
    # forward
    spoiled("forward", x=torch.zeros(8, 16)),
    spoiled("forward", x=zeros(2, 4, 16)),
    spoiled("forward", x=zeros(8, 20)),
    spoiled("forward", x=zeros(16, 8).T),
    spoiled("forward", x=misaligned(8, 16)),
    spoiled("forward", x=zeros(8, 20)[:, :16]),
    spoiled("forward", x=zeros(16).expand(8, 16)),
    spoiled("forward", limit=math.nan),
    weight("gate", zeros(4, 24)),
    weight("gate", None),
    weight("up", zeros(4, 16, 24)),
    weight("shared_gate", zeros(8)),
    weight("shared_gate", None),
    *(spoiled("forward", config=Config(**{name: -1}))
      for name in ("fwd_comm_sms", "bwd_comm_sms", "workers", "minibatch_rows", "ring_rows",
                   "save_rows")),
    foreign_schedule,
    other_group,
    lambda: low_level(saved=lambda s: s[:8]),
    lambda: low_level(saved=lambda s: torch.zeros(1 << 20)),
    with_group(lambda g: native().saved_bytes(g, [8, 16, 24, 4, 2, 0, 3], Config().pack())),
    # backward
    lambda: low_level(grads=Grads(None, torch.zeros(2).expand(8, 2), NOTHING)),
    main_grad(gate=None),
    main_grad(shared_up=None),
    main_grad(up=STRIDED),
    main_grad(gate=GATE, up=GATE),
    no_such_weight,
    lambda: low_level(grads=Grads(zeros(8, 16), None, Weights(torch.zeros(4, 24, 16).bfloat16(),
                                                             None, None))),
    # groups and faults
    lambda: Group.local(0),
    lambda: Group(timeout_s=0),
    closed,
    absent,
    lambda: absent(0, backwards=True),
    backend,
    no_library,
    # the layer
    lambda: MoELayer(16, 24, 4, 2).half(),
    lambda: MoELayer(16, 24, 4, 2, score=True),
    lambda: layer_call(x=zeros(8, 24)),
    lambda: layer_call(ids=torch.zeros(5, 2).long()),
    lambda: layer_call(ids=torch.zeros(8, 3).long()),
    lambda: layer_call(weights=torch.zeros(8)),
    layer_main_grad,
    second_derivative,
    lambda: torch.save(MoELayer(16, 24, 4, 2), io.BytesIO()),
    lambda: explain(Shape(8, 16, 24, 4, 2, ranks=0)),
    lambda: describe(ids(0, 1), Shape(8, 16, 24, 4, 2), rank=1),
    lambda: describe(ids(0, 1), Shape(8, 16, 24, 4, 2), tickets=-1),
    lambda: describe(ids(0, 1), Shape(8, 16, 24, 4, 2), backend="sm42"),
]  # fmt: skip


def row_of(error: Exception, rows) -> check_errors_doc.Row | None:
    """The row that says the most of the message itself."""
    kind = type(error).__name__
    fits = [r for r in rows if r.error == kind and r.pattern().fullmatch(str(error))]
    return max(fits, key=lambda r: len(r.text.replace(check_errors_doc.GAP, "")), default=None)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_every_message_of_the_table_is_provoked(monkeypatch):
    rows = check_errors_doc.rows(ROOT)
    assert len(rows) > 60
    seen = set()
    for provoke in PROVOCATIONS:
        with monkeypatch.context() as patch, pytest.raises(Exception) as caught:
            provoke(patch) if "monkeypatch" in provoke.__code__.co_varnames[:1] else provoke()
        row = row_of(caught.value, rows)
        assert row is not None, f"not in docs/errors.md: {caught.value!r}"
        seen.add(row)
    left = [r.text for r in rows if r not in seen and any(HERE in test for test in r.tests)]
    assert left == []


def test_messages_say_subject_wanted_given_and_remedy():
    """Except what says that something outside of the library failed."""
    shapeless = [
        r.text
        for r in check_errors_doc.rows(ROOT)
        if not re.fullmatch(r"[^:]+: .*wanted.*, .+; .+", r.text)
    ]
    assert all(text.startswith(("monomoe: ", "group: monomoe: ")) for text in shapeless), shapeless
