"""Tables and verdicts from records alone."""

from __future__ import annotations

from collections.abc import Iterable

from . import targets
from .record import PASSES, Record

_MARK = {"aim": "aim reached", "done": "done", "short": "SHORT"}


def line(r: Record) -> str:
    """One measurement."""
    ms, kind = r.ms, targets.kind(r)
    name = r.system + (f" R={r.ranks}" if r.ranks > 1 else "") + (f" {kind}" if kind else "")
    spread = f"{ms['p25']:.3f}-{ms['p75']:.3f}"
    ratio = "-" if r.dense_ratio is None else f"{r.dense_ratio:.3f}"
    sched = "-" if r.sched_ms is None else f"{r.sched_ms * 1e3:.0f}"
    launches = "-" if not r.launches else "+".join(map(str, r.launches.values()))
    return (
        f"{r.case:<15} {r.pass_:<6} {name:<32} {ms['p50']:9.3f} {spread:>17} {r.tflops:7.1f} "
        f"{ratio:>6} {sched:>6} {launches:>9} {_mib(r.peak_bytes):>7} {_mib(r.kept_bytes):>7}"
    )


HEADER = (
    f"{'case':<15} {'pass':<6} {'system':<32} {'ms':>9} {'quartiles':>17} {'TFLOP/s':>7} "
    f"{'ratio':>6} {'sched':>6} {'launches':>9} {'peak':>7} {'kept':>7}   (sched us, memory MiB)"
)


def _mib(count: int | None) -> str:
    return "-" if count is None else f"{count / 2**20:.0f}"


def ratios(records: Iterable[Record], pass_: str, accumulate: bool = False) -> str:
    """Time of dense / time of the system: a row a case, a column a system. May be empty."""
    cells: dict[str, dict[str, str]] = {}
    columns: dict[str, None] = {}
    for r in records:
        wanted = "weight_grads=accumulate" if accumulate else ""
        if r.pass_ != pass_ or r.system == "dense" or targets.kind(r) != wanted:
            continue
        column = r.system + (f" R={r.ranks}" if r.ranks > 1 else "")
        columns[column] = None
        ratio = "-" if r.dense_ratio is None else f"{r.dense_ratio:.3f}"
        cells.setdefault(r.case, {})[column] = ratio
    if not cells:
        return ""
    widths = {column: max(len(column), 6) for column in columns}
    rows = [f"{'':<15}" + "".join(f"  {column:>{widths[column]}}" for column in columns)]
    for case, row in cells.items():
        given = (f"  {row.get(column, '-'):>{widths[column]}}" for column in columns)
        rows.append(f"{case:<15}" + "".join(given))
    title = f"{pass_}, gradients added to fp32" if accumulate else pass_
    return f"ratio to dense, {title}\n" + "\n".join(rows) + "\n"


def verdicts(records: Iterable[Record]) -> str:
    """One line a case and pass: what is short of `done at`, or that nothing is."""
    groups: dict[tuple[str, str], list[targets.Gate]] = {}
    for gate in targets.gates(records):
        groups.setdefault((gate.case, gate.pass_), []).append(gate)
    lines = []
    for (case, pass_), gates in groups.items():
        worst = [g for g in gates if g.verdict == "short"]
        state = "short" if worst else "aim" if all(g.verdict == "aim" for g in gates) else "done"
        lines.append(f"{_MARK[state]:<11}  {case} {pass_}: {len(gates)} gates, {len(worst)} short")
        for gate in gates:
            if gate.verdict == "short" or gate.what == "dense ratio":
                lines.append(f"    {_MARK[gate.verdict]:<11}  {_gate(gate)}")
    return "\n".join(lines) + "\n" if lines else ""


def _gate(g: targets.Gate) -> str:
    bound = "at most" if g.lower else "at least"
    aim = "" if g.aim == g.done else f", aim {g.aim:g}"
    return f"{g.what} {g.value:.3f}; {bound} {g.done:g} wanted{aim}"


def summary(records: list[Record]) -> str:
    """Everything that is said last."""
    tables = [ratios(records, pass_) for pass_ in PASSES]
    tables.append(ratios(records, "fwdbwd", accumulate=True))
    return "\n".join(part for part in (*tables, verdicts(records)) if part)
