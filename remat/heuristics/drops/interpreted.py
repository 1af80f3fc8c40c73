"""Drops by Python itself, for the time until the compiled ones are there."""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import numpy as np

from remat.compiled.interpreted import interpreted
from remat.deadline import Deadline
from remat.formulations.sequence import useful_schedule
from remat.heuristics.base import Heuristic, HeuristicRun
from remat.heuristics.drops.heuristic import (
    CHAINS,
    MANY,
    SLACK,
    SLACK_OF_MANY,
    Drops,
    DropsOptions,
    bare_tables,
    given_orders,
)
from remat.problem import Problem
from remat.runtime.arrays import Int
from remat.schedule import Schedule

#: Ops that candidates are looked for between two looks at the clock.
BATCH = 100


class InterpretedDrops(Heuristic):
    """Drops that need no compiled code: the first schedule within the budget, or the one that exceeds it least.

    The same functions as those of :class:`remat.heuristics.drops.Drops`, run by Python. That takes about thirty times
    as long: a second or less for random layered graphs of 1,000 ops at 80 %. One leaning is tried after the other until
    a schedule fits; there is no list scheduling, and no beginning with the recomputations of a start.

    Examples
    --------
    >>> from remat.graphs.families import unit_chain
    >>> from remat.schedule import simulate
    >>> problem = Problem(unit_chain(8), 7)
    >>> simulate(problem.graph, InterpretedDrops().run(problem, HeuristicRun())).peak
    7
    """

    name = "interpreted drops"
    options_type = DropsOptions

    def run(self, problem: Problem, run: HeuristicRun) -> Schedule | None:
        if problem.budget_bytes is None:
            return Schedule.reference(problem.graph)
        least: int | None = None
        schedule = None
        for order in given_orders(problem, run.start):
            net, state = bare_tables(problem, order)
            for leaning in self.options.leanings:
                excess, sequence = descent(net, state, leaning, run.deadline)
                if least is None or excess < least:
                    least, schedule = excess, useful_schedule(problem, sequence, Drops.name)
                if least == 0 or run.deadline.expired:
                    return schedule
        return schedule


class _Functions(NamedTuple):
    """What is compiled elsewhere."""

    start: Any
    candidates: Any
    change_many: Any


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

    instead = {"excess_change": excess_change, "add": add}  # memory in one piece instead of blocks
    change_many = interpreted(search_kernel.change_many, instead)
    return _Functions(interpreted(stages_kernel.start), interpreted(search_kernel.candidates), change_many)


def descent(net: Any, state: Any, leaning: float, deadline: Deadline) -> tuple[int, Int]:
    """What :func:`remat.heuristics.drops.heuristic.descend` does, with the same result where time allows.

    Parameters
    ----------
    net : StageGraph
    state : StagedSchedule
        Of arrays, which are not changed; the memory of the stages need not be there.

    Returns
    -------
    excess : int
        Bytes above the budget, summed over the stages.
    sequence : int64 array
        The computes, by op.
    """
    from remat.heuristics.drops.stages_kernel import EXCESS

    functions = _functions()
    there = np.nonzero(np.arange(state.runs.shape[1]) < state.times[:, None])
    places = zip(*(each.tolist() for each in there), strict=True)
    runs = dict(zip(places, state.runs[there].tolist(), strict=True))
    net = type(net)(*(table.tolist() for table in net))
    state = type(state)(runs, *(table.tolist() for table in state[1:]))
    functions.start(net, state)
    state = state._replace(memory=np.array(state.memory, dtype=np.int64), lazy=[0] * len(state.lazy))
    number, num_ops = state.number, len(net.cost)
    slack = SLACK if num_ops < MANY else SLACK_OF_MANY
    for chain in CHAINS:
        taken = -1
        while taken and number[EXCESS] > 0 and not deadline.expired:
            keys, items, left = _candidates(functions, net, state, deadline)
            found, taken = [0] * chain, 0
            while left and number[EXCESS] > 0 and not deadline.expired:
                left, more = functions.change_many(net, state, keys, items, left, found, 1, leaning, slack, [], [])
                taken += more
    if number[EXCESS] == 0:
        again = [(op, runs[op, i]) for op in range(num_ops) for i in range(1, state.times[op])]
        for op, stage in sorted(again, key=lambda each: (-net.cost[each[0]], *each)):
            if deadline.expired:
                break
            functions.change_many(net, state, [], [], 0, [], 0, 1.0, 1.0, [op], [stage])
    computes = [(runs[op, i], net.position[op], op) for op in range(num_ops) for i in range(state.times[op])]
    return number[EXCESS], np.array([op for _, _, op in sorted(computes)], dtype=np.int64)


def _candidates(functions: _Functions, net: Any, state: Any, deadline: Deadline) -> tuple[list[float], list[int], int]:
    """A heap of drops with their keys, and how many there are."""
    num_ops = len(net.cost)
    room = 2 * len(net.readers) + sum(state.times) + 100_000
    keys, items, over = [0.0] * room, [0] * room, [0] * (num_ops + 2)
    uses = [0] * (sum(state.times[reader] for reader in net.readers) + len(net.size))
    held = state._replace(memory=state.memory.tolist())
    left = 0
    for first in range(0, num_ops, BATCH):
        if deadline.expired:
            break
        last = min(first + BATCH, num_ops)
        left = functions.candidates(net, held, keys, items, left, first, last, over, uses)
    return keys, items, left
