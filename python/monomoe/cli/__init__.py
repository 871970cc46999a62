"""The command line: one file a command.

A command is a module with a docstring (its help), `add_arguments(parser)` and `run(args)`, which
returns the exit code. Only the chosen one is imported: `doctor` must run where torch is missing.
"""

from __future__ import annotations

import argparse
import importlib
import sys

COMMANDS = {
    "demo": "train a small language model, then prove that ranks don't change a bit",
    "check": "compare the layer on this machine with a float64 reference",
    "bench": "measure the layer beside dense GEMMs and what else there is",
    "doctor": "say what this machine can run, what is missing, and how to get it",
    "explain": "say what the layer would do for a shape",
    "plan": "list a call's tasks, their order and waits, and its memory; or draw them",
}


def main(argv: list[str]) -> int:
    """Exit code of `python -m monomoe ARGV`."""
    lines = "\n".join(f"  {name:<9} {text}" for name, text in COMMANDS.items())
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(line_buffering=True)  # in step with stderr, also in a pipe
    top = argparse.ArgumentParser(
        prog="python -m monomoe",
        epilog=f"commands:\n{lines}\n\npython -m monomoe COMMAND --help says more",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    top.add_argument("command", choices=COMMANDS, metavar="COMMAND", help=", ".join(COMMANDS))
    if not argv:
        top.print_help()
        return 2
    command = top.parse_args(argv[:1]).command

    module = importlib.import_module(f"{__name__}.{command}")
    parser = argparse.ArgumentParser(
        prog=f"python -m monomoe {command}",
        description=module.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    module.add_arguments(parser)
    return module.run(parser.parse_args(argv[1:]))
