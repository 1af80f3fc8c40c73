"""Arrays of literals, constants among them, and the rows they make."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from remat.modeling.records import ALWAYS, Linear

Int = NDArray[np.int64]
Float = NDArray[np.float64]

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
    num_rows: int | None = None,
) -> Linear:
    """Rows ``lower <= sum(weight * [literal is true]) <= upper``; constant literals allowed, void rows left out."""
    rows, literals = np.asarray(row, dtype=np.int64), np.asarray(literal, dtype=np.int64)
    weights = np.broadcast_to(np.asarray(weight, dtype=np.float64), rows.shape)
    if num_rows is None:
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


def ranges(start: Int, stop: Int) -> tuple[Int, Int]:
    """For each pair the numbers ``start[i], ..., stop[i] - 1``: (i, number), concatenated; none where stop <= start."""
    count = np.maximum(stop - start, 0)
    owner = np.repeat(np.arange(len(start)), count)
    begins = np.cumsum(count) - count
    return owner, np.arange(len(owner)) - begins[owner] + start[owner]
