"""Greedy rematerialization: repeatedly take the best drop at the worst stage, without compiled kernels."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from functools import cache
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from remat.heuristics.base import Best, Heuristic, HeuristicRun
from remat.heuristics.drops.heuristic import CHAINS, SLACK, bare_tables, given_orders
from remat.problem import Problem
from remat.problem.op_sequence import useful_schedule
from remat.runtime.arrays import Int
from remat.runtime.compiled.interpreted import interpreted
from remat.runtime.deadline import Deadline
from remat.schedule import Schedule

#: Price of holding an input relative to recomputing it, as in drops. The last one never holds an input over the budget,
#: and is tried only if the others fail.
LEANINGS = (6.0, 2.0, 1e18)
#: Stages with the most memory at which drops are tried.
WORST = 8


class Greedy(Heuristic):
    """Greedy rematerialization: from the reference order, one drop at a time where memory is highest.

    A *drop* ends an instance at its last use before the worst stage, and recomputes it in the stage of its next use. It
    also recomputes those inputs that would otherwise be held over a stage above the budget. Each round takes the drop
    with the least cost per byte of excess removed, where the excess is summed over the stages above the budget. It
    stops when nothing exceeds the budget or no drop helps. Recomputations that prove unnecessary are then taken back,
    the most expensive first.

    The result is staged: first computes in the reference order (where the order is free, also in that of the start),
    every op at most once in each stage. The interpreter runs the kernels of :class:`remat.heuristics.drops.Drops`; up
    to a few hundred ops that takes less time than compiling them. Drops choose among all stages at once; on networks
    with long skip connections the worst stage is the better choice.

    Examples
    --------
    >>> from remat.graphs.families import unit_chain
    >>> problem = Problem(unit_chain(8), 7)
    >>> schedule = Greedy().run(problem, HeuristicRun())
    >>> problem.simulate(schedule).peak
    7
    """

    name = "greedy"

    def prepared(self, deadline: Deadline | None = None, on_wait: Callable[[], None] | None = None) -> bool:
        """Import the interpreted kernels, which takes longer than the search of a small graph."""
        del deadline, on_wait
        _functions()
        return True

    def run(self, problem: Problem, run: HeuristicRun) -> Schedule | None:
        if problem.budget_bytes is None:
            return Schedule.reference(problem.graph)
        best = Best(problem, run, problem.graph.base_cost)
        attempts = product(given_orders(problem, run.start), LEANINGS)
        for k, (order, leaning) in enumerate(attempts):
            if best.enough or (k and run.deadline.expired):
                break
            if leaning < LEANINGS[-1] or not best.cost:
                best.offer(useful_schedule(problem, _descent(problem, order, leaning, run.deadline), self.name))
        return best.schedule


class _Functions(NamedTuple):
    """Interpreted kernels of drops."""

    start: Any
    change_many: Any
    heap: Any


@cache
def _functions() -> _Functions:
    from remat.heuristics.drops import search_kernel, stages_kernel
    from remat.heuristics.drops.stages_kernel import BUDGET, EXCESS

    def excess_change(state: Any, first: int, last: int, amount: int) -> int:
        over = state.memory[first : last + 1] - state.number[BUDGET]
        return int((np.maximum(over + amount, 0) - np.maximum(over, 0)).sum())

    def add(state: Any, first: int, last: int, amount: int) -> None:
        state.number[EXCESS] += excess_change(state, first, last, amount)
        state.memory[first : last + 1] += amount

    instead = {"excess_change": excess_change, "add": add}  # memory as one array instead of blocks
    return _Functions(
        interpreted(stages_kernel.start), interpreted(search_kernel.change_many, instead), search_kernel.DropHeap
    )


def _descent(problem: Problem, order: Int, leaning: float, deadline: Deadline) -> Int:
    """Drop until nothing exceeds the budget, nothing helps or time is up; return the computes, by op."""
    from remat.heuristics.drops.stages_kernel import EXCESS

    tables = bare_tables(problem, order)
    net: Any = type(tables[0])(*(table.tolist() for table in tables[0]))
    runs = {(op, 0): position for op, position in enumerate(net.position)}
    state: Any = type(tables[1])(runs, *(table.tolist() for table in tables[1][1:]))  # type: ignore[arg-type]
    functions = _functions()
    functions.start(net, state)
    state = state._replace(memory=np.array(state.memory, dtype=np.int64), lazy=[0] * len(state.lazy))
    while state.number[EXCESS] > 0 and _drop(net, state, leaning, deadline):
        pass
    if state.number[EXCESS] == 0:
        again = [(op, stage) for (op, i), stage in runs.items() if 0 < i < state.times[op]]
        for op, stage in sorted(again, key=lambda each: (-net.cost[each[0]], *each)):
            if deadline.expired:
                break
            functions.change_many(net, state, functions.heap([], [], []), 0, 0, (1.0, 1.0), ([op], [stage]))
    computes = [(stage, net.position[op], op) for (op, i), stage in runs.items() if i < state.times[op]]
    return np.array([op for _, _, op in sorted(computes)], dtype=np.int64)


def _drop(net: Any, state: Any, leaning: float, deadline: Deadline) -> bool:
    """Take the best drop across the worst stage, or across one of the next worst; return True if there was one."""
    from remat.heuristics.drops.stages_kernel import BUDGET

    functions = _functions()
    over = np.flatnonzero(state.memory > state.number[BUDGET])
    for stage in over[np.argsort(-state.memory[over], kind="stable")][:WORST].tolist():
        items = _across(net, state, stage)
        heap, left = functions.heap([0.0] * len(items), items, [0] * CHAINS[-1]), len(items)
        while left and not deadline.expired:
            left, taken = functions.change_many(net, state, heap, left, 1, (leaning, SLACK), ([], []))
            if taken:
                return True
    return False


def _across(net: Any, state: Any, stage: int) -> list[int]:
    """Return drops of tensors live across a stage and not read in it, up to their next read; sorted, hence a heap."""
    stages, found = len(net.order) + 1, set[int]()
    for op in net.order[:stage]:
        runs = [state.runs[op, i] for i in range(state.times[op])]
        following = next(iter(runs[bisect_left(runs, stage) :]), stages)
        if following == stage or len(runs) == net.limit[op]:
            continue
        for tensor in net.outputs[net.out_ptr[op] : net.out_ptr[op + 1]]:
            readers = net.readers[net.reader_ptr[tensor] : net.reader_ptr[tensor + 1]]
            reads = {state.runs[reader, i] for reader in readers for i in range(state.times[reader])}
            if net.kept[tensor]:
                reads.add(stages - 1)
            later = [read for read in reads if stage < read < following]
            if later and stage not in reads:
                found.add(op * stages + min(later))
    return sorted(found)
