"""Measure the layer beside dense GEMMs and what a user would pick instead: docs/bench.md.

Each case is checked against float64 first, then all systems take turns. One JSON line a measurement
is appended to the records. The last lines are tables and verdicts. Exit code 0 if every result was
right and everything that was asked for was measured; being slow is no error.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

PASSES = ("fwd", "fwdbwd")
DEFAULT_MINUTES = 9.0


def names(text: str) -> list[str]:
    """`A,B,...`"""
    return [part.strip() for part in text.split(",") if part.strip()]


def counts(text: str) -> list[int]:
    """Positive numbers from `R,R,...`."""
    numbers = [int(part) for part in names(text)]
    if not numbers or min(numbers) < 1:
        raise argparse.ArgumentTypeError(f"numbers from 1 wanted, {text!r} given; pass 1,2,4,8")
    return numbers


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--cases", type=names, metavar="NAME,...",
                        help="default: all of docs/bench.md; `smoke` is for a CPU")  # fmt: skip
    parser.add_argument("--pass", dest="passes", type=names, metavar="PASS,...",
                        help="fwd, fwdbwd; default both, where backward is served")  # fmt: skip
    parser.add_argument("--systems", type=names, metavar="NAME,...",
                        help="monomoe, dense, torch-eager, torch-compile, sonicmoe, liger; "
                        "default: all that can be imported but liger")  # fmt: skip
    parser.add_argument("--ranks", type=counts, metavar="R,...",
                        help="numbers of virtual ranks; default 1, or 1,2,4,8")  # fmt: skip
    parser.add_argument("--plain", action="store_true",
                        help="no other rings and save modes, no accumulation")  # fmt: skip
    parser.add_argument("--samples", type=int, default=30, help="of each system; default 30")
    parser.add_argument("--minutes", type=float, default=DEFAULT_MINUTES,
                        help=f"no case is started later; default {DEFAULT_MINUTES:g}")  # fmt: skip
    parser.add_argument("--records", metavar="DIR",
                        help="folder to append to; default bench/records where it exists; "
                        "`none`: nothing is written")  # fmt: skip
    parser.add_argument("--commit", help="of what is measured; default: what git says here")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--report", nargs="+", type=Path, metavar="FILE",
                        help="measures nothing: tables and verdicts of these records")  # fmt: skip


class Refused(Exception):
    """A sentence about the command line."""


def run(args: argparse.Namespace) -> int:
    # Streams of virtual ranks must not wait for one another; read when CUDA starts.
    os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")
    try:
        return _report(args.report) if args.report else _measure(args)
    except Refused as error:
        print(error, file=sys.stderr)
        return 1


def _report(paths: list[Path]) -> int:
    from ..bench import record, report

    try:
        records = record.read(paths)
    except (OSError, ValueError) as error:
        raise Refused(str(error)) from None
    print(report.HEADER)
    for r in records:
        print(report.line(r))
    print("\n" + report.summary(records), end="")
    return 0


def _chosen(
    option: str, given: list[str] | None, known: list[str], default: list[str]
) -> list[str]:
    if given is None:
        return default
    unknown = [name for name in given if name not in known]
    if unknown or not given:
        raise Refused(f"{option}: of {', '.join(known)} wanted, {', '.join(unknown) or 'nothing'} "
                      "given; leave it out for the default")  # fmt: skip
    return list(dict.fromkeys(given))


def _folder(given: str | None) -> Path | None:
    if given == "none":
        return None
    folder = Path(given or "bench/records")
    if not folder.is_dir():
        raise Refused(
            f"--records: a folder that exists wanted, {folder} given; make it, or pass none"
        )
    return folder


def _device(name: str):
    import torch

    from ..bench.device import Cuda, Host

    if name == "cpu":
        return Host()
    if not torch.cuda.is_available():
        raise Refused("bench: a GPU that torch can use wanted, none found; `python -m monomoe "
                      "doctor` says more, `make bench` measures the CPU")  # fmt: skip
    return Cuda()


def _measure(args: argparse.Namespace) -> int:
    from ..bench import cases, measure, record, report
    from ..bench.run import DEFAULT_SYSTEMS, SYSTEMS, Options, backward_refusal
    from ..bench.run import run as run_cases

    on_cpu = args.device == "cpu"
    default_cases = ["smoke"] if on_cpu else [case.name for case in cases.CASES]
    chosen_cases = _chosen("--cases", args.cases, list(cases.BY_NAME), default_cases)
    passes = _chosen("--pass", args.passes, list(PASSES), list(PASSES))
    chosen_systems = _chosen("--systems", args.systems, list(SYSTEMS), DEFAULT_SYSTEMS)
    if args.samples < 1:
        raise Refused(f"--samples: 1 or more wanted, {args.samples} given; pass 30")
    folder = _folder(args.records)
    commit = args.commit or record.commit_of(Path.cwd())
    if folder is not None and not commit:
        raise Refused("--commit: of what is measured wanted, git knows none here; pass --commit")
    device = _device(args.device)

    if "fwdbwd" in passes and "monomoe" in chosen_systems:
        refusal = backward_refusal(device)
        if refusal is not None:
            print(f"no fwdbwd: {refusal}")
            if args.passes is not None and passes == ["fwdbwd"]:
                raise Refused("--pass: fwd wanted, the backend refuses backward; pass fwd")
            passes = ["fwd"]
    options = Options(
        cases=[cases.BY_NAME[name] for name in chosen_cases],
        passes=passes,
        systems=chosen_systems,
        ranks=args.ranks,
        variants=not args.plain,
        accumulate=not args.plain,
        protocol=measure.Protocol(args.samples),
        records=folder,
        commit=commit or "none",
        budget_s=60 * args.minutes,
    )
    print(f"{device.chip}, commit {options.commit}, pass {' '.join(passes)}, "
          f"records {folder or 'not written'}")  # fmt: skip
    outcome = run_cases(options, device)

    print("\n" + report.summary(outcome.records), end="")
    for name, why in outcome.absent.items():
        print(f"not measured: {name}: {why}")
    for text in outcome.wrong:
        print(f"WRONG  {text}")
    if outcome.left:
        print(f"no time for: {', '.join(outcome.left)}; pass --minutes or --cases")
    asked_for = set(args.systems or ()) & set(outcome.absent)
    return 1 if outcome.wrong or outcome.left or asked_for else 0
