"""Whole values of integer variables, where a solver computes with floats."""

from __future__ import annotations

import numpy as np

from remat.modeling import Kind, Model
from remat.runtime.arrays import Float

#: Largest distance from an integer that counts as rounding noise.
INTEGRALITY = 1e-5


def rounded(model: Model, values: Float, solver: str) -> tuple[Float, str]:
    """Return `values` of a solver for the variables of `model`, and an error message, empty if they are valid.

    Examples
    --------
    >>> model = Model("two")
    >>> _ = model.integers("x", 2, 0, 9)
    >>> rounded(model, np.array([2.0000001, 3.0]), "HiGHS")
    (array([2., 3.]), '')
    >>> rounded(model, np.array([2.3, 3.0]), "HiGHS")[1]
    'HiGHS gives 2.3 for integer variable number 0'
    """
    values = np.array(values[: model.num_vars])
    whole = np.flatnonzero((model.kind == Kind.INTEGER.value) | (model.kind == Kind.BOOLEAN.value))
    nearest = np.rint(values[whole])
    noise = np.abs(values[whole] - nearest)
    if not (noise <= INTEGRALITY).all():
        worst = int(noise.argmax())
        return values, f"{solver} gives {values[whole[worst]]} for integer variable number {whole[worst]}"
    values[whole] = nearest
    return values, ""
