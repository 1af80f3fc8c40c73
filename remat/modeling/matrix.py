"""Sparse matrix of a linear model, in the form of linear solvers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from remat.errors import ModelError
from remat.modeling.bridges import PlainLinear, kind_of
from remat.modeling.model import Kind, Model
from remat.modeling.records import Linear
from remat.modeling.rows import coefficients
from remat.runtime.arrays import Float, Int32
from remat.runtime.deadline import Deadline


@dataclass(frozen=True, eq=False)
class Matrix:
    """Linear model: minimise ``offset + cost x`` within row bounds on ``A x`` and bounds on ``x``, some x integer.

    Attributes
    ----------
    indptr, indices : int32 arrays, shapes (rows + 1,) and (non-zeros,)
        A by rows; columns ascend strictly within a row.
    values : float64 array, shape (non-zeros,)
    row_lower, row_upper : float64 arrays, shape (rows,)
    lower, upper : float64 arrays, shape (columns,)
    integral : int32 array, shape (columns,)
        1 for integer variables, 0 for continuous and implied ones.
    cost : float64 array, shape (columns,)
    offset : float
    """

    indptr: Int32
    indices: Int32
    values: Float
    row_lower: Float
    row_upper: Float
    lower: Float
    upper: Float
    integral: Int32
    cost: Float
    offset: float

    @property
    def impossible_row(self) -> bool:
        """True if a row without coefficients excludes 0, so that there is no solution."""
        empty = np.diff(self.indptr) == 0
        return bool(((self.row_lower > 0) | (self.row_upper < 0))[empty].any())

    @property
    def shape(self) -> tuple[int, int]:
        """Number of rows and columns."""
        return len(self.row_lower), len(self.lower)


def to_matrix(model: Model, deadline: Deadline | None = None) -> Matrix:
    """Return `model` as a matrix; values of repeated pairs are added up.

    Raises
    ------
    ModelError
        If a record is not linear without literals, or the matrix has 2^31 non-zeros or more.
    OverdueError
        If the deadline passes; it is checked between records.

    Examples
    --------
    >>> from remat.modeling import Linear, Model
    >>> m = Model("knapsack")
    >>> take = m.booleans("take", 3)
    >>> m.add(Linear.rows("weight", [0, 0, 0, 0], [0, 2, 1, 2], [4, 1, 3, 1], upper=6))
    >>> matrix = to_matrix(m)
    >>> matrix.indptr, matrix.indices, matrix.values
    (array([0, 3], dtype=int32), array([0, 1, 2], dtype=int32), array([4., 3., 2.]))
    """
    rows: list[Linear] = []
    for record in model.records:
        if kind_of(record) is not PlainLinear or not isinstance(record, Linear):
            raise ModelError(
                f"record {record.name!r} of model {model.name!r} is not linear: lower the model first", "not-linear"
            )
        rows.append(record)
    if sum(len(record.value) for record in rows) >= 2**31:
        raise ModelError(f"model {model.name!r} has 2^31 non-zeros or more, too many for a linear solver")
    # record by record, so that temporary memory has the size of one record
    clock = deadline or Deadline()
    counts, indices, parts = [np.zeros(1, dtype=np.int64)], [np.zeros(0, dtype=np.int32)], [np.zeros(0)]
    for record in clock.each(rows, 1):
        row, column, value = coefficients(record, model.num_vars)
        counts.append(np.bincount(row, minlength=len(record)))
        indices.append(column.astype(np.int32))
        parts.append(value)
    clock.check()
    indptr = np.cumsum(np.concatenate(counts)).astype(np.int32)
    columns = np.concatenate(indices)
    clock.check()
    values = np.concatenate(parts)
    clock.check()
    integral = np.isin(model.kind, [Kind.INTEGER.value, Kind.BOOLEAN.value]).astype(np.int32)
    clock.check()
    cost = np.bincount(model.objective.index, model.objective.coefficient, minlength=model.num_vars)
    return Matrix(
        indptr=indptr,
        indices=columns,
        values=values,
        row_lower=np.concatenate([np.zeros(0)] + [record.lower for record in rows]),
        row_upper=np.concatenate([np.zeros(0)] + [record.upper for record in rows]),
        lower=model.lower,
        upper=model.upper,
        integral=integral,
        cost=cost.astype(np.float64),
        offset=model.objective.constant,
    )
