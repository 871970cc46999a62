"""What was in memory before never shows, and nothing but the outputs is written."""

import subprocess
import sys

import pytest
import torch

from helpers import run
from monomoe import Config, Grads, Group, schedule, testing
from monomoe.functional import launch_backward, launch_forward, new_saved
from monomoe.testing import Case

CASES = [
    Case(65, 72, 40, 6, 3, routing="unrouted", shared=24, score=True),
    Case(300, 64, 40, 5, 2, routing="skewed", split="ragged",
         config=Config(ring_rows=256, save_rows=128)),
    Case(33, 24, 56, 8, 2, routing="even_only", shared=8, config=Config(save="none")),
    Case(33, 24, 56, 4, 2, routing="none", config=Config(save="all")),
    Case(40, 8, 8, 3, 1, config=Config(weight_grad="fp32", save="all")),
]  # fmt: skip

GUARD_BYTES = 256


class Guarded:
    """Outputs filled with one byte, each between guards of another."""

    def __init__(self, byte: int):
        self._byte, self._whole = byte, []

    def empty(self, shape, dtype) -> torch.Tensor:
        item = torch.empty(0, dtype=dtype).element_size()
        size = item * torch.Size(shape).numel()
        whole = torch.full((size + 2 * GUARD_BYTES,), 0xA5, dtype=torch.uint8)
        self._whole.append(whole)
        inner = whole[GUARD_BYTES : GUARD_BYTES + size]
        inner.fill_(self._byte)
        return inner.view(dtype).view(shape)

    def intact(self) -> bool:
        return all(
            (w[:GUARD_BYTES] == 0xA5).all() and (w[-GUARD_BYTES:] == 0xA5).all()
            for w in self._whole
        )


def run_poisoned(case: Case, ranks: int, byte: int, inputs=None) -> dict[str, torch.Tensor]:
    """The three calls with workspace, saved state and outputs full of a byte, twice over."""
    inputs, config = inputs or testing.make_inputs(case), case.config.pack()
    memory = Guarded(byte)
    dtype = torch.float32 if case.config.weight_grad == "fp32" else torch.bfloat16
    with Group.local(ranks, timeout_s=60) as group:
        split = case.tokens_per_rank(ranks)
        sched = schedule(inputs.topk_ids, case.experts, group, tokens_per_rank=split)
        route = (sched.tables, sched.experts, sched.top_k, sched.tokens_per_rank)
        size = new_saved(group.id, ranks, inputs.x, inputs.topk_weights, inputs.weights, config)
        for _ in range(2):
            y = memory.empty(inputs.x.shape, torch.bfloat16)
            saved = memory.empty(size.shape, torch.uint8)
            grads = Grads(
                memory.empty(inputs.x.shape, torch.bfloat16),
                memory.empty(inputs.topk_weights.shape, torch.float32),
                inputs.weights.map(lambda w: memory.empty(w.shape, dtype)),
            )
            testing.poison(group, byte)
            launch_forward(group.id, inputs.x, inputs.topk_weights, inputs.weights, route, config,
                           case.limit, y, saved)  # fmt: skip
            testing.poison(group, byte)
            launch_backward(group.id, inputs.dy, inputs.x, inputs.topk_weights, inputs.weights,
                            route, config, case.limit, saved, grads, False)  # fmt: skip
    assert memory.intact()
    return testing.named(y, grads)


@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_memory_full_of_any_byte_gives_the_same_bits(case, ranks):
    wanted = run(case, ranks)
    for byte in (0xFF, 0x3C, 0x00):
        testing.assert_same_bits(run_poisoned(case, ranks, byte), wanted)


def test_memory_from_the_start_full_of_any_byte_gives_the_same_bits():
    """New memory of a group is filled too, when its first call allocates it."""
    case = Case(65, 72, 40, 6, 3, routing="unrouted", shared=24, score=True)
    inputs = testing.make_inputs(case)
    wanted = run(case, 2)
    for byte in (0xFF, 0x3C):
        with Group.local(2, timeout_s=60) as group:
            testing.poison(group, byte)
            testing.assert_same_bits(testing.run_layer(inputs, group, case), wanted)


