"""Words for the cells of a study."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from remat.studies.running import Event

#: Longest time of cells of which one has no time limit.
UNLIMITED = "at most: unlimited, since a cell has no time limit"


def event_words(event: Event) -> tuple[str, str, str]:
    """Return the number of finished cells, the last one with its result, and the time that is left or ""."""
    row = event.outcome.row
    overhead = row.get("overhead_percent")
    shown = "" if overhead is None else f", {overhead:.4g} %"
    why = f": {row['message']}" if row["status"] == "failed" else ""
    seconds = row.get("total_seconds") or 0.0
    left = "" if event.seconds_left is None or event.done == event.total else f"{time_text(event.seconds_left)} left"
    cell = f"{event.cell.title}: {row['status']}{shown} ({seconds:.1f} s){why}"
    return f"[{event.done}/{event.total}]", cell, left


def time_text(seconds: float) -> str:
    """Return a time in the largest unit that gives at least 2.

    Examples
    --------
    >>> time_text(90), time_text(7300), time_text(300000)
    ('90 s', '2.0 h', '3.5 days')
    """
    for unit, length in (("days", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.1f} {unit}"
    return f"{seconds:.0f} s"
