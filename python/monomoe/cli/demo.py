"""Train a small language model of real text, then prove that ranks don't change a bit.

Trains a byte-level mixture-of-experts model on the source text of this machine's Python library (or
--text FILE), shows a sample and a plot of the loss, and repeats one training step with 1, 2 and 4
local ranks. Exit code 0 if every result that the layer promises to repeat is bitwise equal.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import sysconfig
import time
from dataclasses import dataclass, field
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .. import functional, reference, testing
from ..functional import Config, Group
from ..layer import MoELayer
from . import devices
from .progress import Progress

VOCABULARY = 256  # bytes
SEQUENCES, LENGTH = 8, 64
HIDDEN, INTERMEDIATE, EXPERTS, TOP_K, HEADS = 64, 128, 8, 2, 4
SHARED = (0, 64)  # width of the shared expert of each block
PIECES = 4  # the dense parts run on this many fixed pieces of a batch, whatever the ranks
RANKS = (1, 2, 4)
LEARNING_RATE = 4e-3
WARM_UP_STEPS = 30
MEAN_STEPS = 20  # over which a loss is averaged where it is shown
PROMPT = b"def "
SAMPLE_BYTES = 300
TEMPERATURE = 0.7

# ---------------------------------------------------------------------------------------- model


class Attention(nn.Module):
    """Causal self-attention of one piece, [N, S, H] fp32."""

    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(HIDDEN)
        self.qkv = nn.Linear(HIDDEN, 3 * HIDDEN, bias=False)
        self.out = nn.Linear(HIDDEN, HIDDEN, bias=False)

    def forward(self, h: Tensor) -> Tensor:
        n, s, _ = h.shape
        q, k, v = self.qkv(self.norm(h)).view(n, s, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return h + self.out(mixed.transpose(1, 2).reshape(n, s, HIDDEN))


class MoEBlock(nn.Module):
    """Attention, a softmax top-k router, and the layer. Only the layer sees the whole batch."""

    def __init__(self, shared: int):
        super().__init__()
        self.attention = Attention()
        self.norm = nn.LayerNorm(HIDDEN)
        self.router = nn.Linear(HIDDEN, EXPERTS, bias=False)
        self.moe = MoELayer(HIDDEN, INTERMEDIATE, EXPERTS, TOP_K, shared=shared, score=shared > 0)
        self.seen: dict[str, Tensor] = {}  # what went in and out of the layer last

    def forward(self, pieces: list[Tensor]) -> list[Tensor]:
        pieces = [self.attention(h) for h in pieces]
        rows = [self.norm(h).flatten(0, 1) for h in pieces]
        routes = [self.router(r).softmax(-1).topk(TOP_K) for r in rows]
        x = torch.cat(rows).bfloat16()  # [T, H]
        weights = torch.cat([route.values for route in routes])  # [T, K]
        ids = torch.cat([route.indices for route in routes])
        y = self.moe(x, ids, weights)
        self.seen = {"x": x, "topk_ids": ids, "topk_weights": weights, "y": y}
        parts = y.float().split([len(r) for r in rows])
        return [h + part.view_as(h) for h, part in zip(pieces, parts)]


class Model(nn.Module):
    """Bytes in, logits of the next byte out."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, HIDDEN)
        self.position = nn.Parameter(torch.randn(LENGTH, HIDDEN) * 0.02)
        self.blocks = nn.ModuleList(MoEBlock(shared) for shared in SHARED)
        self.norm = nn.LayerNorm(HIDDEN)
        self.head = nn.Linear(HIDDEN, VOCABULARY, bias=False)

    @property
    def device(self) -> torch.device:
        return self.position.device

    def forward(self, text: Tensor) -> list[Tensor]:
        """text [N, S] -> logits [n, S, 256] of each piece of it."""
        pieces = [
            self.embedding(part) + self.position[: text.shape[1]] for part in text.chunk(PIECES)
        ]
        for block in self.blocks:
            pieces = block(pieces)
        return [self.head(self.norm(h)) for h in pieces]

    def token_losses(self, batch: Tensor) -> Tensor:
        """batch [N, S + 1] -> loss of each token in order, [N * S] fp32."""
        targets = batch[:, 1:].chunk(PIECES)
        logits = self(batch[:, :-1])
        return torch.cat(
            [F.cross_entropy(piece.flatten(0, 1), target.flatten(), reduction="none")
             for piece, target in zip(logits, targets)]
        )  # fmt: skip


