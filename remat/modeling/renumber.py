"""Records over other numbers of their variables."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from remat.errors import ModelError
from remat.modeling.records import (
    ALWAYS,
    AllDifferent,
    Clauses,
    Cumulative,
    Domain,
    Int,
    Linear,
    NoOverlap2D,
    Record,
    Reservoir,
)


def renumbered(record: Record, number: Int) -> Record:
    """`record` with variable ``v`` called ``number[v]``.

    Raises
    ------
    ModelError
        If it is of an unknown kind.

    Examples
    --------
    >>> renumbered(Clauses.pairs("either", [3], [~4]), np.array([-1, -1, -1, 0, 1])).literals
    array([ 0, -2])
    """
    match record:
        case Linear():
            enforce = None if record.enforce is None else _literals(record.enforce, number)
            return replace(record, column=number[record.column], enforce=enforce)
        case Clauses():
            return replace(record, literals=_literals(record.literals, number))
        case Domain() | AllDifferent():
            return replace(record, variable=number[record.variable])
        case Cumulative():
            capacity = record.capacity_variable
            return replace(
                record, start=number[record.start], end=number[record.end],
                presence=_literals(record.presence, number),
                capacity_variable=None if capacity is None else int(number[capacity]),
            )  # fmt: skip
        case NoOverlap2D():
            return replace(
                record, first=number[record.first], second=number[record.second],
                presence=_literals(record.presence, number),
            )  # fmt: skip
        case Reservoir():
            return replace(record, time=number[record.time], active=_literals(record.active, number))
    raise ModelError(f"record {record.name!r} is of unknown kind {type(record).__name__}")


def _literals(literals: Int, number: Int) -> Int:
    """The literals by new numbers; the one that is always true stays."""
    constant = literals == ALWAYS
    variable = np.where(constant, 0, np.where(literals < 0, ~literals, literals))
    new = number[variable] if len(number) else variable
    return np.where(constant, ALWAYS, np.where(literals < 0, ~new, new))
