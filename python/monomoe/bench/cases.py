"""The named shapes, their work and their inputs.

A rank-local slice (`-ep8`: of 8 ranks) holds E/R experts and T*K routed rows: what one rank of a
real job computes.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..functional import Weights

SKEW = 1.1  # exponent of zipf routing


@dataclass(frozen=True)
class BenchCase:
    """A shape, where it comes from, and how its ids are drawn."""

    name: str
    tokens: int
    hidden: int
    intermediate: int
    experts: int
    top_k: int
    shared: int = 0
    gated: bool = False  # sigmoid gate of the shared expert
    zipf: bool = False  # hot and empty experts instead of uniform ids
    ranks: tuple[int, ...] = (1,)  # numbers of virtual ranks that are measured
    variants: bool = False  # other rings and save modes too

    @property
    def rows(self) -> int:
        """Routed rows; no case has -1 routes."""
        return self.tokens * self.top_k


_RANKS = (1, 2, 4, 8)

CASES = (
    BenchCase("qwen3-30b", 16384, 2048, 768, 128, 8, ranks=_RANKS, variants=True),
    BenchCase("olmoe", 16384, 2048, 1024, 64, 8),
    BenchCase("mixtral", 8192, 4096, 14336, 8, 2),
    BenchCase("t16k-e64", 16384, 2560, 1280, 64, 4),
    BenchCase("dsv3-ep8", 4096, 7168, 2048, 32, 8, ranks=_RANKS, variants=True),
    BenchCase("qwen3.5-ep8", 4096, 4096, 1024, 64, 10, shared=1024, gated=True),
    BenchCase("kimi-ep8", 4096, 7168, 2048, 48, 8, shared=2048, ranks=_RANKS),
    BenchCase("glm-ep8", 4096, 6144, 2048, 32, 8, shared=2048),
    BenchCase("dsv4pro-ep8", 4096, 7168, 3072, 48, 6, shared=3072),
    BenchCase("glm-air-ep4", 4096, 4096, 1408, 32, 8, shared=1408),
    BenchCase("gpt-oss-ep4", 8192, 2880, 2880, 32, 4),
    BenchCase("qwen3-30b-skew", 16384, 2048, 768, 128, 8, zipf=True),
    BenchCase("qwen3-30b-t512", 512, 2048, 768, 128, 8),
)
# Not a measurement: shows on any machine, also on a CPU, that the whole command works.
SMOKE = BenchCase("smoke", 512, 64, 128, 8, 2, shared=64, gated=True, ranks=(1, 2), variants=True)

BY_NAME = {case.name: case for case in (*CASES, SMOKE)}


# ----------------------------------------------------------------------------------------- work


@dataclass(frozen=True)
class Gemm:
    """rows x cols, summed over depth."""

    rows: int
    cols: int
    depth: int

    @property
    def flops(self) -> int:
        return 2 * self.rows * self.cols * self.depth


def forward_gemms(case: BenchCase) -> list[Gemm]:
    """What dense computes: one GEMM over all rows each, for the routed and the shared part."""
    gemms = []
    for rows, inter in _parts(case):
        gemms.append(Gemm(rows, 2 * inter, case.hidden))
        gemms.append(Gemm(rows, case.hidden, inter))
    return gemms


def backward_gemms(case: BenchCase) -> list[Gemm]:
    """The two dgrads and the two wgrads of these."""
    gemms = []
    for rows, inter in _parts(case):
        gemms.append(Gemm(rows, inter, case.hidden))
        gemms.append(Gemm(rows, case.hidden, 2 * inter))
        gemms.append(Gemm(2 * inter, case.hidden, rows))
        gemms.append(Gemm(case.hidden, inter, rows))
    return gemms


def _parts(case: BenchCase) -> list[tuple[int, int]]:
    """(rows, intermediate) of the routed and of the shared experts."""
    parts = [(case.rows, case.intermediate)]
    return parts + [(case.tokens, case.shared)] if case.shared else parts


def flops(case: BenchCase, pass_: str) -> int:
    """Work counted for "fwd" or "fwdbwd": 6 or 18 operations a row, H and I. As src/plan/cost.h."""
    size = sum(rows * inter for rows, inter in _parts(case)) * case.hidden
    return (6 if pass_ == "fwd" else 18) * size


def weight_values(case: BenchCase) -> int:
    """Values of all weight matrices."""
    values = 3 * case.hidden * (case.experts * case.intermediate + case.shared)
    return values + (case.hidden if case.gated else 0)


# --------------------------------------------------------------------------------------- inputs


@dataclass(frozen=True)
class Inputs:
    """What a case hands to every system. gate and up of `weights` are views of one [E, 2, I, H]."""

    case: BenchCase
    x: Tensor  # [T, H] bf16
    ids: Tensor  # [T, K] int32
    topk_weights: Tensor  # [T, K] fp32
    weights: Weights
    dy: Tensor  # [T, H] bf16

    @property
    def gate_up(self) -> Tensor:
        """[E, 2I, H], the memory of gate and up."""
        gate = self.weights.gate
        experts, inter, hidden = gate.shape
        shape, stride = (experts, 2 * inter, hidden), (2 * inter * hidden, hidden, 1)
        return gate.as_strided(shape, stride)

    @property
    def shared_gate_up(self) -> Tensor | None:
        """[2Is, H], the memory of shared_gate and shared_up."""
        gate = self.weights.shared_gate
        if gate is None:
            return None
        inter, hidden = gate.shape
        return gate.as_strided((2 * inter, hidden), (hidden, 1))


def draw_ids(case: BenchCase, rng: torch.Generator) -> Tensor:
    """[T, K] int32 on the device of rng, without replacement in a token."""
    uniform = torch.rand(case.tokens, case.experts, generator=rng, device=rng.device)
    if not case.zipf:
        return uniform.topk(case.top_k, dim=1).indices.int()
    # Gumbel's trick: the K largest of log p + noise are K draws without replacement.
    place = torch.randperm(case.experts, generator=rng, device=rng.device)
    log_p = -SKEW * torch.log1p(place.float())
    noise = -torch.log(-torch.log(uniform.clamp(1e-12, 1 - 1e-7)))
    return (log_p + noise).topk(case.top_k, dim=1).indices.int()


def make_inputs(case: BenchCase, device: torch.device, seed: int = 0) -> Inputs:
    """Random normal values: zeros run faster on chips that are limited by power."""
    rng = torch.Generator(device).manual_seed(seed)

    def normal(*shape: int, scale: float = 1.0) -> Tensor:
        t = torch.empty(shape, dtype=torch.bfloat16, device=device)
        return t.normal_(0.0, scale, generator=rng)

    by_hidden, by_inter = case.hidden**-0.5, case.intermediate**-0.5
    gate_up = normal(case.experts, 2, case.intermediate, case.hidden, scale=by_hidden)
    down = normal(case.experts, case.hidden, case.intermediate, scale=by_inter)
    shared = score = None
    if case.shared:
        both = normal(2, case.shared, case.hidden, scale=by_hidden)
        shared = (both[0], both[1], normal(case.hidden, case.shared, scale=case.shared**-0.5))
    if case.gated:
        score = normal(case.hidden, scale=by_hidden)
    logits = torch.randn(case.tokens, case.top_k, generator=rng, device=device)
    return Inputs(
        case=case,
        x=normal(case.tokens, case.hidden),
        ids=draw_ids(case, rng),
        topk_weights=logits.softmax(1),
        weights=Weights(gate_up[:, 0], gate_up[:, 1], down, *(shared or (None,) * 3), score),
        dy=normal(case.tokens, case.hidden),
    )


def rows_per_expert(inputs: Inputs) -> tuple[int, int]:
    """Fewest and most rows of an expert."""
    counts = torch.bincount(inputs.ids.flatten().long(), minlength=inputs.case.experts)
    return int(counts.min()), int(counts.max())