class Optimizer:
    """Adam with fp32 masters of the bf16 parameters, whose gradients arrive in main_grad."""

    def __init__(self, model: Model):
        self._low = [p for p in model.parameters() if p.dtype == torch.bfloat16]
        self._masters = [nn.Parameter(p.detach().float()) for p in self._low]
        self._dense = [p for p in model.parameters() if p.dtype == torch.float32]
        for p, master in zip(self._low, self._masters):
            p.main_grad = master.grad = torch.zeros_like(master)
        self._adam = torch.optim.Adam(self._dense + self._masters, LEARNING_RATE, (0.9, 0.98))

    def zero_grad(self) -> None:
        for p in self._low:
            p.main_grad.zero_()
        for p in self._dense:
            p.grad = None

    def step(self, rate: float) -> None:
        """One step; rate is a share of the learning rate."""
        for options in self._adam.param_groups:
            options["lr"] = rate * LEARNING_RATE
        nn.utils.clip_grad_norm_(self._dense + self._masters, 1.0)
        self._adam.step()
        with torch.no_grad():
            for p, master in zip(self._low, self._masters):
                p.copy_(master)


# ----------------------------------------------------------------------------------------- text


def library_text() -> bytes:
    """The source text of this machine's Python library."""
    root = Path(sysconfig.get_paths()["stdlib"])
    skipped = {"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"}
    files = [p for p in sorted(root.rglob("*.py")) if not skipped & set(p.relative_to(root).parts)]
    return b"\n".join(p.read_bytes() for p in files)


def read_text(path: Path | None) -> Tensor:
    """All bytes, [N] uint8. Errors: ValueError where there are too few, OSError."""
    text = library_text() if path is None else path.read_bytes()
    if len(text) <= LENGTH + 1:
        raise ValueError(
            f"--text: more than {LENGTH + 1} bytes wanted, {len(text)} given; pass a longer file"
        )
    return torch.frombuffer(bytearray(text), dtype=torch.uint8)


def draw_batch(text: Tensor, rng: torch.Generator) -> Tensor:
    """Random pieces of the text, [SEQUENCES, LENGTH + 1] int64."""
    starts = torch.randint(len(text) - LENGTH, (SEQUENCES,), generator=rng)
    return torch.stack([text[s : s + LENGTH + 1] for s in starts.tolist()]).long()


# ------------------------------------------------------------------------------------- training


@dataclass
class Training:
    """What training left behind."""

    losses: list[float] = field(default_factory=list)  # nats a byte, one a step
    seconds: float = 0.0

    @property
    def tokens_per_s(self) -> float:
        return len(self.losses) * SEQUENCES * LENGTH / max(self.seconds, 1e-9)

    def recent_loss(self) -> float:
        """Mean of the last steps."""
        recent = self.losses[-MEAN_STEPS:]
        return sum(recent) / max(1, len(recent))


def train(model: Model, text: Tensor, steps: int, rng: torch.Generator, quiet: bool) -> Training:
    """Trains the model in place."""
    optimizer, done = Optimizer(model), Training()
    start = time.monotonic()
    with Progress(steps, quiet) as progress:
        for step in range(steps):
            optimizer.zero_grad()
            loss = model.token_losses(draw_batch(text, rng).to(model.device)).mean()
            loss.backward()
            warm = min(1.0, (step + 1) / WARM_UP_STEPS)
            optimizer.step(warm * (0.55 + 0.45 * math.cos(math.pi * step / steps)))
            done.losses.append(loss.item())
            done.seconds = time.monotonic() - start
            progress.advance(f"loss {done.recent_loss():.3f}, {done.tokens_per_s:.0f} tokens/s")
    return done


@torch.no_grad()
def generate(model: Model, rng: torch.Generator) -> str:
    """Text that the model writes after PROMPT."""
    text = torch.tensor(list(PROMPT))
    for _ in range(SAMPLE_BYTES):
        logits = model(text[None, -LENGTH:].to(model.device))[0][0, -1].cpu()
        chosen = torch.multinomial((logits / TEMPERATURE).softmax(-1), 1, generator=rng)
        text = torch.cat([text, chosen])
    return bytes(text.tolist()).decode("utf-8", errors="replace")


