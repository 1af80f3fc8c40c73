"""Rows of the stage formulation from parts, and their sums."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from remat.formulations.base import Values
from remat.formulations.stages.choices import ONE
from remat.modeling import Linear, Model, Vars

Int = NDArray[np.int64]


def at_most(name: str, parts: list[tuple[Int, Int, int]], num_rows: int, upper: float = 0.0) -> Linear:
    """Rows ``sum of coefficient * x <= upper`` from (row, column, coefficient) parts; columns may be NONE or ONE."""
    limit = np.full(num_rows, upper)
    rows, columns, values = [], [], []
    for row, column, coefficient in parts:
        np.subtract.at(limit, row[column == ONE], coefficient)
        there = column >= 0
        rows.append(row[there])
        columns.append(column[there])
        values.append(np.full(int(there.sum()), float(coefficient)))
    return Linear.rows(
        name, np.concatenate(rows), np.concatenate(columns), np.concatenate(values), upper=limit, num_rows=num_rows
    )


def without(model: Model, name: str, block: Vars, values: Values) -> tuple[Values, Values]:
    """Lower bounds of a record's rows, and what they sum up to without a block; none if there is no such record."""
    for record in model.records:
        if isinstance(record, Linear) and record.name == name:
            other = ~np.isin(record.column, block.index)
            terms = record.value[other] * values[record.column[other]]
            return record.lower, np.bincount(record.row[other], terms, len(record)).astype(np.float64)
    return np.zeros(0), np.zeros(0)
