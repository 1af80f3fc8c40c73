"""Lower bounds on the peak: of a single step, of any order, and of schedules with limits of computes."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from remat.bounds.base import Bound, bound_on_peak
from remat.bounds.flow import BoundaryNetwork
from remat.graphs.arrays import staircase
from remat.problem import Problem
from remat.problem.scope import EVERY_SCHEDULE, Restriction, Scope
from remat.runtime.arrays import Bool, Int
from remat.runtime.deadline import Deadline
from remat.schedule import OrderRule


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


def held_bound(problem: Problem, *, deadline: float | Deadline | None = None) -> Bound:
    """Return a bound on the peak of every schedule that `problem` allows, whatever its limits of computes.

    Let ``D`` be the ops computed at least once before the first step of op ``v``. Take a tensor that is to be kept, or
    read by an op outside ``D``, and all of whose writers may run only once. It is live as soon as one of them is in
    ``D``, since it cannot be recomputed. With the fixed order, ``D`` is the set of ops that precede ``v``. With a free
    order, the least such boundary over all ``D`` closed under dependence is a minimum cut, as in the cut bound. If
    every op may run only once, this equals the cut bound; if no op is so limited, it equals the structural bound.

    Parameters
    ----------
    deadline : float, Deadline or None
        At the deadline, the best value so far is the bound.

    Returns
    -------
    Bound
        On the peak, in bytes, for the order and the limits of computes of `problem`; computed in exact integers.

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
        scope = Scope(problem.order, False, limit if isinstance(limit, int) else None, notes)
    return bound_on_peak(problem, best, kind, scope, cause=cause, began=began)


def _held(problem: Problem) -> Bool:
    """Mark the tensors all of whose writers may run only once, except graph inputs, which are counted elsewhere."""
    writers = problem.graph.arrays.producers
    again = np.array([limit != 1 for limit in problem.compute_limits], dtype=np.bool_)
    return (writers.counts > 0) & (writers.where(again).counts == 0)


def _held_in_order(problem: Problem, held: Bool) -> Int:
    """Return the bytes of live `held` tensors at each op's first step in the reference order.

    The op's own inputs and outputs are left out.
    """
    arrays = problem.graph.arrays
    n = len(arrays.order)
    first, last = arrays.lifetimes(arrays.position)
    last[problem.kept] = n - 1
    size = np.where(held & (problem.kept | (arrays.consumers.counts > 0)), arrays.size, 0)
    return staircase(first, last, size, n)[arrays.position] - arrays.op_inputs.sums(size) - arrays.op_outputs.sums(size)


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
