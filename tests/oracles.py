"""Exact values that tests compare with: exhaustive searches that share no code with what they check, closed forms."""

from __future__ import annotations

import heapq
import math

from remat.graphs import ComputeGraph
from remat.ordering.best_first import Aim, explore
from remat.problem import Problem
from remat.schedule import OrderRule
from remat.scope import Scope
from remat.testing import optimum
from remat.testing.exhaustive import FILLED_ONCE


def least_cost(problem: Problem, copies: int | None = None, *, staged: bool | None = None) -> int | None:
    """Least cost by exhaustive search, buffers filled once, at most `copies` computes of each op; None: infeasible.

    `staged` is what fixed orders are by default.
    """
    fixed = problem.order is OrderRule.FIXED
    limits = (FILLED_ONCE,) if staged is None else ()
    best = optimum(problem, Scope(problem.order, fixed if staged is None else staged, copies, limits))
    return best and best.cost


def least_order_peak(graph: ComputeGraph, most_states: int | None = None) -> int | None:
    """Least peak over all orders without recomputation, by best-first search; None after `most_states`."""
    more = {} if most_states is None else {"most_states": most_states}
    found = explore(Problem(graph, order="free", max_computes=1), Aim.PEAK, limit=2**62, **more)
    if most_states is None:
        assert found is not None
        assert found.schedule is not None
    return None if found is None or found.schedule is None else found.bound


def revolve(steps: int, slots: int) -> int:
    """Least forward advances for a chain of `steps` with `slots` snapshots (Griewank & Walther 2000)."""
    r = next(r for r in range(steps + 1) if math.comb(slots + r, slots) >= steps)
    return r * steps - math.comb(slots + r, slots + 1)


def counted_least_peak(graph: ComputeGraph) -> int:
    """Least peak over all orders without recomputation, by search over the sets of computed ops (at most ~16 ops)."""
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


def second_least_cost(graph, budget, order="free", kept=(), limit=None):
    """Least cost of a valid schedule within `budget` bytes (None: none), not staged; `limit`: computes of each op.

    It uses bit masks and one choice of what to hold after each compute. It follows the rules of the simulator (epochs
    of buffers, masked contributions, frees of incomplete buffers), for any order of computes, and shares nothing with
    ``remat.testing.exhaustive``.
    """
    names = [tensor.name for tensor in graph.tensors]
    bit = {name: 1 << k for k, name in enumerate(names)}
    size = [tensor.size for tensor in graph.tensors]
    rank = {name: k for k, name in enumerate(graph.op_names[op] for op in graph.arrays.order.tolist())}
    ops = sorted(graph.ops, key=lambda op: rank[op.name])
    given = sum(bit[name] for name in graph.inputs)
    wanted = sum(bit[name] for name in {*graph.outputs, *kept})
    writers = {name: [k for k, op in enumerate(ops) if name in op.outputs] for name in names}
    reads = [sum(bit[name] for name in op.inputs) for op in ops]
    shared = [name for name in names if len(writers[name]) > 1]
    whole = {name: sum(1 << k for k in writers[name]) for name in shared}
    most = [1 if not op.recomputable else limit for op in ops]

    def held(mask):
        return sum(s for k, s in enumerate(size) if mask >> k & 1)

    def complete(live, sums):
        """What can be read: without the buffers that lack a contribution."""
        return live & ~sum(bit[name] for name, part in zip(shared, sums, strict=True) if part != whole[name])

    def subsets(mask):
        part = mask
        while True:
            yield part
            if not part:
                return
            part = (part - 1) & mask

    first = (given, (0,) * len(shared), (0,) * len(ops))
    best, heap = {first: 0}, [(0, first)]
    while heap:
        cost, state = heapq.heappop(heap)
        if cost > best[state]:
            continue
        live, sums, runs = state
        if all(runs) and not wanted & ~complete(live, sums):
            return cost
        ready = complete(live, sums)
        for k, op in enumerate(ops):
            if reads[k] & ~ready or (most[k] is not None and runs[k] >= most[k]):
                continue
            if order == "fixed" and not runs[k] and not all(runs[:k]):
                continue
            now = live | sum(bit[name] for name in op.outputs)
            if held(now) + op.workspace > budget:
                continue
            added = [part | 1 << k if k in writers[name] else part for name, part in zip(shared, sums, strict=True)]
            count = 1 if most[k] is None else runs[k] + 1
            after = (*runs[:k], count, *runs[k + 1 :])
            for kept_now in subsets(now & ~given):
                parts = tuple(part if kept_now & bit[name] else 0 for name, part in zip(shared, added, strict=True))
                target = (given | kept_now, parts, after)
                if cost + op.cost < best.get(target, 1 << 62):
                    best[target] = cost + op.cost
                    heapq.heappush(heap, (cost + op.cost, target))
    return None
