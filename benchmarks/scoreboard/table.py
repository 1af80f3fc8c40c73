"""The table: what the records say, as JSON for programs and as Markdown for people."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from typing import Any

from scoreboard.published import published
from scoreboard.records import Record


def row(record: Record) -> dict[str, Any]:
    """One line of the table; shares in %, unknown values None."""
    found, cell = record.found, record.cell
    return {
        "instance": cell.instance,
        "ops": record.ops,
        "order": cell.order,
        "budget_percent": cell.percent,
        "budget": record.budget,
        "status": status(record),
        "cost": None if found is None else found.cost,
        "overhead_percent": None if found is None else record.overhead(found.cost),
        "bound": record.bound,
        "bound_percent": record.overhead(record.bound),
        "bound_kind": record.bound_kind,
        "bound_scope": f"{'any' if record.bound_order == 'free' else 'fixed'} order, any number of computes",
        "gap_percent": None if record.gap is None else 100 * record.gap,
        "peak_percent": None if found is None else 100 * found.peak / record.reference_peak,
        "method": None if found is None else found.method,
        "seconds": None if found is None else found.seconds,
        "limit_seconds": None if found is None else found.limit,
        "seed": None if found is None else found.seed,
        "published": [
            {
                "who": one.who,
                "overhead_percent": one.overhead,
                "seconds": one.seconds,
                "remark": one.remark.strip(" ()"),
            }
            for one in published(cell.instance, cell.order, cell.percent)
        ],
    }


def status(record: Record) -> str:
    """``optimal``, ``feasible``, ``infeasible`` or ``unknown``."""
    if record.bound is None:
        return "infeasible"
    if record.found is None:
        return "unknown"
    return "optimal" if record.closed else "feasible"


def to_json(records: Sequence[Record]) -> str:
    """The text of the JSON table."""
    return json.dumps([row(record) for record in records], indent=1, allow_nan=False) + "\n"


HEAD = ("budget", "order", "overhead %", "bound %", "gap %", "peak %", "found by", "s", "bound by", "published %")
LEFT = {"order", "found by", "bound by", "published %"}


def to_markdown(records: Sequence[Record]) -> str:
    """The text of the Markdown table: one section for each instance, and totals."""
    lines = ["# Scoreboard", "", *_summary(records), ""]
    names = list(dict.fromkeys(record.cell.instance for record in records))
    for name in names:
        mine = [record for record in records if record.cell.instance == name]
        lines += [f"## {name}", "", f"{mine[0].ops:,} ops, reference peak {mine[0].reference_peak:,} bytes", ""]
        lines += ["| " + " | ".join(HEAD) + " |"]
        lines += ["|" + "|".join("---" if word in LEFT else "---:" for word in HEAD) + "|"]
        lines += ["| " + " | ".join(_cells(record)) + " |" for record in mine]
        lines += [""]
    return "\n".join(lines)


def _summary(records: Sequence[Record]) -> list[str]:
    counts = dict.fromkeys(("optimal", "feasible", "infeasible", "unknown"), 0)
    for record in records:
        counts[status(record)] += 1
    told = ", ".join(f"{number} {word}" for word, number in counts.items())
    finders = Counter(record.found.method for record in records if record.found is not None)
    return [
        f"{len(records)} questions: {told}. Written by `benchmarks/scoreboard.py`; do not edit.",
        "",
        f"Best schedules found by: {', '.join(f'{name} {number}' for name, number in finders.most_common())}.",
        "",
        "Overhead and bound in % of computing each op once, peak in % of the reference peak; **bold**: proved optimal "
        "for that order rule, with any number of computes. `s`: when it was found, in its run of one thread.",
    ]


def _cells(record: Record) -> list[str]:
    found = record.found
    over = _share(record.overhead(None if found is None else found.cost))
    if record.bound is None:
        over = "infeasible"
    elif found is None:
        over = "?"
    elif record.closed:
        over = f"**{over}**"
    kind = record.bound_kind.removeprefix("the ")
    return [
        f"{record.cell.percent}",
        record.cell.order,
        over,
        _share(record.overhead(record.bound)),
        "" if record.gap is None else f"{100 * record.gap:.3f}",
        "" if found is None else f"{100 * found.peak / record.reference_peak:.2f}",
        "" if found is None else found.method,
        "" if found is None or found.seconds is None else f"{found.seconds:g}",
        kind + (" (any order)" if record.cell.order == "fixed" and record.bound_order == "free" else ""),
        ", ".join(map(str, published(record.cell.instance, record.cell.order, record.cell.percent))),
    ]


def _share(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}"
