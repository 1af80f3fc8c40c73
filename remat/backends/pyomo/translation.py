"""Translation of a lowered model into a Pyomo model or a file."""

from __future__ import annotations

import io
import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyomo.environ as pyo
from pyomo.core.expr.numeric_expr import LinearExpression
from pyomo.opt import ProblemFormat

from remat.errors import BackendError, FormatError, ModelError
from remat.modeling import Model, PlainLinear, lower
from remat.modeling.matrix import Matrix, to_matrix
from remat.runtime.deadline import Deadline

FORMATS = {".lp": ProblemFormat.cpxlp, ".mps": ProblemFormat.mps, ".nl": ProblemFormat.nl}


def to_pyomo(matrix: Matrix, offset: bool = False, deadline: Deadline | None = None) -> tuple[Any, list[Any]]:
    """Return a concrete Pyomo model, and its variables in the order of the columns.

    Rows are `LinearExpression` objects made from lists, Pyomo's fastest way (25 µs per row; 60 µs including writing an
    LP file): operators on variables take ten times as long. Rows without coefficients are omitted, so the caller must
    check that they hold.

    With `offset`, the objective includes its constant. Raise OverdueError if the deadline passes.
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
        constant=matrix.offset if offset else 0.0,
        linear_coefs=matrix.cost[used].tolist(),
        linear_vars=[x[j] for j in used],
    )
    model.cost = pyo.Objective(expr=cost)
    return model, x


def impossible_row(matrix: Matrix) -> bool:
    """Return whether a row without coefficients excludes 0, so that there is no solution."""
    empty = np.diff(matrix.indptr) == 0
    return bool(((matrix.row_lower > 0) | (matrix.row_upper < 0))[empty].any())


def write(model: Model, path: Path) -> None:
    """See :func:`remat.backends.pyomo.backend.export`."""
    kind = FORMATS.get(path.suffix.lower())
    if kind is None:
        raise BackendError(f"{path}: the suffix must be one of {', '.join(FORMATS)}", "suffix")
    matrix = to_matrix(lower(model, {PlainLinear}).model)
    if impossible_row(matrix):
        raise ModelError(f"model {model.name!r} has a row without coefficients that cannot hold", "impossible-row")
    built, _ = to_pyomo(matrix, offset=True)
    options = {} if kind == ProblemFormat.nl else {"labeler": _label}
    part = ""
    try:
        handle, part = tempfile.mkstemp(dir=path.parent, prefix=".remat.", suffix=path.suffix)
        os.close(handle)
        built.write(part, format=kind, io_options=options)
        Path(part).replace(path)
    except OSError as error:
        raise FormatError(f"{path}: cannot be written: {error.strerror}", "unwritable") from None
    finally:
        if part:
            Path(part).unlink(missing_ok=True)


def _label(part: Any) -> str:
    """Return ``x0``, ``r0`` or ``cost``: a name without user-defined parts."""
    index = part.index()
    return part.parent_component().local_name + ("" if index is None else str(index))


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
