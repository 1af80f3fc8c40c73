"""Joint bound: lower bound on cost for any order and any recomputation."""

from __future__ import annotations

import math
import time

import numpy as np

from remat.backends.highs import Highs
from remat.bounds.base import Bound, cost_unit, lacks_memory, whole_units
from remat.bounds.cost_sums import next_sum, objective_of
from remat.bounds.flow import UNLIMITED, BoundaryNetwork
from remat.bounds.peak_bounds import cut_at, step_memory
from remat.modeling import Model
from remat.modeling.rows import difference_rows, rows_from
from remat.problem import Problem
from remat.problem.scope import scope_within_limits
from remat.runtime.deadline import Deadline
from remat.runtime.solve_options import SolveOptions, Status
from remat.schedule import OrderRule

#: Number of ops with the largest cuts that are checked for feasibility, and whose integer programmes are solved.
PROMISING_OPS, INTEGER_OPS = 12, 6


def joint_bound(
    problem: Problem,
    *,
    deadline: float | Deadline | None = None,
    threads: int | None = None,
    memory_limit: int | None = None,
) -> Bound:
    """Return a bound on cost for any order and any recomputation.

    Let ``D`` be the ops computed before the first compute of op ``v``. ``D`` is closed under dependence, contains
    everything that ``v`` depends on, and nothing that depends on ``v``. Take a tensor that an op ``u`` in ``D`` writes
    and that is to be kept, or read by an op outside ``D``, whose first compute is still to come. Either the tensor is
    live now and takes memory, or ``u`` runs again later, at extra cost. The least cost of these choices over all ``D``
    is the optimum of an integer programme (:func:`joint_programme`). The bound is the largest value over the ops ``v``
    whose cuts (see :func:`remat.bounds.peak_bounds.cut_bound`) exceed the budget the most: where the cut fits in the
    budget, the value is 0.

    Parameters
    ----------
    deadline : float, Deadline or None
        At the deadline, the best value so far is the bound.
    memory_limit : int, optional
        Bytes that a linear programme may take. One that needs more than this, or more than is available, is skipped,
        and the bound's note gives the reason.

    Returns
    -------
    Bound
        `infeasible` if recomputing everything that may be recomputed still leaves too much live.

    Examples
    --------
    >>> from remat.graphs.families import unit_chain
    >>> joint_bound(Problem(unit_chain(8), 5)).value
    22
    """
    began = time.monotonic()
    clock = Deadline.of(deadline)
    problem, _ = problem.relaxed
    base = problem.graph.base_cost
    extra, versions, note = 0, dict[str, str](), ""
    network = BoundaryNetwork.of(problem)
    promising = _promising(problem, network, clock)
    infeasible = any(
        not clock.expired and _must_hold(problem, network, op) > (problem.budget_bytes or 0) for op in promising
    )
    unit = cost_unit(problem)
    for op in promising[:INTEGER_OPS] if not infeasible else []:
        if clock.expired:
            break
        model = joint_programme(problem, op)
        if note := lacks_memory(model, memory_limit):
            break
        # A solution that is not above the best value shows that this op does not raise the bound.
        target = {"objective_target": float(extra // unit)} if extra else {}
        result = Highs().solve(model, SolveOptions(clock, threads, solver=target))
        versions = dict(result.versions)
        if result.status is Status.INFEASIBLE:
            infeasible = True
            break
        if result.bound is not None:
            value = whole_units(result.bound)
            if result.values is not None:
                value = next_sum(problem.graph.arrays.cost // unit, value, objective_of(model, result.values))
            extra = max(extra, unit * value)
    return Bound(
        None if infeasible else base + extra,
        "the joint bound",
        scope_within_limits(problem, OrderRule.FREE),
        base,
        infeasible,
        seconds=time.monotonic() - began,
        versions=versions,
        note=note,
    )


def _promising(problem: Problem, network: BoundaryNetwork, clock: Deadline) -> list[int]:
    """Return the ops whose cuts exceed the budget, largest first; at most :data:`PROMISING_OPS`."""
    budget = problem.budget_bytes
    if budget is None:
        return []
    arrays = problem.graph.arrays
    most = step_memory(problem)
    found: list[tuple[int, int]] = []
    for op in arrays.order[np.argsort(-most, kind="stable")].tolist():
        # No cut exceeds its step in the reference order, so the remaining ops cannot be among the largest.
        least = found[PROMISING_OPS - 1][0] if len(found) >= PROMISING_OPS else budget
        if most[arrays.position[op]] <= max(budget, least) or clock.expired:
            break
        value = cut_at(problem, network, op)
        if value > budget:
            found = sorted([*found, (value, op)], key=lambda pair: -pair[0])
    return [op for _, op in found[:PROMISING_OPS]]


def _must_hold(problem: Problem, network: BoundaryNetwork, op: int) -> int:
    """Return the bytes that are live at the first compute of `op` even if everything else runs again later."""
    arrays = problem.graph.arrays
    costs = np.where(problem.once, UNLIMITED, 0)
    return int(arrays.op_bytes[op]) + problem.constant_bytes + network.cut(op, arrays.size, costs)


def joint_programme(problem: Problem, op: int) -> Model:
    """Build the integer programme of :func:`joint_bound` for one op ``v``.

    Variables: ``before[u]``, op ``u`` is in ``D``; ``past[u]``, it is, and does not run again; ``held[t]``, tensor
    ``t`` is live at the first compute of ``v``. Minimise ``sum cost(u) (before[u] − past[u])`` subject to

    (1) ``before[u] >= before[w]`` for each reader ``w`` of an output of ``u``, and ``before[u] >= past[u]``; ``before``
        is 1 for the ops that ``v`` depends on, 0 for ``v`` and the ops that depend on it;
    (2) ``held[t] >= past[u] − past[w]`` for each writer ``u`` and reader ``w`` of ``t``, and ``>= past[u]`` if ``t`` is
        to be kept; except for inputs and outputs of ``v``, which are live anyway;
    (3) ``sum size(t) held[t]`` is at most the budget less the memory of the step of ``v`` alone.

    The right side of (2) is 1 if ``w`` still runs, for the first time or again, and ``u`` does not: then ``t`` is live.
    For an accumulation buffer, (2) has a row for each writer: if the buffer is not live now, all of its writers run
    later, those in ``D`` again. Costs are counted in units of :func:`remat.bounds.base.cost_unit`.
    """
    arrays = problem.graph.arrays
    n = len(arrays.cost)
    lower, upper = np.zeros(n), np.ones(n)
    lower[arrays.op_predecessors.reachable(op)] = 1
    upper[op] = upper[arrays.op_successors.reachable(op)] = 0
    model = Model(f"joint programme of {problem.graph.op_names[op]}")
    before = model.booleans("before", n, lower, upper)
    past = model.booleans("past", n, 0, upper)
    held = model.booleans("held", len(arrays.size))
    pairs = arrays.op_successors
    model.add(difference_rows("closed", before.index[pairs.rows], before.index[pairs.indices]))
    model.add(difference_rows("run before", before.index, past.index))
    if problem.once.any():
        model.add(difference_rows("once", past.index[problem.once], before.index[problem.once]))
    free = ~arrays.touched(op)
    writer, reader, tensor = arrays.edges_of(free)
    keeper, stays = arrays.writes_of(free & problem.kept)
    row = np.arange(len(writer))
    terms = (row, held.index[tensor], 1), (row, past.index[writer], -1), (row, past.index[reader], 1)
    model.add(rows_from("live while read", *terms, num_rows=len(row), lower=0))
    model.add(difference_rows("live if kept", held.index[stays], past.index[keeper]))
    scale = float(max(1, arrays.size.max()))
    budget = problem.budget_bytes
    room = math.inf if budget is None else (budget - problem.constant_bytes - int(arrays.op_bytes[op])) / scale
    weight = np.where(free & ~arrays.is_input, arrays.size, 0) / scale
    model.add(rows_from("memory", (0, held.index, weight), num_rows=1, upper=room))
    cost = arrays.cost // cost_unit(problem)
    model.minimize(np.concatenate([before.index, past.index]), np.concatenate([cost, -cost]))
    return model
