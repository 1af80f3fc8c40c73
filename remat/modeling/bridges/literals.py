"""Arrays of literals, constants among them, and the rows they make."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from remat.modeling.records import ALWAYS, Linear
from remat.modeling.rows import expand
from remat.runtime.arrays import Float, Int

#: The literal that is never true; used while rows are made, never in a record.
NEVER = ~ALWAYS


def unique_rows(matrix: Int) -> tuple[Int, Int]:
    """The distinct rows of `matrix`, and for each row the number of its like among them."""
    by_row = np.lexsort(matrix.T[::-1])
    ordered = matrix[by_row]
    first = np.ones(len(matrix), dtype=bool)
    first[1:] = (ordered[1:] != ordered[:-1]).any(axis=1)
    inverse = np.empty(len(matrix), dtype=np.int64)
    inverse[by_row] = np.cumsum(first) - 1
    return ordered[first], inverse


def literal_values(literals: Int, values: Float) -> Float:
    """Truth of `literals`, none of them constant, as 0, 1 or NaN (values in between are rounded)."""
    truth = np.rint(values[np.where(literals < 0, ~literals, literals)])
    return np.where(literals < 0, 1 - truth, truth)


def literal_rows(
    name: str,
    row: ArrayLike,
    literal: ArrayLike,
    weight: ArrayLike,
    *,
    lower: ArrayLike = -np.inf,
    upper: ArrayLike = np.inf,
) -> Linear:
    """Rows ``lower <= sum(weight * [literal is true]) <= upper``; constant literals allowed, void rows left out."""
    rows, literals = np.asarray(row, dtype=np.int64), np.asarray(literal, dtype=np.int64)
    weights = np.broadcast_to(np.asarray(weight, dtype=np.float64), rows.shape)
    num_rows = max(np.size(lower), np.size(upper))
    negative = literals < 0
    constant = np.bincount(rows, weights * (negative & (literals != NEVER) | (literals == ALWAYS)), minlength=num_rows)
    low = np.asarray(lower, dtype=np.float64) - constant
    high = np.asarray(upper, dtype=np.float64) - constant
    some = (literals != ALWAYS) & (literals != NEVER)
    keep = (np.bincount(rows[some], minlength=num_rows) > 0) | (low > 0) | (high < 0)  # the rest says 0 = 0
    renumbered = np.cumsum(keep) - 1
    return Linear(
        name,
        renumbered[rows[some]],
        np.where(negative, ~literals, literals)[some],
        np.where(negative, -weights, weights)[some],
        low[keep],
        high[keep],
    )


def literal_differences(name: str, greater: Int, smaller: Int) -> Linear:
    """Return rows ``[greater is true] >= [smaller is true]``, one for each element."""
    row = np.arange(len(greater))
    return literal_rows(
        name, np.concatenate([row, row]), np.concatenate([greater, smaller]), np.repeat([1.0, -1.0], len(row)),
        lower=np.zeros(len(row)),
    )  # fmt: skip


def ranges(start: Int, stop: Int) -> tuple[Int, Int]:
    """For each pair the numbers ``start[i], ..., stop[i] - 1``: (i, number), concatenated; none where stop <= start."""
    owner, rank = expand(np.maximum(stop - start, 0))
    return owner, rank + start[owner]
