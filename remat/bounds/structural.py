"""Structural bound: the memory that a single step must hold."""

from __future__ import annotations

import time

from remat.bounds.base import Bound, bound_on_peak
from remat.problem import Problem
from remat.problem.scope import EVERY_SCHEDULE


def structural_bound(problem: Problem) -> Bound:
    """Return a bound on the peak of any schedule: the largest memory that a single step, or the end, needs.

    Every op is computed at least once. At that step the graph inputs, its own inputs and outputs, and its workspace are
    in memory. At the last step of a schedule, every tensor to keep is live or being written.

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
