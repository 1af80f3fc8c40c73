"""Reduced cost fixing: variables that are fixed in every solution cheaper than a known cost."""

from __future__ import annotations

import numpy as np

from remat.backends.highs.relaxation import Relaxation, reduced_costs, safe_bound, usable_duals
from remat.modeling import Linear, Model
from remat.modeling.matrix import Matrix, to_matrix
from remat.modeling.rows import rows_from
from remat.runtime.arrays import Float, Int


def fixed_sides(matrix: Matrix, y: Float, cost: float) -> tuple[Int, Float]:
    """Return 0/1 columns whose reduced cost fixes them in all solutions of at most a cost, and the sides they are at.

    `y` are row duals of any quality.
    """
    y = usable_duals(matrix, y)
    reduced, _ = reduced_costs(matrix, matrix.cost, y)
    # The tolerance is far above any rounding error.
    room = cost - safe_bound(matrix, y) + 1e-6 * (1 + abs(cost))
    costly = (matrix.integral == 1) & (matrix.lower == 0) & (matrix.upper == 1) & (np.abs(reduced) > room)
    index = np.flatnonzero(costly)
    return index, (reduced[index] < 0).astype(np.float64)


def costing_at_most(model: Model, cost: float) -> Model:
    """Return a copy of `model` with a row that limits the objective to `cost`."""
    cheaper, objective = model.copy(f"{model.name} of at most {cost:.12g}"), model.objective
    terms = (0, objective.index, objective.coefficient)
    cheaper.add(rows_from("cheaper", terms, num_rows=1, upper=cost - objective.constant))
    return cheaper


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
    index, side = fixed_sides(matrix, relaxation.row_duals, cost)
    index, side = index[keep := index < model.num_vars], side[keep]
    smaller = costing_at_most(into or model, cost)
    smaller.add(Linear.rows("too expensive otherwise", np.arange(len(index)), index, 1, lower=side, upper=side))
    return smaller
