"""Compare the layer on this machine with a float64 reference, and with itself over ranks.

One line a case: verdict; relative error of the tensor that is closest to (or furthest beyond) what
the error rule allows it, and what that is: twice the error of the same rounding points done
naively; a hash of the bits that every number of ranks must repeat; the case's name. Exit code 0 if
all pass.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from dataclasses import dataclass

import torch

from .. import functional, reference, testing
from ..functional import Config, Group
from ..testing import Case
from . import devices
from .progress import Progress

CASES = (
    # tokens
    Case(0, 64, 64, 8, 2),
    Case(1, 64, 64, 8, 2),
    Case(1, 8, 8, 1, 1),
    Case(2, 64, 64, 8, 2, split="ragged"),
    Case(33, 64, 64, 8, 2),
    Case(33, 64, 64, 8, 2, split="ragged"),
    Case(127, 64, 64, 4, 2),
    Case(128, 64, 64, 4, 2),
    Case(129, 64, 64, 4, 2, split="ragged"),
    Case(300, 128, 256, 8, 2),
    # widths: odd multiples of 8
    Case(33, 8, 8, 3, 2),
    Case(33, 24, 8, 5, 2),
    Case(33, 8, 24, 5, 2),
    Case(33, 72, 136, 5, 2),
    Case(33, 136, 72, 5, 2),
    Case(65, 264, 200, 4, 2),
    # experts and top-k
    Case(33, 64, 40, 1, 1),
    Case(33, 64, 40, 7, 1),
    Case(33, 64, 40, 7, 7),
    Case(33, 64, 40, 9, 3),
    Case(40, 16, 16, 129, 8),
    # routes
    Case(65, 64, 40, 6, 2, routing="skewed"),
    Case(65, 64, 40, 6, 3, routing="unrouted"),
    Case(65, 64, 40, 6, 3, routing="unrouted", split="ragged", shared=24),
    Case(65, 64, 40, 6, 3, routing="duplicates"),
    Case(65, 64, 40, 6, 2, routing="one"),
    Case(65, 64, 40, 6, 2, routing="none"),
    Case(65, 64, 40, 6, 2, routing="none", shared=40),
    Case(65, 64, 40, 8, 2, routing="even_only", ids=torch.int32),
    # shared expert, clamp, router weights
    Case(65, 64, 40, 6, 2, shared=8),
    Case(65, 64, 40, 6, 2, shared=136),
    Case(65, 64, 40, 6, 2, shared=72, score=True),
    Case(1, 64, 40, 6, 2, shared=72, score=True),
    Case(65, 64, 40, 6, 2, limit=0.5),
    Case(65, 64, 40, 6, 2, limit=0.5, shared=40, score=True, router="signed"),
    Case(65, 64, 40, 6, 3, router="signed"),
    # knobs
    Case(400, 64, 40, 3, 2, routing="skewed", config=Config(save="all")),
    Case(400, 64, 40, 3, 2, routing="skewed", config=Config(save="none"), shared=24),
    Case(400, 64, 40, 3, 2, routing="skewed", config=Config(save_rows=256)),
    Case(400, 64, 40, 3, 2, routing="skewed", config=Config(save="all", save_rows=128)),
    Case(400, 64, 40, 3, 2, routing="one", config=Config(ring_rows=256, minibatch_rows=128)),
    Case(400, 64, 40, 3, 2, config=Config(ring_rows=256, save="none", workers=1)),
    Case(65, 64, 40, 6, 2, config=Config(fwd_comm_sms=1, bwd_comm_sms=1, workers=3)),
    Case(65, 64, 40, 6, 2, shared=24, score=True, config=Config(weight_grad="fp32")),
    # integer values: exact
    Case(33, 64, 40, 5, 2, values="integer"),
    Case(65, 136, 64, 5, 2, values="integer", shared=24, score=True),
    Case(65, 64, 128, 3, 2, values="integer", routing="unrouted", split="ragged",
         config=Config(weight_grad="fp32")),
    Case(65, 64, 128, 3, 2, values="integer", routing="duplicates", config=Config(save="none")),
)  # fmt: skip


@dataclass(frozen=True)
class Report:
    """What became of one case."""

    case: Case
    failures: list[str]  # sentences; empty if it passed
    worst: testing.Verdict  # over all tensors and ranks
    hash: str  # of the rank-invariant bits
    seconds: float


def check_case(case: Case, ranks: list[int], backend: str = "cpu") -> Report:
    """Runs a case with every number of ranks."""
    start = time.monotonic()
    inputs = testing.make_inputs(case)
    exact = testing.run_reference(inputs, case, reference.EXACT)
    twin = testing.run_reference(inputs, case, reference.TWIN)
    given = inputs.to(devices.DEVICES[backend])
    failures: list[str] = []
    worst = testing.Verdict("", 0.0, 1.0)
    first = None
    for num_ranks in ranks:
        try:
            with Group.local(num_ranks) as group:
                got = testing.run_layer(given, group, case)
                got = {name: tensor.cpu() for name, tensor in got.items()}
                group.check()
            for verdict in testing.judge_all(got, twin, exact):
                worst = max(worst, verdict, key=lambda v: v.share)
            testing.assert_close(got, twin, exact)
            if case.values == "integer":
                _assert_exact(got, exact)
            first = first or got
            testing.assert_same_bits(got, first, testing.RANK_INVARIANT)
        except (AssertionError, ValueError, TypeError, RuntimeError) as error:
            failures.append(f"R={num_ranks}: {error}")
    bits = testing.hash_bits(first[n] for n in testing.RANK_INVARIANT) if first else "-"
    return Report(case, failures, worst, bits, time.monotonic() - start)


def _assert_exact(got: dict, exact: dict) -> None:
    for name, tensor in got.items():
        wanted = testing.nearest_integers(exact[name]).to(tensor.dtype)
        if not torch.equal(tensor, wanted):
            raise AssertionError(f"{name}: exact integers wanted, other values given")


def _print_report(report: Report, ranks: list[int], as_json: bool) -> None:
    if as_json:
        print(
            json.dumps(
                {
                    "case": report.case.name,
                    "passed": not report.failures,
                    "tensor": report.worst.name,
                    "error": report.worst.error,
                    "allowed": report.worst.allowed,
                    "hash": report.hash,
                    "ranks": ranks,
                    "failures": report.failures,
                    "seconds": round(report.seconds, 3),
                }
            ),
            flush=True,
        )
        return
    verdict = "FAIL" if report.failures else "pass"
    worst = report.worst
    print(
        f"{verdict}  {worst.error:7.1e} of {worst.allowed:7.1e}  {worst.name:<14} "
        f"{report.hash:<16}  {report.case.name}",
        flush=True,
    )
    for failure in report.failures:
        print(f"      {failure}")


def rank_list(text: str) -> list[int]:
    """Numbers of ranks from `R,R,...`."""
    return [int(part) for part in text.split(",")]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--backend", help="one of this machine's backends, by its name or its device's (cuda, cpu)"
    )
    parser.add_argument(
        "--ranks",
        type=rank_list,
        default=[1, 2, 3, 5, 8],
        metavar="R,R,...",
        help="numbers of local ranks; default 1,2,3,5,8",
    )
    parser.add_argument(
        "--case", action="append", metavar="NAME", help="only cases of this name (may be repeated)"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object a line")


def run(args: argparse.Namespace) -> int:
    backend = devices.backend_named(args.backend)
    if backend is None:
        print(
            f"--backend: one of {', '.join(functional.backends())} wanted, {args.backend} given; "
            "run `python -m monomoe doctor`",
            file=sys.stderr,
        )
        return 1
    if args.backend is not None:
        os.environ["MONOMOE_BACKEND"] = backend
    chosen = [case for case in CASES if args.case is None or case.name in args.case]
    unknown = set(args.case or ()) - {case.name for case in chosen}
    if unknown:
        print(
            f"--case: names of the list wanted, {', '.join(sorted(unknown))} given; "
            "run without --case to see them",
            file=sys.stderr,
        )
        return 1

    torch.set_num_threads(1)  # the reference's matrices are small
    failed = 0
    if not args.json:
        print(f"backend {backend}, ranks {','.join(map(str, args.ranks))}")
        print("      error   of allowed   in             hash              case")
    with Progress(len(chosen), quiet=True) as progress:
        for case in chosen:
            report = check_case(case, args.ranks, backend)
            failed += bool(report.failures)
            progress.clear()
            _print_report(report, args.ranks, args.json)
            progress.advance(case.name)
    if not args.json:
        print(f"{len(chosen) - failed} passed, {failed} failed")
    return 1 if failed else 0
