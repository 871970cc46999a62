"""Prints what pyproject.toml asks for, one requirement a line: `requirements.py build run EXTRA...`.

pyproject.toml is the one author of versions; the Makefile pipes this into pip.
"""

import pathlib
import sys

try:
    import tomllib
except ImportError:  # Python 3.10
    from pip._vendor import tomli as tomllib

ROOT = pathlib.Path(__file__).resolve().parent.parent


def requirements(groups: list[str]) -> list[str]:
    data = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="ascii"))
    known = {"build": data["build-system"]["requires"], "run": data["project"]["dependencies"]}
    known |= data["project"]["optional-dependencies"]
    return [line for group in groups for line in known[group]]


if __name__ == "__main__":
    print("\n".join(requirements(sys.argv[1:])))
