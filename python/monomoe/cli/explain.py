"""Say what the layer would do for a shape: tiles, workers, order, flops, bytes, memory."""

from __future__ import annotations

import argparse
import sys

from .. import functional


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--tokens", type=int, required=True, metavar="T", help="of all ranks")
    parser.add_argument("--hidden", type=int, required=True, metavar="H")
    parser.add_argument("--intermediate", type=int, required=True, metavar="I")
    parser.add_argument("--experts", type=int, required=True, metavar="E")
    parser.add_argument("--top-k", type=int, required=True, metavar="K")
    parser.add_argument("--shared", type=int, default=0, metavar="IS", help="default 0: none")
    parser.add_argument("--ranks", type=int, default=1, metavar="R", help="default 1")
    parser.add_argument("--save", choices=("all", "preact", "none"), default="preact")
    parser.add_argument("--ring-rows", type=int)
    parser.add_argument("--minibatch-rows", type=int)


def run(args: argparse.Namespace) -> int:
    shape = functional.Shape(
        args.tokens, args.hidden, args.intermediate, args.experts, args.top_k, args.shared,
        args.ranks,
    )  # fmt: skip
    config = functional.Config(
        save=args.save, ring_rows=args.ring_rows, minibatch_rows=args.minibatch_rows
    )
    try:
        print(functional.explain(shape, config), end="")
    except (ValueError, RuntimeError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0
