"""Clauses, and rows with enforcement literals, as plain rows."""

from __future__ import annotations

import numpy as np

from remat.modeling.bridges.base import InapplicableError
from remat.modeling.bridges.context import LoweringContext
from remat.modeling.bridges.literals import NEVER, literal_rows
from remat.modeling.records import ALWAYS, Clauses, Linear, Record, variables_of
from remat.modeling.rows import Coefficients, coefficients, expand, pieces
from remat.runtime.arrays import Float

#: Literals rewritten at a time, which takes about 0.2 s.
PIECE = 1_000_000


def clauses_to_linear(record: Clauses, context: LoweringContext) -> list[Record]:
    """State a row for each clause.

    Reformulation
    -------------
    ``l1 or l2 or ...`` becomes ``l1 + l2 + ... >= 1``, with ``1 - v`` for the literal ``~v``. Clauses
    with a true literal are omitted, and so are false literals. Large records become several.

    Source
    ------
    :class:`Clauses`

    Target
    ------
    :class:`Linear`, without literals.
    """
    rows: list[Record] = []
    for part in context.deadline.each(pieces(np.diff(record.indptr), PIECE), 1):
        begin = record.indptr[part]
        ends = record.indptr[part.start + 1 : part.stop + 1]
        literals = context.fold(record.literals[begin[0] : ends[-1]])
        clause, _ = expand(ends - begin)
        satisfied = np.bincount(clause[literals == ALWAYS], minlength=len(begin)) > 0
        renumbered = np.cumsum(~satisfied) - 1
        keep = ~satisfied[clause]
        count = int((~satisfied).sum())
        rows.append(literal_rows(record.name, renumbered[clause[keep]], literals[keep], 1, lower=np.ones(count)))
    return rows


def enforced_to_linear(record: Linear, context: LoweringContext) -> list[Record]:
    """Apply the big-M method, with the smallest M that the variables' bounds allow.

    Reformulation
    -------------
    ``z => a x >= b`` becomes ``a x >= b - (b - m) (1 - z)``, where m is the smallest value of ``a x`` between the
    bounds; likewise from above. Sides that the bounds cannot violate are omitted. A row with a true literal stays as it
    is, and one with a false literal is omitted. A row with two sides that both need a literal becomes two.

    Source
    ------
    :class:`Linear`, with literals.

    Target
    ------
    :class:`Linear`, without literals.
    """
    assert record.enforce is not None
    found = coefficients(record, context.model.num_vars)
    smallest, largest = _activity(found, len(record), context)
    low_open = np.isfinite(record.lower) & ~np.isfinite(smallest)
    high_open = np.isfinite(record.upper) & ~np.isfinite(largest)
    if ((record.enforce != ALWAYS) & (low_open | high_open)).any():
        raise InapplicableError("rows that the bounds of their variables bound")
    literal = context.fold(record.enforce)
    always = literal == ALWAYS
    open_ = ~always & (literal != NEVER)
    below = np.flatnonzero(open_ & (smallest < record.lower))
    above = np.flatnonzero(open_ & (largest > record.upper))
    kept = np.flatnonzero(always)
    result: list[Record] = []
    if len(kept):
        result.append(Linear(record.name, *found.of_rows(kept), record.lower[kept], record.upper[kept]))
    for rows, bound, extreme in ((below, record.lower, smallest), (above, record.upper, largest)):
        if len(rows):
            # a x + (extreme - bound) z >= extreme (from above: <=); for ~v, z = 1 - v
            slack = extreme[rows] - bound[rows]
            negative = literal[rows] < 0
            side = extreme[rows] - np.where(negative, slack, 0.0)
            row, column, value = found.of_rows(rows)
            result.append(
                Linear(
                    record.name,
                    np.concatenate([row, np.arange(len(rows))]),
                    np.concatenate([column, variables_of(literal[rows])]),
                    np.concatenate([value, np.where(negative, -slack, slack)]),
                    side if rows is below else np.full(len(rows), -np.inf),
                    side if rows is above else np.full(len(rows), np.inf),
                )
            )
    return result


def _activity(found: Coefficients, num_rows: int, context: LoweringContext) -> tuple[Float, Float]:
    """Return the smallest and largest value of each row within the bounds of the variables."""
    low, high = context.model.lower[found.column], context.model.upper[found.column]
    up = found.value > 0
    smallest = np.bincount(found.row, found.value * np.where(up, low, high), minlength=num_rows)
    largest = np.bincount(found.row, found.value * np.where(up, high, low), minlength=num_rows)
    return smallest.astype(np.float64), largest.astype(np.float64)
