"""Arrays of literals, including constants, and rows over them."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from remat.modeling.records import ALWAYS, Linear
from remat.modeling.rows import NONE, ONE, expand, rows_from
from remat.runtime.arrays import Float, Int

#: The literal that is never true; used while rows are built, never in a record.
NEVER = ~ALWAYS


def literal_values(literals: Int, values: Float) -> Float:
    """Return the truth of non-constant `literals` as 0, 1 or NaN (values in between are rounded)."""
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
    """Return rows ``lower <= sum(weight * [literal is true]) <= upper``, without rows of constants that hold."""
    rows, literals = np.asarray(row, dtype=np.int64), np.asarray(literal, dtype=np.int64)
    weights = np.broadcast_to(np.asarray(weight, dtype=np.float64), rows.shape)
    num_rows = np.broadcast(lower, upper).size
    negative = literals < 0  # these contribute 1 - v
    column = np.where(
        literals == ALWAYS, ONE, np.where(literals == NEVER, NONE, np.where(negative, ~literals, literals))
    )
    one = negative & (literals != NEVER)
    whole = rows_from(name, (rows[one], ONE, weights[one]), (rows, column, np.where(negative, -weights, weights)),
                      num_rows=num_rows, lower=lower, upper=upper)  # fmt: skip
    keep = (np.bincount(whole.row, minlength=num_rows) > 0) | (whole.lower > 0) | (whole.upper < 0)  # the rest: 0 = 0
    number = np.cumsum(keep) - 1
    return Linear(name, number[whole.row], whole.column, whole.value, whole.lower[keep], whole.upper[keep])


def literal_differences(name: str, greater: Int, smaller: Int) -> Linear:
    """Return rows ``[greater is true] >= [smaller is true]``, one for each element."""
    row = np.arange(len(greater))
    return literal_rows(
        name, np.concatenate([row, row]), np.concatenate([greater, smaller]), np.repeat([1.0, -1.0], len(row)),
        lower=np.zeros(len(row)),
    )  # fmt: skip


def ranges(start: Int, stop: Int) -> tuple[Int, Int]:
    """Return, for each pair, the numbers ``start[i], ..., stop[i] - 1`` as concatenated (i, number)."""
    owner, rank = expand(np.maximum(stop - start, 0))
    return owner, rank + start[owner]
