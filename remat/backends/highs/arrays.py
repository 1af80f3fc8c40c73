"""Passing of a model's arrays to HiGHS."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from remat.errors import BackendError
from remat.modeling.matrix import Matrix


def pass_model(highspy: Any, solver: Any, matrix: Matrix, integral: NDArray[np.int32], name: str) -> None:
    """Pass `matrix` to HiGHS with these column kinds; takes seconds for a large one.

    Raises
    ------
    BackendError
        If HiGHS rejects the model; names it.
    """
    rows, columns = matrix.shape
    lower, upper, cost = matrix.lower, matrix.upper, matrix.cost
    if not columns:  # HiGHS ignores the rows of a model without columns
        lower = upper = cost = np.zeros(1)
        integral, columns = np.zeros(1, dtype=np.int32), 1
    status = solver.passModel(
        columns, rows, len(matrix.values), int(highspy.MatrixFormat.kRowwise), int(highspy.ObjSense.kMinimize), 0.0,
        cost, lower, upper, matrix.row_lower, matrix.row_upper, matrix.indptr, matrix.indices, matrix.values, integral,
    )  # fmt: skip
    if status == highspy.HighsStatus.kError:
        raise BackendError(f"HiGHS does not take model {name!r}", "model-refused")
