"""The bound of what cannot be made again: how low the peak can get where some ops may run only once."""

from __future__ import annotations

import time
from collections.abc import Mapping

import numpy as np

from remat.bounds.base import Bound, bound_on_peak
from remat.bounds.flow import BoundaryNetwork
from remat.bounds.structural import structural_bound
from remat.deadline import Deadline
from remat.graphs.arrays import staircase
from remat.problem import Problem
from remat.runtime.arrays import Bool, Int
from remat.schedule import OrderRule
from remat.scope import Restriction, Scope


def held_bound(problem: Problem, *, deadline: float | Deadline | None = None) -> Bound:
    """A bound on the peak of every schedule that `problem` allows, however often it lets ops run.

    At the first step of op ``v`` let ``D`` be the ops computed before, at least once. A tensor that is to be kept or
    read by an op outside ``D``, and all of whose writers may run only once, is live from the first of them in ``D``
    on: nobody could make it again. With the fixed order ``D`` is what precedes ``v`` in it. With a free order the
    least such boundary over all ``D`` that are closed under dependence is a minimum cut, as in the cut bound. Where
    every op may run once, the two bounds are the same; where none is limited so, this is the structural bound.

    Parameters
    ----------
    deadline : float, Deadline or None
        When it is over, the best value so far is the bound.

    Returns
    -------
    Bound
        On the peak, in bytes, for the order and the limits of computes of `problem`; exact integers throughout.

    Examples
    --------
    >>> from remat.graphs.families import unit_chain
    >>> graph = unit_chain(8)
    >>> held_bound(Problem(graph)).value, held_bound(Problem(graph, max_computes=1)).value
    (3, 10)
    """
    began = time.monotonic()
    clock = Deadline.of(deadline)
    graph, arrays = problem.graph, problem.graph.arrays
    first = structural_bound(problem)
    best, cause, kind = first.value or 0, first.cause, first.kind
    needs = arrays.op_bytes + problem.constant_bytes
    held = _held(problem)
    most = needs + _held_in_order(problem, held)
    free = problem.order is OrderRule.FREE
    network = BoundaryNetwork.of(problem) if free and held.any() else None
    for op in np.argsort(-most, kind="stable").tolist() if held.any() else ():
        if most[op] <= best or clock.expired:
            break
        value = int(most[op] if network is None else needs[op] + network.cut(op, np.where(held, arrays.size, 0)))
        if value > best:
            best, cause, kind = value, graph.op_names[op], "the bound of what cannot be made again"
    limit = problem.max_computes
    scope = Scope(OrderRule.FREE, staged=False)
    if kind != first.kind:
        notes = (Restriction.OWN_LIMITS,) if isinstance(limit, Mapping) else ()
        scope = Scope(OrderRule(problem.order), False, limit if isinstance(limit, int) else None, notes)
    return bound_on_peak(problem, best, kind, scope, cause=cause, began=began)


def _held(problem: Problem) -> Bool:
    """Tensors all of whose writers may run only once; graph inputs are counted elsewhere."""
    writers = problem.graph.arrays.producers
    again = np.array([limit != 1 for limit in problem.compute_limits], dtype=np.bool_)
    return (writers.counts > 0) & (writers.where(again).counts == 0)


def _held_in_order(problem: Problem, held: Bool) -> Int:
    """Bytes of `held` tensors that wait at each op's first step in the reference order; its own ones left out."""
    arrays = problem.graph.arrays
    n = len(arrays.order)
    first, last = arrays.lifetimes(arrays.position)
    last[problem.kept] = n - 1
    size = np.where(held & (problem.kept | (arrays.consumers.counts > 0)), arrays.size, 0)
    return staircase(first, last, size, n)[arrays.position] - arrays.op_inputs.sums(size) - arrays.op_outputs.sums(size)