def test_gaps_between_strided_output_rows_are_not_written():
    """main_grads with padding, y by the functional call is contiguous anyway."""
    case = Case(33, 24, 40, 4, 2)
    inputs, config = testing.make_inputs(case), case.config.pack()
    wanted = run(case, 2)
    with Group.local(2, timeout_s=60) as group:
        sched = schedule(inputs.topk_ids, case.experts, group)
        route = (sched.tables, sched.experts, sched.top_k, sched.tokens_per_rank)
        saved = new_saved(group.id, 2, inputs.x, inputs.topk_weights, inputs.weights, config)
        wide = {name: torch.full((33, 40), 7.0, dtype=torch.bfloat16) for name in ("y", "dx")}
        launch_forward(group.id, inputs.x, inputs.topk_weights, inputs.weights, route, config,
                       None, wide["y"][:, 8:32], saved)  # fmt: skip
        grads = Grads(
            wide["dx"][:, 8:32],
            torch.empty(33, 2),
            inputs.weights.map(lambda w: torch.empty(w.shape, dtype=torch.bfloat16)),
        )
        launch_backward(group.id, inputs.dy, inputs.x, inputs.topk_weights, inputs.weights, route,
                        config, None, saved, grads, False)  # fmt: skip
    for name, tensor in wide.items():
        testing.assert_same_bits({name: tensor[:, 8:32]}, {name: wanted[name]})
        assert (tensor[:, :8] == 7).all() and (tensor[:, 32:] == 7).all()


# ----------------------------------------------------------------- failures of the machine

OUT_OF_MEMORY = """
import resource, torch, monomoe
from monomoe.testing import Case, make_inputs

def call(group, case, **config):
    i = make_inputs(case)
    sched = monomoe.schedule(i.topk_ids, case.experts, group)
    return monomoe.forward(i.x, i.topk_weights, i.weights, sched, monomoe.Config(workers=1, **config))[0]

small, other, big = Case(1, 264, 72, 4, 2), Case(1, 8, 72, 1, 1), Case(2048, 1024, 8, 64, 64)
want = call(monomoe.Group(), other)
group = monomoe.Group()
call(group, small)
i = make_inputs(big)
sched = monomoe.schedule(i.topk_ids, 64, group)
now = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
before = resource.getrlimit(resource.RLIMIT_AS)
resource.setrlimit(resource.RLIMIT_AS, (now + 60_000_000, before[1]))
try:
    monomoe.forward(i.x, i.topk_weights, i.weights, sched, monomoe.Config(save="none", workers=1))
except RuntimeError as e:
    print(e)
resource.setrlimit(resource.RLIMIT_AS, before)
for _ in range(3):
    assert torch.equal(call(group, other), want)
print("went on")
"""


def run_script(text, *arguments):
    return subprocess.run(
        [sys.executable, "-c", text, *arguments], capture_output=True, text=True, timeout=120
    )


def test_a_call_that_does_not_fit_into_memory_is_refused_and_the_group_goes_on():
    done = run_script(OUT_OF_MEMORY)
    assert done.returncode == 0, done.stderr
    assert "memory: " in done.stdout and "bytes of workspace wanted, less left" in done.stdout
    assert done.stdout.endswith("went on\n")


def test_any_number_of_workers_is_fine():
    done = run_script(
        "import monomoe, torch\n"
        "from monomoe.testing import Case, make_inputs\n"
        "c = Case(33, 64, 40, 5, 2)\n"
        "i = make_inputs(c)\n"
        "s = monomoe.schedule(i.topk_ids, c.experts)\n"
        "run = lambda n: monomoe.forward(i.x, i.topk_weights, i.weights, s,"
        " monomoe.Config(workers=n))[0]\n"
        "assert torch.equal(run(65536), run(1))\n"
    )
    assert done.returncode == 0, done.stderr


