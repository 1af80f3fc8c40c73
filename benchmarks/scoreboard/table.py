"""Table of the records, as JSON and as Markdown."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from typing import Any

from scoreboard.published import published
from scoreboard.records import Found, Record


def row(record: Record) -> dict[str, Any]:
    """Return one line of the table; shares in %, unknown values None."""
    found = record.found
    facts = found.model_dump() if found else dict.fromkeys(Found.model_fields)
    return {
        "instance": record.instance,
        "ops": record.ops,
        "order": record.order,
        "budget_percent": record.percent,
        "budget": record.budget,
        "status": status(record),
        "cost": facts["cost"],
        "overhead_percent": record.overhead(facts["cost"]),
        "bound": record.bound,
        "bound_percent": record.overhead(record.bound),
        "bound_kind": record.bound_kind,
        "bound_scope": f"{'any' if record.bound_order == 'free' else 'fixed'} order, any number of computes",
        "gap_percent": None if record.gap is None else 100 * record.gap,
        "peak_percent": 100 * found.peak / record.reference_peak if found else None,
        "method": facts["method"],
        "seconds": facts["seconds"],
        "limit_seconds": facts["limit"],
        "seed": facts["seed"],
        "published": [
            {"who": who, "overhead_percent": overhead, "seconds": seconds, "remark": remark.strip(" ()")}
            for who, overhead, seconds, remark in published(record.instance, record.order, record.percent)
        ],
    }


def status(record: Record) -> str:
    """Return ``optimal``, ``feasible``, ``infeasible`` or ``unknown``."""
    if record.bound is None:
        return "infeasible"
    if record.found is None:
        return "unknown"
    return "optimal" if record.closed else "feasible"


def to_json(records: Sequence[Record]) -> str:
    """Return the text of the JSON table."""
    return json.dumps([row(record) for record in records], indent=1, allow_nan=False) + "\n"


HEAD = ("budget", "order", "overhead %", "bound %", "gap %", "peak %", "found by", "s", "bound by", "published %")
LEFT = {"order", "found by", "bound by", "published %"}


def to_markdown(records: Sequence[Record]) -> str:
    """Return the text of the Markdown table: one section per instance, and totals."""
    lines = ["# Scoreboard", "", *_summary(records), ""]
    for name in dict.fromkeys(record.instance for record in records):
        mine = [record for record in records if record.instance == name]
        lines += [f"## {name}", "", f"{mine[0].ops:,} ops, reference peak {mine[0].reference_peak:,} bytes", ""]
        rules = ["---" if word in LEFT else "---:" for word in HEAD]
        lines += ["| " + " | ".join(HEAD) + " |", "|" + "|".join(rules) + "|"]
        lines += ["| " + " | ".join(_cells(row(record))) + " |" for record in mine]
        lines += [""]
    return "\n".join(lines)


def _summary(records: Sequence[Record]) -> list[str]:
    counts = Counter(map(status, records))
    words = ", ".join(f"{counts[word]} {word}" for word in ("optimal", "feasible", "infeasible", "unknown"))
    finders = Counter(record.found.method for record in records if record.found is not None)
    return [
        f"{len(records)} questions: {words}. Written by `benchmarks/scoreboard.py`; do not edit.",
        "",
        f"Best schedules found by: {', '.join(f'{name} {number}' for name, number in finders.most_common())}.",
        "",
        "Overhead and bound in % of computing each op once, peak in % of the reference peak; **bold**: proved optimal "
        "for that order rule, with any number of computes. `s`: when it was found, in its run of one thread.",
    ]


def _cells(line: dict[str, Any]) -> list[str]:
    """Return the cells of a line of :func:`row`."""

    def number(key: str, form: str) -> str:
        return "" if line[key] is None else f"{line[key]:{form}}"

    over = number("overhead_percent", ".4f")
    special = {"infeasible": "infeasible", "unknown": "?", "optimal": f"**{over}**"}
    wider = line["order"] == "fixed" and line["bound_scope"].startswith("any")
    return [
        f"{line['budget_percent']}", line["order"], special.get(line["status"], over), number("bound_percent", ".4f"),
        number("gap_percent", ".3f"), number("peak_percent", ".2f"), line["method"] or "", number("seconds", "g"),
        line["bound_kind"].removeprefix("the ") + " (any order)" * wider,
        ", ".join(map(str, published(line["instance"], line["order"], line["budget_percent"]))),
    ]  # fmt: skip
