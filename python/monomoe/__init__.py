"""MonoMoE: one mixture-of-experts layer for training, in one kernel launch per direction.

    group = monomoe.Group()
    sched = monomoe.schedule(topk_ids, experts=E, group=group)
    y, ctx = monomoe.forward(x, topk_weights, weights, sched)
    grads = monomoe.backward(dy, ctx)

or, with autograd, `monomoe.MoELayer`. Names are loaded when they are first used, so that
`python -m monomoe doctor` can run where torch is missing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from . import functional, layer, ops, reference, testing
    from .functional import (
        Config,
        Context,
        Grads,
        Group,
        Schedule,
        Shape,
        Weights,
        backends,
        backward,
        describe,
        explain,
        forward,
        schedule,
    )
    from .layer import MoELayer

    __version__: str

_MODULES = ("functional", "layer", "ops", "reference", "testing")

__all__ = [
    "Config",
    "Context",
    "Grads",
    "Group",
    "MoELayer",
    "Schedule",
    "Shape",
    "Weights",
    "backends",
    "backward",
    "describe",
    "explain",
    "forward",
    "functional",
    "layer",
    "ops",
    "reference",
    "schedule",
    "testing",
]


def __getattr__(name: str):
    if name in _MODULES:
        return importlib.import_module(f"{__name__}.{name}")
    if name == "__version__":  # its one author is include/monomoe/monomoe.h
        return importlib.import_module(f"{__name__}.functional").native().version()
    if name not in __all__:
        raise AttributeError(f"module 'monomoe' has no attribute {name!r}")
    home = "layer" if name == "MoELayer" else "functional"
    value = getattr(importlib.import_module(f"{__name__}.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, "__version__"})
