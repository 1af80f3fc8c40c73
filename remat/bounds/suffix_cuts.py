"""Suffix cuts: bounds on the cost after a step of a fixed order, linear in the tensors that are live there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from remat.backends.highs import Highs
from remat.backends.highs.relaxation import UNIT, Relaxation, reduced_costs, safe_bound, usable_duals
from remat.bounds.stage_relaxation import MEMORY, StageRelaxation
from remat.modeling import Linear
from remat.modeling.matrix import to_matrix
from remat.problem import Problem
from remat.runtime.arrays import Bool, Float, Int
from remat.runtime.solve_options import SolveOptions

#: Name of the rows that fix the live tensors.
GIVEN = "given"


class SuffixCut(NamedTuple):
    """Bound ``constant + sum of slope[t] over live t`` on the cost of recomputations after a step.

    `slope`, shape (tensors,), is 0 for inputs and outputs of the step's op. Both are in cost units of the graph.
    """

    constant: float
    slope: Float


def suffix_cut(problem: Problem, events: Sequence[int], live: Bool | None = None) -> SuffixCut | None:
    """Return the suffix cut at the first of `events`, positions in the reference order.

    Take a schedule with this order of first computes, and its part after the first event ``k``. Let ``L`` be the
    tensors that are live right after ``k``, or at any later time before the next first compute. The variables of the
    stage relaxation (:class:`remat.bounds.stage_relaxation.StageRelaxation`) that belong to later stages satisfy its
    rows, with ``live[k, t] = 1`` exactly for ``t`` in ``L``: they describe only what happens after that time. Inputs
    and outputs of ``k`` count as live whether they are or not, which relaxes the rows further. For row duals ``y`` of
    any quality, weak duality gives

        cost ≥ y b + sum over live[k, t] of (−y A)[t] live[k, t] + sum over others of min over x of (c − y A) x

    where the rows that concern the event alone are left out: its row of memory, and those that fix ``live``. The right
    side is a constant plus a linear function of ``L``.

    Parameters
    ----------
    live : bool array, shape (tensors,), optional
        Live tensors where the cut is to be as high as the relaxation allows. Default: those of the cheapest suffix.

    Returns
    -------
    SuffixCut or None
        None if the relaxation gave no bound.

    Examples
    --------
    >>> from remat.graphs.families import unit_chain
    >>> problem = Problem(unit_chain(4), 4)
    >>> cut = suffix_cut(problem, [5, 6])  # after g3: g2 needs f1, and so on
    >>> round(cut.constant), {problem.graph.tensor_names[t]: round(cut.slope[t]) for t in np.flatnonzero(cut.slope)}
    (3, {'f0': -1, 'f1': -1, 'f2': -1})
    """
    relaxation = StageRelaxation(problem, events)
    model = relaxation.build()
    index = relaxation.stages[0].live
    tensors = np.flatnonzero(index >= 0)
    if live is not None:
        value = live[tensors].astype(np.float64)
        model.add(Linear.rows(GIVEN, np.arange(len(tensors)), index[tensors], 1, lower=value, upper=value))
    found = Highs().relax(model, SolveOptions(threads=1))
    if found.infeasible or found.bound is None:
        return None
    return _cut(found, index, tensors, relaxation.unit, len(problem.graph.tensors))


def _cut(found: Relaxation, index: Int, tensors: Int, unit: int, num_tensors: int) -> SuffixCut | None:
    """Return the cut of the duals of a relaxation, without the rows of its first event.

    Rounding errors are estimated and subtracted: those of the slopes, and those of adding slopes to the constant.
    """
    matrix = to_matrix(found.lowered.model)
    y = usable_duals(matrix, found.row_duals)
    first, memory_seen = 0, False
    for record in found.lowered.model.records:
        if record.name == GIVEN or (record.name == MEMORY and not memory_seen):
            memory_seen |= record.name == MEMORY
            y[first : first + len(record)] = 0
        first += len(record)
    columns = index[tensors]
    slope = np.zeros(num_tensors)
    reduced, error = reduced_costs(matrix, matrix.cost, y)
    slope[tensors] = unit * np.nextafter(reduced - error, -np.inf)[columns]
    lower, upper = matrix.lower.copy(), matrix.upper.copy()
    lower[columns] = upper[columns] = 0
    constant = unit * safe_bound(replace(matrix, lower=lower, upper=upper), y)
    if not np.isfinite(constant):
        return None
    adding = 2 * (len(columns) + 4) * UNIT * (abs(constant) + float(np.abs(slope).sum()))
    return SuffixCut(constant - adding, slope)
