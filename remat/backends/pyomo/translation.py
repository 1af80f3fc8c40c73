"""Translation of a lowered model into a Pyomo model."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pyomo.environ as pyo
from pyomo.core.expr.numeric_expr import LinearExpression

from remat.modeling.matrix import Matrix
from remat.runtime.deadline import Deadline


def to_pyomo(matrix: Matrix, deadline: Deadline | None = None) -> tuple[Any, list[Any]]:
    """Return a concrete Pyomo model, and its variables in the order of the columns.

    Rows are `LinearExpression` objects made from lists, Pyomo's fastest way (25 µs per row; 60 µs including writing an
    LP file): operators on variables take ten times as long. Rows without coefficients are omitted, so the caller must
    check that they hold.

    The objective is without its constant. Raise OverdueError if the deadline passes.
    """
    clock = deadline or Deadline()
    columns = matrix.shape[1]
    low = [None if value == -np.inf else value for value in matrix.lower.tolist()]
    high = [None if value == np.inf else value for value in matrix.upper.tolist()]
    integral = matrix.integral.tolist()
    model = pyo.ConcreteModel()
    model.x = pyo.Var(
        clock.each(range(columns)),
        bounds=lambda _, j: (low[j], high[j]),
        domain=lambda _, j: pyo.Integers if integral[j] else pyo.Reals,
    )
    x = list(model.x.values())
    model.r = pyo.Constraint(range(matrix.shape[0]))
    ends, indices, values = matrix.indptr.tolist(), matrix.indices.tolist(), matrix.values.tolist()
    bounds = zip(matrix.row_lower.tolist(), matrix.row_upper.tolist(), strict=True)
    for i, (least, most) in enumerate(clock.each(bounds)):
        first, last = ends[i], ends[i + 1]
        if first == last or (least == -np.inf and most == np.inf):
            continue
        row = LinearExpression(linear_coefs=values[first:last], linear_vars=[x[j] for j in indices[first:last]])
        if least == most:
            model.r.add(i, (row, most))
        else:
            model.r.add(i, (None if least == -np.inf else least, row, None if most == np.inf else most))
    used = np.flatnonzero(matrix.cost).tolist()
    cost = LinearExpression(
        linear_coefs=matrix.cost[used].tolist(),
        linear_vars=[x[j] for j in used],
    )
    model.cost = pyo.Objective(expr=cost)
    return model, x


class Lines(io.TextIOBase):
    """Text stream that passes on whole lines and stores them."""

    def __init__(self, take: Any) -> None:
        self._take, self._rest, self.seen = take, "", [""]

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        *lines, self._rest = (self._rest + text).split("\n")
        for line in lines:
            self.seen.append(line)
            if self._take:
                self._take(line)
        return len(text)
