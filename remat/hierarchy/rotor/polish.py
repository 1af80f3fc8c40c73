"""Polishing of a staged schedule: drops where it is over the budget, and back with what it can do without."""

from __future__ import annotations

import numpy as np

from remat.compiled import KernelSet
from remat.deadline import Deadline
from remat.errors import ProblemError
from remat.formulations.sequence import op_sequence, stages_of, useful_schedule
from remat.heuristics.drops.heuristic import BATCH, MOST_RUNS, descend, sequence, tables
from remat.problem import Problem
from remat.schedule import Schedule


def _example() -> None:
    from remat.graphs.families import unit_chain

    problem = Problem(unit_chain(4), 5)
    computes = np.array([0, 1, 2, 3, 4, 5, 2, 6, 0, 1, 7, 8])
    polished(problem, Schedule.of_computes(problem.graph, computes), 1.0, Deadline())


#: What puts a schedule into the tables of drops.
KERNELS = KernelSet("polish", __name__, _example)


def polished(problem: Problem, schedule: Schedule, leaning: float, deadline: Deadline) -> Schedule | None:
    """The schedule after drops, and without recomputations that turn out not to be needed.

    Parameters
    ----------
    leaning : float
        As :class:`remat.heuristics.drops.DropsOptions` has it.

    Returns
    -------
    Schedule or None
        It may miss the budget. None for a schedule that is not staged, or computes an op more than 32 times.

    Examples
    --------
    >>> from remat.graphs.families import unit_chain
    >>> from remat.schedule import simulate
    >>> problem = Problem(unit_chain(4), 5)
    >>> start = Schedule.of_computes(problem.graph, [0, 1, 2, 3, 4, 5, 2, 6, 0, 1, 7, 0, 8])
    >>> better = polished(problem, start, 1.0, Deadline())
    >>> simulate(problem.graph, better).cost, simulate(problem.graph, better).peak
    (10, 5)
    """
    from remat.hierarchy.rotor.polish_kernel import recompute

    try:
        ops = op_sequence(problem, schedule)
        stages = stages_of(problem, ops) - 1
    except ProblemError:
        return None
    number = np.bincount(ops)
    if number.max() >= MOST_RUNS:
        return None
    again = np.ones(len(ops), dtype=np.bool_)
    again[np.unique(ops, return_index=True)[1]] = False
    net, state = tables(problem, problem.graph.arrays.order)
    ops, stages = ops[again].astype(np.int64), stages[again].astype(np.int64)
    if len(ops) >= len(state.node_op):
        return None
    for first in range(0, len(ops), BATCH):
        if deadline.expired:
            return None
        recompute(net, state, ops, stages, first, min(first + BATCH, len(ops)))
    descend(net, state, leaning, deadline)
    return useful_schedule(problem, sequence(net, state), schedule.source)
