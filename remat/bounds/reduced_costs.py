"""Reduced cost fixing: variables that are fixed in every solution cheaper than a known cost."""

from __future__ import annotations

import numpy as np

from remat.backends.highs.relaxation import Relaxation, reduced_costs, safe_bound
from remat.modeling import Kind, Linear, Model
from remat.modeling.matrix import to_matrix
from remat.modeling.rows import rows_from


def cheaper_than(model: Model, relaxation: Relaxation, cost: float, into: Model | None = None) -> Model:
    """Return `model` with a row that limits the objective to `cost`, and with the variables fixed that this implies.

    The reduced cost of a 0/1 variable prefers one of its sides. By weak duality, the objective is at least the bound
    from the duals, plus the reduced costs of all variables at their other side. If one variable's reduced cost raises
    the bound above `cost`, the variable is fixed (Dantzig, Fulkerson and Johnson 1954, Solution of a large-scale
    traveling-salesman problem).

    Parameters
    ----------
    relaxation : Relaxation
        Relaxation of the same model.
    cost : float
        A whole number if all costs are.
    into : Model, optional
        Model with the same variables and solutions that takes the place of `model` in the result.
    """
    matrix = to_matrix(relaxation.lowered.model)
    y = relaxation.row_duals
    reduced = reduced_costs(matrix, matrix.cost, y)[0][: model.num_vars]
    # The tolerance is far above any rounding error.
    room = cost - safe_bound(matrix, y) + 1e-6 * (1 + abs(cost))
    costly = (model.kind == Kind.BOOLEAN.value) & (model.lower == 0) & (model.upper == 1) & (np.abs(reduced) > room)
    index = np.flatnonzero(costly)
    side = (reduced[index] < 0).astype(np.float64)
    smaller = (into or model).copy(f"{model.name} below {cost:.12g}")
    objective = model.objective
    terms = (0, objective.index, objective.coefficient)
    smaller.add(rows_from("cheaper", terms, num_rows=1, upper=cost - objective.constant))
    smaller.add(Linear.rows("too expensive otherwise", np.arange(len(index)), index, 1, lower=side, upper=side))
    return smaller
