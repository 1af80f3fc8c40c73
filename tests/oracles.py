"""Exact values from closed forms and from exhaustive searches that share no code with the tested code."""

from __future__ import annotations

import math

from remat.graphs import ComputeGraph
from remat.ordering.best_first import MOST_STATES, Aim, explore
from remat.problem import Problem
from remat.problem.scope import Scope
from remat.schedule import OrderRule
from remat.testing import optimum
from remat.testing.exhaustive import FILLED_ONCE


def least_cost(problem: Problem, copies: int | None = None, *, staged: bool | None = None) -> int | None:
    """Return the least cost by exhaustive search, with buffers filled once; None if infeasible.

    `copies` limits the computes of each op. `staged` defaults to the convention of the problem's order.
    """
    fixed = problem.order is OrderRule.FIXED
    limits = (FILLED_ONCE,) if staged is None else ()
    best = optimum(problem, Scope(problem.order, fixed if staged is None else staged, copies, limits))
    return None if best is None else best.cost


def least_order_peak(graph: ComputeGraph, most_states: int | None = None) -> int | None:
    """Return the least peak over all orders without recomputation; None after `most_states`."""
    problem = Problem(graph, order="free", max_computes=1)
    found = explore(problem, Aim.PEAK, limit=2**62, most_states=MOST_STATES if most_states is None else most_states)
    if most_states is None:
        assert found is not None
        assert found.schedule is not None
    return None if found is None or found.schedule is None else found.bound


def revolve(steps: int, slots: int) -> int:
    """Return the least number of forward advances for a chain with `slots` snapshots (Griewank & Walther 2000)."""
    r = next(r for r in range(steps + 1) if math.comb(slots + r, slots) >= steps)
    return r * steps - math.comb(slots + r, slots + 1)


def counted_least_peak(graph: ComputeGraph) -> int:
    """Return the least peak over all orders without recomputation; dynamic programme over sets, up to ~16 ops."""
    arrays = graph.arrays
    n = len(graph.ops)
    sizes = arrays.size.tolist()
    reads, writes = arrays.op_inputs.lists(), arrays.op_outputs.lists()
    readers, writers = arrays.consumers.lists(), arrays.producers.lists()
    before = [sum(1 << u for u in row) for row in arrays.op_predecessors.lists()]
    given, kept = arrays.is_input.tolist(), arrays.is_output.tolist()

    def live(done: int) -> set[int]:
        return {
            t
            for t in range(len(sizes))
            if given[t]
            or (
                any(done >> w & 1 for w in writers[t])
                and (kept[t] or (readers[t] and not all(done >> o & 1 for o in readers[t] + writers[t])))
            )
        }

    best = {0: 0}
    for _ in range(n):
        following: dict[int, int] = {}
        for done, peak in best.items():
            held = live(done)
            for op in range(n):
                if done >> op & 1 or before[op] & ~done:
                    continue
                step = sum(sizes[t] for t in held | set(writes[op]) | set(reads[op])) + graph.ops[op].workspace
                state = done | 1 << op
                following[state] = min(following.get(state, 1 << 62), max(peak, step))
        best = following
    return best[(1 << n) - 1]
