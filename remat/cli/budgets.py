"""Option for several budgets, with ranges ``LOW:HIGH:STEP``."""

from __future__ import annotations

import re
from collections.abc import Iterable
from decimal import Decimal, InvalidOperation
from typing import Annotated

import typer

from remat.cli.options import words
from remat.errors import ProblemError

Budgets = Annotated[
    list[str] | None,
    typer.Option(
        "--budgets", "-b", metavar="BUDGET[,BUDGET...]",
        help="Budgets (90%,80% or 10GiB); separate by commas or repeat; LOW:HIGH:STEP is a range (50%:95%:5%).",
    ),
]  # fmt: skip

#: Most budgets of a range.
MAX_STEPS = 1000
_RANGE = re.compile(r"([0-9.]+)\s*([A-Za-z%]*):([0-9.]+)\s*([A-Za-z%]*):([0-9.]+)\s*([A-Za-z%]*)", re.ASCII)

#: Ranges that are written otherwise.
_BETWEEN = re.compile(r"([0-9][0-9.]*[A-Za-z%]*?)\s*(?:\.\.+|-|\bto\b)\s*([0-9][0-9.]*[A-Za-z%]*)", re.ASCII)


def read_budgets(given: Iterable[str] | None) -> list[str]:
    """Return the budgets of the option; raise ProblemError for a range that :func:`budgets_of` refuses."""
    return [budget for word in words(given) for budget in budgets_of(word)]


def budgets_of(text: str) -> list[str]:
    """Return one budget, or those of a range ``LOW:HIGH:STEP``, whose unit may follow the last number only.

    Raise ProblemError for a range with several units, without end, or with too many budgets.

    Examples
    --------
    >>> budgets_of("80%"), budgets_of("50%:60%:5%"), budgets_of("1:2:0.5GiB")
    (['80%'], ['50%', '55%', '60%'], ['1GiB', '1.5GiB', '2GiB'])
    """
    text = text.strip()
    if ":" not in text:
        if between := _BETWEEN.fullmatch(text):
            low, high = between.groups()
            raise ProblemError(f"budgets {text[:60]!r}: write {low},{high}, or a range with its step ({low}:{high}:5%)")
        return [text]
    match = _RANGE.fullmatch(text)
    try:
        if match is None:
            raise ValueError
        low, high, step = (Decimal(match[number]) for number in (1, 3, 5))
        units = {match[number] for number in (2, 4, 6)} - {""}
    except (ValueError, InvalidOperation):
        raise ProblemError(f"budgets {text[:60]!r} are not LOW:HIGH:STEP (50%:95%:5%)") from None
    if len(units) > 1:
        raise ProblemError(f"budgets {text[:60]!r} have several units; write one of them (1GiB:4GiB:1GiB)")
    if step <= 0 or high < low:
        raise ProblemError(
            f"budgets {text[:60]!r} are an empty range: LOW must not exceed HIGH, and STEP must be above 0"
        )
    if (high - low) / step > MAX_STEPS:
        raise ProblemError(f"budgets {text[:60]!r} are more than {MAX_STEPS:,}; write a larger STEP")
    unit = units.pop() if units else ""
    return [f"{(low + number * step).normalize():f}{unit}" for number in range(int((high - low) / step) + 1)]
