"""Greedy rematerialization: repeatedly take the best drop at the worst stage, without compiled kernels."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np

from remat.heuristics.base import Best, Heuristic, HeuristicRun
from remat.heuristics.drops.heuristic import CHAINS, SLACK, Drops, descend, given_orders, sequence, tables, take_back
from remat.heuristics.drops.kernels import interpreted_kernels
from remat.problem import Problem
from remat.problem.op_sequence import useful_schedule
from remat.runtime.arrays import Int
from remat.runtime.deadline import Deadline
from remat.schedule import Schedule

#: Price of holding an input relative to recomputing it, as in drops. The last one never holds an input over the budget,
#: and is tried only if the others fail.
LEANINGS = (6.0, 2.0, 1e18)
#: The same where drops are chosen by price.
BY_PRICE = 2.0, 1.0, 6.0
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
    every op at most once in each stage. The interpreter runs the kernels of :class:`remat.heuristics.drops.Drops`,
    which choose among all stages at once. That takes a tenth of the time (1 s for 2,000 ops), so until drops are
    compiled, the default method has the interpreter choose like them, and ends with the first schedule. On networks
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
        interpreted_kernels()
        return True

    def run(self, problem: Problem, run: HeuristicRun) -> Schedule | None:
        if problem.budget_bytes is None:
            return Schedule.reference(problem.graph)
        best = Best(problem, run, problem.graph.base_cost)
        orders = given_orders(problem, run.start)
        brief = run.horizon is not None and not Drops.compiled()  # one of several methods, until drops are compiled
        by_price = [*product([_by_price], orders, BY_PRICE)] if brief else []
        for k, (descent, order, leaning) in enumerate([*by_price, *product([_by_stage], orders, LEANINGS)]):
            if best.enough or (k and run.deadline.expired) or (by_price and best.cost):
                break
            if leaning < LEANINGS[-1] or not best.cost:
                best.offer(useful_schedule(problem, descent(problem, order, leaning, run.deadline), self.name))
        return best.schedule


def _by_price(problem: Problem, order: Int, leaning: float, deadline: Deadline) -> Int:
    """Take the drops with the best price, as drops do; return the computes, by op."""
    net, state = tables(problem, order, compiled=False)
    descend(net, state, leaning, deadline)
    return sequence(net, state)


def _by_stage(problem: Problem, order: Int, leaning: float, deadline: Deadline) -> Int:
    """Drop until nothing exceeds the budget, nothing helps or time is up; return the computes, by op."""
    from remat.heuristics.drops.stages_kernel import EXCESS

    net, state = tables(problem, order, compiled=False)
    while state.number[EXCESS] > 0 and _drop(net, state, leaning, deadline):
        pass
    if state.number[EXCESS] == 0:
        take_back(net, state, deadline)
    return sequence(net, state)


def _drop(net: Any, state: Any, leaning: float, deadline: Deadline) -> bool:
    """Take the best drop across the worst stage, or across one of the next worst; return True if there was one."""
    from remat.heuristics.drops.search_kernel import DropHeap
    from remat.heuristics.drops.stages_kernel import BUDGET

    over = np.flatnonzero(state.memory > state.number[BUDGET])
    for stage in over[np.argsort(-state.memory[over], kind="stable")][:WORST].tolist():
        items = _across(net, state, stage)
        lists: Any = [0.0] * len(items), items, [0] * CHAINS[-1]
        heap, left = DropHeap(*lists), len(items)
        while left and not deadline.expired:
            left, taken = interpreted_kernels().change_many(net, state, heap, left, 1, (leaning, SLACK), ([], []))
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
