"""The picture of `plan`: the first tickets of each line as boxes, arrows from what raises a counter
to what waits for it. A text of SVG; any browser shows it, and says more where the pointer rests."""

from __future__ import annotations

from html import escape

_LANES = ("move", "main", "combine")  # as work flows: down the picture
_ABOUT = {
    "move": "brings rows",
    "main": "matrix products",
    "combine": "sums up rows",
}
_BOX_W, _BOX_H, _GAP = 132, 46, 16
_LEFT, _TOP, _LANE_H = 128, 92, 176
_COLORS = {
    "stage": "#cfe3f7",
    "dispatch": "#a9cdf0",
    "gate_up": "#c5e8c4",
    "down": "#8fd19a",
    "dgrad_down": "#fbe0b5",
    "dgrad_gate_up": "#f6c17a",
    "wgrad_gate_up": "#e3d0f0",
    "wgrad_down": "#cdb0e4",
    "combine": "#f3efa9",
}
_SHARED = "#e4e4e4"  # all tasks of the shared expert
_ARROWS = {"move": "#3b76b5", "main": "#3d8a48", "combine": "#8a8430"}  # by where they come from


def _x(ticket: int) -> int:
    return _LEFT + ticket * (_BOX_W + _GAP)


def _y(line: str) -> int:
    return _TOP + _LANES.index(line) * _LANE_H


def _key(ref: dict) -> tuple:
    return ref["counter"], ref["rank"], ref["index"]


def _place(task: dict) -> str:
    if task["kind"] == "stage":
        return f"chunk {task['row']}"
    if task["kind"] == "combine":
        return f"tokens, block {task['row']}"
    expert = f"e{task['expert']} " if "expert" in task else ""
    if "row_tiles" in task:
        return f"{expert}gradient {task['row']},{task['col']}"
    part = "part" if task["kind"] == "dispatch" else "column"
    return f"{expert}tile {task['row']} {part} {task['col']}"


def _said(refs: list[dict], value: str) -> str:
    shown = [f"{r['counter']}[{r['index']}] of rank {r['rank']}: {r[value]}" for r in refs]
    return "; ".join(shown) or "nothing"


def _raisers(plan: dict) -> dict[tuple, list[tuple]]:
    """counter -> (line, task, by) of the tasks shown that raise it, in ticket order."""
    found: dict[tuple, list[tuple]] = {}
    for line in plan["lines"]:
        for task in line["tasks"]:
            for ref in task["raises"]:
                found.setdefault(_key(ref), []).append((line["line"], task, ref["by"]))
            for ref in task.get("last_raises", ()):
                # One of the columns of a row tile does it, the last to end: the last one shown.
                known = found.setdefault(_key(ref), [])
                known[:] = [k for k in known if k[1]["row"] != task["row"]]
                known.append((line["line"], task, ref["by"]))
    return found


def _box(line: str, task: dict, pending: list[str]) -> str:
    x, y, kind = _x(task["ticket"]), _y(line), task["kind"]
    color = _COLORS.get(kind, _SHARED)
    tip = (
        f"{line} #{task['ticket']}: {kind}, {_place(task)}\n"
        f"waits for {_said(task['waits'], 'value')}\nraises {_said(task['raises'], 'by')}"
    )
    if "last_raises" in task:
        tip += f"\nits last column raises {_said(task['last_raises'], 'by')}"
    parts = [
        f"<g><title>{escape(tip)}</title>",
        f'<rect x="{x}" y="{y}" width="{_BOX_W}" height="{_BOX_H}" rx="5" fill="{color}" '
        'stroke="#555" stroke-width="0.8"/>',
        f'<text x="{x + _BOX_W / 2}" y="{y + 19}" class="kind">{kind}</text>',
        f'<text x="{x + _BOX_W / 2}" y="{y + 35}" class="place">{_place(task)}</text>',
        f'<text x="{x + 4}" y="{y - 4}" class="ticket">{task["ticket"]}</text>',
    ]
    for n, name in enumerate(pending[:3]):
        parts.append(
            f'<text x="{x + 4}" y="{y + _BOX_H + 12 + 11 * n}" class="ticket">needs {name}</text>'
        )
    return "".join([*parts, "</g>"])


