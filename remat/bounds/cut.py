"""The cut bound: how low the peak can get in any order without recomputation."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from remat.bounds.base import Bound
from remat.bounds.flow import BoundaryNetwork
from remat.bounds.non_recomputable import held_bound
from remat.deadline import Deadline
from remat.problem import Problem
from remat.runtime.arrays import Int
from remat.schedule import OrderRule
from remat.scope import Scope


def cut_bound(problem: Problem, *, deadline: float | Deadline | None = None) -> Bound:
    """A bound on the peak of every order without recomputation.

    At the step of op ``v`` let ``D`` be the ops computed before. All that ``v`` depends on is in ``D``, what depends
    on ``v`` is not, and with an op ``D`` has all it depends on. A tensor that an op in ``D`` has written, if only in
    part, and that is to be kept or read by an op outside ``D``, is live. So the peak is at least what the step needs
    by itself, plus the least size of such a boundary over all ``D``, which is a minimum cut; the bound is the largest
    over all ``v``. An op whose step in the reference order holds no more than the best value so far is passed over,
    since that step is one of the choices that its minimum is taken over.

    Parameters
    ----------
    deadline : float, Deadline or None
        When it is over, the best value so far is the bound, at least the structural one.

    Returns
    -------
    Bound
        On the peak, in bytes; exact integers throughout. `infeasible` says that no schedule without recomputation
        keeps the budget.

    Examples
    --------
    >>> from remat.graphs.families import unit_chain
    >>> cut_bound(Problem(unit_chain(8))).value  # no order needs less than the reference order
    10
    """
    found = held_bound(replace(problem, order=OrderRule.FREE, max_computes=1), deadline=deadline)
    return replace(found, kind="the cut bound", scope=Scope(OrderRule.FREE, staged=False, max_computes=1))


def cut_at(problem: Problem, network: BoundaryNetwork, op: int) -> int:
    """Return the least memory in bytes at the step of `op` in any order without recomputation."""
    arrays = problem.graph.arrays
    return int(arrays.op_bytes[op]) + problem.constant_bytes + network.cut(op, arrays.size)


def step_memory(problem: Problem) -> Int:
    """Memory at each step of the reference order without recomputation, with everything kept that is to be."""
    graph = problem.graph
    if problem.keep:
        names = graph.tensor_names
        graph = graph.with_outputs([names[t] for t in np.flatnonzero(problem.kept)])
    return graph.arrays.reference_memory + problem.constant_bytes
