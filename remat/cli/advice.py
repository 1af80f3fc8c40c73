"""Remedies for mistakes on the command line that the parser cannot name."""

from __future__ import annotations

import re

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