def plot(losses: list[float], path: Path) -> None:
    """The loss of every step and its mean over the last ones, as PNG."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    recent = [losses[max(0, i + 1 - MEAN_STEPS) : i + 1] for i in range(len(losses))]
    smooth = [sum(window) / len(window) for window in recent]
    figure, axes = plt.subplots(figsize=(7, 4), dpi=120)
    axes.plot(losses, color="#9ecae1", linewidth=0.8, label="each step")
    axes.plot(smooth, color="#08519c", label=f"mean of the last {MEAN_STEPS} steps")
    axes.set(xlabel="step", ylabel="loss (nats a byte)", title="MonoMoE demo: byte-level model")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.tight_layout()
    figure.savefig(path)
    plt.close(figure)


# ---------------------------------------------------------------------------------------- proof


def one_step(model: Model, batch: Tensor, group: Group) -> dict[str, Tensor]:
    """A training step's forward and backward with this group: what each layer took and made."""
    for block in model.blocks:
        block.moe.group = group
        for p in block.moe.parameters():
            p.main_grad = torch.zeros(p.shape, device=p.device)
    model.zero_grad()
    losses = model.token_losses(batch)
    for block in model.blocks:
        for name in ("x", "topk_weights", "y"):
            block.seen[name].retain_grad()
    losses.mean().backward()

    total = torch.zeros(())
    for loss in losses.detach().cpu():  # in token order
        total = total + loss
    results = {"loss": total}
    for i, block in enumerate(model.blocks):
        seen, moe = block.seen, block.moe
        made = {
            "y": seen["y"].detach(),
            "dx": seen["x"].grad,
            "dtopk_weights": seen["topk_weights"].grad,
            "dgate_up": moe.gate_up.main_grad,
            "ddown": moe.down.main_grad,
        }
        if moe.shared:
            made |= {
                "dshared_gate": moe.shared_gate_up.main_grad[0],
                "dshared_up": moe.shared_gate_up.main_grad[1],
                "dshared_down": moe.shared_down.main_grad,
                "dshared_score": moe.shared_score.main_grad,
            }
        results |= {f"block {i} {name}": tensor for name, tensor in made.items()}
    return results


def shared_oracle(block: MoEBlock, arithmetic: reference.Arithmetic) -> dict[str, Tensor]:
    """Gradients of the shared expert by the reference, on the CPU, from what the layer saw last."""
    moe, seen = block.moe, {name: t.detach().cpu() for name, t in block.seen.items()}
    weights = functional.Weights(
        moe.gate_up[:, 0], moe.gate_up[:, 1], moe.down, moe.shared_gate_up[0],
        moe.shared_gate_up[1], moe.shared_down, moe.shared_score,
    ).map(lambda t: t.detach().cpu())  # fmt: skip
    y, ctx = reference.forward(
        seen["x"], seen["topk_weights"], weights, seen["topk_ids"], Config(weight_grad="fp32"),
        arithmetic=arithmetic,
    )  # fmt: skip
    made = testing.named(y, reference.backward(block.seen["y"].grad.cpu(), ctx))
    return {name: made[name] for name in testing.PER_RANK_SUMS}


@dataclass
class Proof:
    """One step with every number of ranks."""

    hashes: dict[str, list[str]] = field(default_factory=dict)  # tensor -> one a number of ranks
    shared: dict[str, testing.Verdict] = field(default_factory=dict)  # gradient -> the worst

    @property
    def equal(self) -> bool:
        return all(len(set(hashes)) == 1 for hashes in self.hashes.values())

    @property
    def close(self) -> bool:
        return all(verdict.passed for verdict in self.shared.values())


def prove(model: Model, batch: Tensor) -> Proof:
    """Repeats one step with RANKS and compares."""
    proof = Proof()
    for ranks in RANKS:
        with Group.local(ranks) as group:
            results = one_step(model, batch, group)
            group.check()
        for name, tensor in results.items():
            if name.split()[-1] not in testing.PER_RANK_SUMS:
                proof.hashes.setdefault(name, []).append(testing.hash_bits(tensor))
        for i, block in enumerate(model.blocks):
            if not block.moe.shared:
                continue
            exact = shared_oracle(block, reference.EXACT)
            twin = shared_oracle(block, reference.TWIN)
            for name in exact:
                key = f"block {i} {name}"
                found = testing.judge(name, results[key].cpu(), twin[name], exact[name])
                known = proof.shared.setdefault(key, found)
                proof.shared[key] = max(known, found, key=lambda verdict: verdict.share)
    return proof


