"""Where a command runs: backends by name, and the device of their tensors."""

from __future__ import annotations

import os

import torch

from .. import functional

DEVICES = {"cpu": "cpu", "sm90": "cuda"}  # backend -> device of its tensors


def backend_named(name: str | None) -> str | None:
    """A backend of this machine by its own name or its device's ("cuda"); None: the one that
    MONOMOE_BACKEND forces, or the best. Returns None where there is none of that name."""
    known = functional.backends()
    name = name or os.environ.get("MONOMOE_BACKEND") or known[0]
    return next((b for b in known if name in (b, DEVICES[b])), None)


def repeat_bits(device: str) -> None:
    """Makes torch's own operations on that device repeat their bits."""
    if device == "cuda":
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read when cuBLAS starts
        torch.use_deterministic_algorithms(True)
    else:
        torch.set_num_threads(1)
