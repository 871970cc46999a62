"""Finds the clang tools that pip has installed: `binary("clang-tidy")`."""

import importlib.util
import pathlib
import sys


def binary(name: str) -> str:
    """The program inside the wheel; its Python wrapper needs a setuptools that is gone."""
    spec = importlib.util.find_spec(name.replace("-", "_"))
    if spec is None or spec.origin is None:
        sys.exit(f"{name}: wanted in this Python environment, not found; run it by `make lint`")
    return str(pathlib.Path(spec.origin).parent / "data" / "bin" / name)