def _arrow(source: tuple, line: str, task: dict, whole: bool) -> str:
    """From the last task shown that raises the counter. Dashed: others raise it too."""
    from_line, raiser, _ = source
    x0, x1 = _x(raiser["ticket"]) + _BOX_W / 2, _x(task["ticket"]) + _BOX_W / 2
    y0, y1 = _y(from_line), _y(line)
    if from_line == line:
        top = y0 - 18 - min(46, abs(x1 - x0) * 0.06)
        path = f"M{x0} {y0} C{x0 + 18} {top} {x1 - 18} {top} {x1 - 8} {y1 - 2}"
    else:
        down = y1 > y0
        y0 += _BOX_H if down else 0
        y1 += -2 if down else _BOX_H + 2
        bend = (y1 - y0) * 0.5
        path = f"M{x0} {y0} C{x0} {y0 + bend} {x1} {y1 - bend} {x1} {y1}"
    dash = "" if whole else ' stroke-dasharray="5 4"'
    color = _ARROWS[from_line]
    return (
        f'<path d="{path}" fill="none" stroke="{color}" stroke-opacity="0.65" '
        f'stroke-width="1.3"{dash} marker-end="url(#{from_line}_head)"/>'
    )


def _legend(plan: dict, y: int) -> list[str]:
    kinds = {task["kind"] for line in plan["lines"] for task in line["tasks"]}
    known = [(kind, color) for kind, color in _COLORS.items() if kind in kinds]
    if any(kind not in _COLORS for kind in kinds):
        known.append(("shared expert", _SHARED))
    parts, x = [], _LEFT
    for kind, color in known:
        parts.append(
            f'<rect x="{x}" y="{y}" width="13" height="13" fill="{color}" stroke="#555" '
            f'stroke-width="0.8"/><text x="{x + 18}" y="{y + 11}" class="note">{kind}</text>'
        )
        x += 34 + 7 * len(kind)
    parts.append(
        f'<text x="{_LEFT}" y="{y + 32}" class="note">An arrow comes from the last task shown that '
        "raises a counter and ends at a task that waits for it. Dashed: tasks that are not shown, "
        "or other ranks, raise it too. needs: nothing shown raises it.</text>"
    )
    return parts


def draw(plan: dict) -> str:
    """SVG of what `functional.describe` gave."""
    shape, raisers = plan["shape"], _raisers(plan)
    boxes, arrows = [], []
    for line in plan["lines"]:
        for task in line["tasks"]:
            pending = []
            for ref in task["waits"]:
                sources = raisers.get(_key(ref), [])
                if not sources:
                    rank = f" of rank {ref['rank']}" if ref["rank"] != plan["rank"] else ""
                    pending.append(f"{ref['counter']}[{ref['index']}]{rank}")
                    continue
                whole = sum(by for *_, by in sources) >= ref["value"]
                arrows.append(_arrow(sources[-1], line["line"], task, whole))
            boxes.append(_box(line["line"], task, pending))
    most = max((len(line["tasks"]) for line in plan["lines"]), default=0)
    width, height = max(_x(most), 900), _TOP + len(_LANES) * _LANE_H + 20
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}">',
        "<style>text{font-family:sans-serif;fill:#222}.kind{font-size:12px;font-weight:bold;"
        "text-anchor:middle}.place{font-size:11px;text-anchor:middle}.ticket{font-size:9px;"
        "fill:#666}.lane{font-size:14px;font-weight:bold}.note{font-size:11px}"
        ".head{font-size:15px;font-weight:bold}</style>",
        "<defs>",
        *(
            f'<marker id="{name}_head" markerWidth="8" markerHeight="8" refX="6" refY="3" '
            f'orient="auto"><path d="M0 0 L7 3 L0 6 z" fill="{color}"/></marker>'
            for name, color in _ARROWS.items()
        ),
        f'</defs><rect width="{width}" height="{height}" fill="white"/>',
        f'<text x="16" y="28" class="head">{plan["pass"]}, rank {plan["rank"]} of {plan["ranks"]}: '
        f"{shape['tokens']} tokens, H {shape['hidden']}, I {shape['intermediate']}, "
        f"E {shape['experts']}, K {shape['top_k']}, shared {shape['shared']}</text>",
    ]
    for line in plan["lines"]:
        name, y = line["line"], _y(line["line"])
        parts += [
            f'<text x="16" y="{y + 18}" class="lane">{name}</text>',
            f'<text x="16" y="{y + 33}" class="note">{_ABOUT[name]}</text>',
            f'<text x="16" y="{y + 47}" class="note">{line["tickets"]} tickets</text>',
        ]
    return "\n".join([*parts, *arrows, *boxes, *_legend(plan, height - 44), "</svg>"]) + "\n"
