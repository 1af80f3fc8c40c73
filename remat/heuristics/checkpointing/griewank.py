"""Griewank and Walther's REVOLVE: optimal checkpointing of a chain of equal steps, by binomial coefficients."""

from __future__ import annotations

from collections.abc import Iterator
from math import comb

import numpy as np

from remat.heuristics.checkpointing.base import Checkpointing
from remat.problem import Problem
from remat.problem.op_sequence import useful_schedule
from remat.problem.training_step import TrainingStep
from remat.schedule import Schedule


def repetitions(length: int, slots: int) -> int:
    """Return the least r with ``comb(slots + r, slots) >= length``: the most times that a step runs.

    Examples
    --------
    >>> repetitions(10, 3), repetitions(11, 3), repetitions(1, 3)
    (2, 3, 0)
    """
    r = 0
    while comb(slots + r, slots) < length:
        r += 1
    return r


def advances(length: int, slots: int) -> int:
    """Return the least forward advances for reversing a chain: ``r l - comb(c + r, c + 1)``.

    `length`: l, the steps to reverse, from 1. `slots`: c, the states that can be stored at a time, *including* the
    initial state, from 1.

    Notes
    -----
    Griewank and Walther, "Algorithm 799: Revolve", ACM TOMS 26 (2000), proposition 1. A common off-by-one is to leave
    out the initial state.

    Examples
    --------
    >>> [advances(l, 2) for l in range(1, 13)]
    [0, 1, 2, 4, 6, 8, 11, 14, 17, 20, 24, 28]
    """
    r = repetitions(length, slots)
    return r * length - comb(slots + r, slots + 1)


def first_advance(length: int, slots: int) -> int:
    """Return the number of steps to advance before storing the next state, for the least advances in total.

    The smallest k with ``comb(c + r - 2, c) <= k <= comb(c + r - 1, c)`` and
    ``comb(c + r - 2, c - 1) <= l - k <= comb(c + r - 1, c - 1)``. With one slot only the first state is stored, and
    the advance goes to the last step.

    Examples
    --------
    >>> first_advance(10, 3), first_advance(9, 1)
    (4, 8)
    """
    if slots == 1:
        return length - 1
    r = repetitions(length, slots)
    shortest = comb(slots + r - 2, slots) if r >= 2 else 1
    return max(1, shortest, length - comb(slots + r - 1, slots - 1))


def reversal(length: int, slots: int) -> Iterator[tuple[str, int]]:
    """Yield the actions that reverse a chain with the least advances.

    ``("advance", i)`` computes state i + 1 from state i, ``("turn", i)`` reverses step i. Steps 0 .. length - 1 are
    turned from the last to the first, each from its state i. There is no recursion, so chains may be long.

    Examples
    --------
    >>> " ".join(f"{what[0]}{step}" for what, step in reversal(4, 2))
    'a0 a1 a2 t3 a1 t2 t1 t0'
    """
    todo = [(0, length, slots)]
    while todo:
        start, length, slots = todo.pop()
        if length == 1:
            yield "turn", start
            continue
        k = first_advance(length, slots)
        for step in range(start, start + k):
            yield "advance", step
        todo.append((start, k, slots))
        todo.append((start + k, length - k, slots - 1 if slots > 1 else 1))


class GriewankWalther(Checkpointing):
    """REVOLVE: the least forward computes for a number of stored states, on a chain of equal steps.

    Griewank and Walther, ACM TOMS 26 (2000), there for time steps; Checkmate (MLSys 2020, table 1) calls it "Griewank &
    Walther log n". Its schedules follow from binomial coefficients; the published program of Checkmate downloads
    them. All numbers of stored states are tried, the cheapest schedules first.

    On the unit chain of n forward ops with budget B ≥ 3 it is optimal: n + 1 + t(n + 1, B - 2). There t counts the
    initial state as stored. On other chains it is only a heuristic: sizes and costs count as equal, and the published
    "states" are tensors of different sizes. Backward ops run with the forward op that they belong to
    (:attr:`TrainingStep.mirror`), the loss with the last one.

    Examples
    --------
    >>> from remat.graphs.families import unit_chain
    >>> from remat.heuristics import HeuristicRun
    >>> GriewankWalther().run(Problem(unit_chain(8), 4), HeuristicRun()).num_computes
    26
    """

    name = "griewank-walther"
    options_type = None

    def candidates(self, problem: Problem) -> Iterator[Schedule]:
        step = TrainingStep.of(problem)
        step.require_chain(self.name)
        for slots in range(step.num_forward, 0, -1):
            yield _reversed_with(step, slots, self.name)


def _reversed_with(step: TrainingStep, slots: int, source: str) -> Schedule:
    """Return the schedule with `slots` stored states, where state i + 1 is the output of forward op i.

    Computes beyond an op's limit are omitted: the value is then held from the previous compute.
    """
    turned: list[list[int]] = [[] for _ in range(step.num_forward + 1)]
    for backward, forward in enumerate(step.mirror.tolist(), step.first_backward):
        turned[forward + 1].append(backward)
    turned[-1][:0] = range(step.num_forward, step.first_backward)
    left = [len(turned) if limit is None else limit for limit in step.problem.compute_limits]
    order = step.problem.graph.arrays.order.tolist()
    sequence: list[int] = []
    for what, state in reversal(len(turned), slots):
        for position in [state] if what == "advance" else turned[state]:
            op = order[position]
            if left[op]:
                left[op] -= 1
                sequence.append(op)
    return useful_schedule(step.problem, np.array(sequence, dtype=np.int64), source)
