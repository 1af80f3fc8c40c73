"""Remedies for mistakes on the command line that the parser cannot name."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

_EXTRA = re.compile(r"Got unexpected extra argument\(s\) \((?P<words>.*)\)")
_BUDGET = re.compile(r"[0-9.,_]+ ?(%|[kmgt]?i?b?)", re.ASCII | re.IGNORECASE)
_TIME = re.compile(r"[0-9.]+ ?(s|m|h)", re.ASCII)


def advice(message: str) -> str:
    """Return the remedy for a usage error, to be added to its message; empty if there is none.

    Examples
    --------
    >>> advice("Got unexpected extra argument(s) (80%)"), advice("Got unexpected extra argument(s) (5m)")
    ('; write --budget 80%', '; write --time-limit 5m')
    """
    found = _EXTRA.fullmatch(message)
    if found is None:
        return ""
    words = found["words"]
    if words == "%":
        return "; write the budget as one word (80%)"
    for option, form in (("--time-limit", _TIME), ("--budget", _BUDGET)):
        if form.fullmatch(words):
            return f"; write {option} {words.replace(' ', '')}"
    return ""


def swapped(arguments: Mapping[str, Any]) -> str:
    """Return the graph that was given in place of a schedule, if a command has them in the wrong order, or else ""."""
    from remat.errors import RematError
    from remat.graphs.formats.base import graph_formats
    from remat.io.files import is_special
    from remat.io.formats import Source
    from remat.schedule.formats.base import schedule_formats

    first = arguments.get("graph") or arguments.get("source")
    others = arguments.get("schedule") or arguments.get("schedules") or ()
    second = others[0] if isinstance(others, list | tuple) and others else others
    if not first or not second or is_special(first) or is_special(second):
        return ""
    try:
        schedule_formats.recognized(Source.of_file(first))
        graph_formats.recognized(Source.of_file(second))
    except RematError:
        return ""
    return str(second)
