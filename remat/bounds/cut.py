"""Cut bound: lower bound on the peak of any order without recomputation."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from remat.bounds.base import Bound
from remat.bounds.flow import BoundaryNetwork
from remat.bounds.non_recomputable import held_bound
from remat.problem import Problem
from remat.problem.scope import Scope
from remat.runtime.arrays import Int
from remat.runtime.deadline import Deadline
from remat.schedule import OrderRule


def cut_bound(problem: Problem, *, deadline: float | Deadline | None = None) -> Bound:
    """Return a bound on the peak of every order without recomputation.

    Let ``D`` be the ops computed before the step of op ``v``. ``D`` is closed under dependence, contains everything
    that ``v`` depends on, and nothing that depends on ``v``. A tensor is live if an op in ``D`` has written it, at
    least in part, and it is to be kept or read by an op outside ``D``. The peak is therefore at least the memory of the
    step alone, plus the least size of such a boundary over all ``D``, a minimum cut. The bound is the largest such
    value over all ``v``. The reference order gives one of these ``D``, so an op is skipped if its step there holds no
    more than the best value so far.

    Parameters
    ----------
    deadline : float, Deadline or None
        At the deadline, the best value so far is the bound; it is at least the structural one.

    Returns
    -------
    Bound
        On the peak, in bytes; computed in exact integers. `infeasible` means that no schedule without recomputation
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
    """Return the bytes at each step of the reference order without recomputation, with the tensors to keep kept."""
    graph = problem.graph
    if problem.keep:
        names = graph.tensor_names
        graph = graph.with_outputs([names[t] for t in np.flatnonzero(problem.kept)])
    return graph.arrays.reference_memory + problem.constant_bytes
