"""Rows that retention intervals state again and again."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from remat.modeling import Linear

Int = NDArray[np.int64]


def at_least(
    name: str, greater: Int, smaller: Int, distance: int, enforce: Int | None, *, exact: bool = False
) -> Linear:
    """Rows ``greater − smaller >= distance`` (or ``==``), one for each element."""
    count = len(greater)
    row = np.tile(np.arange(count, dtype=np.int64), 2)
    value = np.repeat([1.0, -1.0], count)
    return Linear.rows(
        name,
        row,
        np.concatenate([greater, smaller]),
        value,
        lower=float(distance),
        upper=float(distance) if exact else math.inf,
        num_rows=count,
        enforce=enforce,
    )
