"""The structural bound: what one step alone must hold."""

from __future__ import annotations

import time

from remat.bounds.base import Bound, bound_on_peak
from remat.problem import Problem
from remat.scope import EVERY_SCHEDULE


def structural_bound(problem: Problem) -> Bound:
    """The largest memory that a single step needs, or that is held at the end: a bound on the peak of any schedule.

    Every op is computed at least once, and then graph inputs, its inputs, outputs and workspace are there. At the last
    step of a schedule everything to be kept is live or just being written.

    Returns
    -------
    Bound
        On the peak; `infeasible` if it exceeds the budget.

    Examples
    --------
    >>> from remat.graphs.families import unit_chain
    >>> structural_bound(Problem(unit_chain(8))).value
    3
    """
    began = time.monotonic()
    arrays, found = problem.graph.arrays, problem.graph.structural_bound
    kept = arrays.input_bytes + int(arrays.size[problem.kept & ~arrays.is_input].sum())
    peak, cause = found.peak, found.op or ""
    if kept > peak:
        peak, cause = kept, ""
    peak += problem.constant_bytes
    return bound_on_peak(problem, peak, "the structural bound", EVERY_SCHEDULE, cause=cause, began=began)