def print_proof(proof: Proof) -> None:
    print(f"\nThe same training step with {', '.join(map(str, RANKS[:-1]))} and {RANKS[-1]} ranks:")
    print(f"  {'':<24}" + "".join(f"{f'R = {ranks}':<18}" for ranks in RANKS))
    for name, hashes in proof.hashes.items():
        print(f"  {name:<24}" + "".join(f"{h:<18}" for h in hashes))
    for name, worst in proof.shared.items():
        print(f"  {name:<24}relative error {worst.error:.1e} of {worst.allowed:.1e} allowed, at most")
    if proof.equal:
        print(
            "bitwise equal for all numbers of ranks: "
            "loss, y, dx, router and routed weight gradients"
        )
    else:
        bad = [name for name, hashes in proof.hashes.items() if len(set(hashes)) > 1]
        print(f"NOT bitwise equal: {', '.join(bad)}")
    if not proof.close:
        bad = [name for name, worst in proof.shared.items() if not worst.passed]
        print(f"NOT within the error rule: {', '.join(bad)}")


# -------------------------------------------------------------------------------------- command


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--steps", type=int, default=600, help="training steps; default 600")
    parser.add_argument("--text", type=Path, metavar="FILE", help="train on this file's bytes")
    parser.add_argument("--out", type=Path, default=Path("monomoe_demo.png"), metavar="PNG",
                        help="plot of the loss; default monomoe_demo.png")  # fmt: skip
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="one JSON object instead of text")


def run(args: argparse.Namespace) -> int:
    if args.steps < 1:
        print(f"--steps: 1 or more wanted, {args.steps} given; pass 600", file=sys.stderr)
        return 1
    try:
        text = read_text(args.text)
    except (OSError, ValueError) as error:
        print(error, file=sys.stderr)
        return 1
    backend = devices.backend_named(None)
    if backend is None:
        print("MONOMOE_BACKEND: a backend of this machine wanted, "
              f"{os.environ['MONOMOE_BACKEND']} given; unset it", file=sys.stderr)  # fmt: skip
        return 1
    devices.repeat_bits(devices.DEVICES[backend])  # the layer repeats its own anyway
    torch.manual_seed(args.seed)
    rng = torch.Generator().manual_seed(args.seed)
    model = Model().to(devices.DEVICES[backend])
    say = (lambda *_: None) if args.json else print
    say(f"{sum(p.numel() for p in model.parameters()):,} parameters, {len(text):,} bytes of text, "
        f"backend {backend}")  # fmt: skip

    training = train(model, text, args.steps, rng, quiet=args.json)
    say(f"loss {training.losses[0]:.3f} -> {training.recent_loss():.3f} nats a byte, "
        f"{training.tokens_per_s:.0f} tokens/s, {training.seconds:.1f} s")  # fmt: skip
    try:
        plot(training.losses, args.out)
        plotted = f"plot of the loss: {args.out.resolve()}"
    except (ImportError, OSError) as error:  # the proof matters more
        plotted = f"no plot of the loss: {error}; pip install matplotlib, or pass another --out"
    sample = generate(model, rng)
    say(f"{plotted}\n\nWritten by the model:\n{sample}")
    proof = prove(model, draw_batch(text, rng).to(model.device))
    if args.json:
        print(json.dumps({
            "steps": args.steps, "loss_first": training.losses[0],
            "loss_last": training.recent_loss(), "tokens_per_s": training.tokens_per_s,
            "seconds": training.seconds, "plot": str(args.out), "sample": sample,
            "ranks": list(RANKS), "hashes": proof.hashes, "shared_errors": {n: [v.error, v.allowed] for n, v in proof.shared.items()},
            "bitwise_equal": proof.equal, "within_error_rule": proof.close,
        }))  # fmt: skip
    else:
        print_proof(proof)
    return 0 if proof.equal and proof.close else 1