def test_a_forked_child_sees_closed_groups_and_ends():
    done = run_script(
        "import os, sys, threading, monomoe\n"
        "from monomoe.testing import Case, make_inputs\n"
        "c = Case(64, 64, 64, 4, 2)\n"
        "i = make_inputs(c)\n"
        "g = monomoe.Group()\n"
        "s = monomoe.schedule(i.topk_ids, c.experts, g)\n"
        "run = lambda: monomoe.forward(i.x, i.topk_weights, i.weights, s)\n"
        "stop = threading.Event()\n"
        "def loop():\n"
        "    while not stop.is_set(): run()\n"
        "t = threading.Thread(target=loop); t.start()\n"
        "for _ in range(4):\n"
        "    pid = os.fork()\n"
        "    if pid == 0:\n"
        "        try: run()\n"
        "        except RuntimeError as e: os._exit(0 if 'closed' in str(e) else 1)\n"
        "        os._exit(2)\n"
        "    assert os.waitpid(pid, 0)[1] == 0\n"
        "stop.set(); t.join(); run(); print('done')\n"
    )
    assert done.returncode == 0 and done.stdout == "done\n", done.stderr


# ----------------------------------------------------------------------------------- growth

GROWTH = """
import ctypes, gc, random, sys, threading
import torch, monomoe
from monomoe.testing import Case, make_inputs, poison

torch.set_num_threads(1)

class Info(ctypes.Structure):
    _fields_ = [(n, ctypes.c_size_t) for n in "arena ordblks smblks hblks hblkhd usmblks fsmblks "
                "uordblks fordblks keepcost".split()]

libc = ctypes.CDLL(None)
libc.mallinfo2.restype = Info

def in_use():
    for layer in layers:
        layer.zero_grad()
    gc.collect()
    info = libc.mallinfo2()
    return info.uordblks + info.hblkhd

random.seed(5)
torch.manual_seed(5)
MOST = 150
sizes = [(8 * random.randint(1, 12), 8 * random.randint(1, 12), random.randint(1, 9),
          random.choice([0, 0, 16, 40])) for _ in range(12)]
groups = [monomoe.Group(), monomoe.Group.local(3)]
layers = [monomoe.MoELayer(h, i, e, min(e, 2), shared=s, group=groups[n % 2])
          for n, (h, i, e, s) in enumerate(sizes)]
for n, layer in enumerate(layers):
    if n % 3 == 0:
        for p in layer.parameters():
            p.main_grad = torch.zeros(p.shape)

def step(layer, tokens):
    x = torch.randn(tokens, layer.hidden).bfloat16().requires_grad_()
    logits = torch.randn(tokens, layer.experts, requires_grad=True)
    weights, ids = logits.softmax(1).topk(layer.top_k)
    ids = torch.where(torch.rand(ids.shape) < random.choice([0, 0.2, 1.0]), -1, ids)
    for p in layer.parameters():
        p.grad = None
    y = layer(x, ids, weights)
    if random.random() < 0.8:  # now and then a graph is dropped without its backward
        y.float().square().sum().backward()
    if random.random() < 0.05:
        try:
            layer(x.detach().float(), ids, weights)
        except TypeError:
            pass

for layer in layers:
    for _ in range(3):
        step(layer, MOST)
for _ in range(100):
    step(random.choice(layers), random.randint(0, MOST))
before, threads = in_use(), threading.active_count()
for n in range(1000):
    step(random.choice(layers), random.randint(0, MOST))
print("grown by", in_use() - before, "bytes, and", threading.active_count() - threads, "threads")

for _ in range(50):
    group = monomoe.Group.local(3)
    step(monomoe.MoELayer(64, 64, 4, 2, group=group), MOST)
    if random.random() < 0.5:
        group.close()
del group
print("groups left", in_use() - before, "bytes")
"""


def test_nothing_grows_in_a_thousand_steps_of_random_shapes():
    done = run_script(GROWTH)
    assert done.returncode == 0, done.stderr
    grown = [int(word) for word in done.stdout.split() if word.lstrip("-").isdigit()]
    steps, threads, groups = grown
    # What torch keeps in its caches moves by some kilobytes.
    assert steps < 100_000 and threads == 0 and groups < 200_000, done.stdout
