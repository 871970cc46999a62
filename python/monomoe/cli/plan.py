"""List what one call does on one rank: its tasks in order, what each waits for and raises, and
where everything lies in memory. As text, as JSON (--json), or as a picture of the first tickets of
each line (--svg FILE).

A line is a queue: workers take its tickets in order. "main" has the matrix products, "move" brings
rows, "combine" sums them up. A ticket may be taken early, but starts only when every counter it
waits for has its value.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import torch

from .. import functional, testing
from .plan_svg import draw


def add_arguments(parser: argparse.ArgumentParser) -> None:
    def size(flag: str, metavar: str, default: int, what: str) -> None:
        parser.add_argument(
            flag, type=int, default=default, metavar=metavar, help=f"{what}; default {default}"
        )

    size("--tokens", "T", 64, "tokens of all ranks")
    size("--hidden", "H", 256, "hidden width")
    size("--intermediate", "I", 128, "intermediate width")
    size("--experts", "E", 4, "experts of all ranks")
    size("--top-k", "K", 2, "routes of a token")
    size("--shared", "IS", 0, "width of the shared expert, 0 = none")
    size("--ranks", "R", 1, "ranks")
    size("--rank", "RANK", 0, "the rank to look at")
    size("--tickets", "N", 12, "tickets of each line to list or draw")
    size("--seed", "SEED", 0, "of the routes")
    parser.add_argument("--score", action="store_true", help="gate the shared expert's output")
    parser.add_argument("--backward", action="store_true", help="the backward call, not forward")
    parser.add_argument(
        "--routing", choices=testing.ROUTINGS, default="random", help="made-up routes; random"
    )
    parser.add_argument(
        "--ids", type=Path, metavar="FILE",
        help="your routes instead: topk_ids [T, K] as saved by torch.save",
    )  # fmt: skip
    parser.add_argument(
        "--backend", choices=("cpu", "sm90"), default="cpu",
        help="whose workers and knobs; default cpu. No GPU is needed",
    )  # fmt: skip
    parser.add_argument("--save", choices=("all", "preact", "none"), default="preact")
    for knob in ("ring-rows", "minibatch-rows", "save-rows", "workers"):
        parser.add_argument(f"--{knob}", type=int, help="default: by policy")
    parser.add_argument("--json", action="store_true", help="one JSON object")
    parser.add_argument("--svg", type=Path, metavar="FILE", help="draw the first tickets")


def _routes(args: argparse.Namespace) -> torch.Tensor:
    if args.ids is not None:
        return torch.load(args.ids)
    if not 1 <= args.top_k <= args.experts:  # made by topk, which would say it in its own words
        return torch.zeros(args.tokens, max(args.top_k, 0), dtype=torch.int64)
    case = testing.Case(
        args.tokens, 8, 8, args.experts, args.top_k, routing=args.routing, seed=args.seed
    )
    return testing.make_inputs(case).topk_ids


def describe(args: argparse.Namespace) -> dict:
    """The plan that the arguments ask for."""
    ids = _routes(args)
    tokens, top_k = ids.shape if ids.dim() == 2 else (args.tokens, args.top_k)
    shape = functional.Shape(
        tokens, args.hidden, args.intermediate, args.experts, top_k, args.shared, args.ranks
    )
    config = functional.Config(
        save=args.save, ring_rows=args.ring_rows, minibatch_rows=args.minibatch_rows,
        save_rows=args.save_rows, workers=args.workers,
    )  # fmt: skip
    return functional.describe(
        ids, shape, config, backward=args.backward, rank=args.rank, tickets=args.tickets,
        score=args.score, backend=args.backend,
    )  # fmt: skip


# -------------------------------------------------------------------------------------- text


def amount(size: int) -> str:
    """Bytes as a person reads them."""
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} GiB"


def place(task: dict) -> str:
    """Which piece of work a task is."""
    kind = task["kind"]
    if kind == "stage":
        return f"chunk {task['row']}"
    if kind == "combine":
        return f"token block {task['row']}"
    where = f"expert {task['expert']} " if "expert" in task else ""
    if kind == "dispatch":
        return f"{where}tile {task['row']} part {task['col']}"
    if "row_tiles" in task:
        begin, end = task["row_tiles"]
        rows = f"tiles {begin}..{end - 1}" if end > begin else "no rows"
        return f"{where}grad [{task['row']}, {task['col']}] of {rows}"
    return f"{where}tile {task['row']} column {task['col']}"


def counter(ref: dict, own_rank: int) -> str:
    rank = "" if ref["rank"] == own_rank else f" of rank {ref['rank']}"
    return f"{ref['counter']}[{ref['index']}]{rank}"


def wait(ref: dict, own_rank: int) -> str:
    if ref["counter"] == "stage_flag":
        return f"{counter(ref, own_rank)} of this call"
    return f"{counter(ref, own_rank)} = {ref['value']}"


def _print_task(task: dict, rank: int) -> None:
    waits = ", ".join(wait(w, rank) for w in task["waits"]) or "nothing"
    raises = ", ".join(counter(r, rank) for r in task["raises"])
    last = ", ".join(f"{counter(r, rank)} by {r['by']}" for r in task.get("last_raises", ()))
    print(f"  {task['ticket']:4}  {task['kind']:<21}{place(task):<34} waits for {waits}")
    if raises:
        print(f"        {'':<55} raises {raises}")
    if last:
        print(f"        {'':<55} the last column to end: {last}")


def print_text(plan: dict) -> None:
    shape, knobs, rank = plan["shape"], plan["knobs"], plan["rank"]
    print(
        f"{plan['pass']} on rank {rank} of {plan['ranks']}, by the {plan['backend']} policy: "
        f"{shape['tokens']} own tokens, H {shape['hidden']}, I {shape['intermediate']}, "
        f"E {shape['experts']}, K {shape['top_k']}, shared {shape['shared']}"
    )
    print(
        f"{knobs['workers']} workers; tiles of {knobs['tile_rows']} x {knobs['tile_cols']}; ring "
        f"{knobs['ring_rows']} rows, chunks of at most {knobs['chunk_rows']}, kept for backward "
        f"{knobs['save_rows']}"
    )
    print(f"{plan['rows']} rows in {plan['row_tiles']} row tiles:")
    for e in plan["experts"]:
        begin, end = e["row_tiles"]
        tiles = f"tiles {begin}..{end - 1}" if end > begin else "no tiles"
        print(f"  expert {e['expert']:4}  {e['rows']:7} rows  {tiles}")
    print("tasks: " + ", ".join(f"{count} {kind}" for kind, count in plan["tasks"].items()))
    for line in plan["lines"]:
        listed = len(line["tasks"])
        more = f", the first {listed}" if listed < line["tickets"] else ""
        print(f"\n{line['line']} line: {line['tickets']} tickets{more}")
        for task in line["tasks"]:
            _print_task(task, rank)
    memory = plan["memory"]
    print(
        f"\nmemory: heap that peers reach {amount(memory['heap_bytes'])}, local "
        f"{amount(memory['local_bytes'])}, kept between forward and backward "
        f"{amount(memory['saved_bytes'])}"
    )
    for r in memory["regions"]:
        print(f"  {r['where']:<6} {r['name']:<16} at {r['offset']:<12} {amount(r['bytes']):>10}")
    counters = ", ".join(f"{c['name']} {c['count']}" for c in plan["counters"])
    print(f"counters: {counters}")


def run(args: argparse.Namespace) -> int:
    try:
        plan = describe(args)
        if args.svg is not None:
            args.svg.write_text(draw(plan), encoding="utf-8")
    except (ValueError, TypeError, RuntimeError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    if args.json:
        print(json.dumps(plan))
    elif args.svg is not None:
        print(f"drawn: {args.svg}")
    else:
        print_text(plan)
    return 0
