"""Bound on the peak of schedules with any number of computes, by a search backwards over sets of live tensors."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import reduce
from heapq import heappop, heappush
from math import inf
from operator import or_

import numpy as np

from remat.bounds.base import Bound, bound_on_peak
from remat.bounds.peak_bounds import structural_bound
from remat.problem import Problem
from remat.problem.scope import EVERY_SCHEDULE
from remat.runtime.deadline import Deadline

#: Ops of the largest graph: each set takes a bit per tensor.
MOST_OPS = 5_000
#: Sets evaluated for each op, in rounds: refutations are often short, and most sets of others are vain. The last takes
#: some hundredths of a second for each op.
ROUNDS = 100, 2_000


def live_set_bound(problem: Problem, *, deadline: float | Deadline | None = None) -> Bound:
    """Return a bound on the peak of every schedule, from the tensors that must be live together.

    Let the tensors ``S`` be live together, for example the inputs of an op. One of them was written last, by op ``w``.
    At that step, ``S`` and the inputs and outputs of ``w`` were in memory; right before it, the inputs of ``w`` and the
    tensors of ``S`` that ``w`` does not write were live. So the peak is at least the least, over all such sequences of
    sets down to the empty one, of the largest memory of a step. The bound is the largest such value over all ops, and
    over the tensors to keep.

    It is exact up to two relaxations: one contribution completes an accumulation buffer, and limits of computes are
    ignored. Sets are explored while memory stays within the best bound so far; if none is left, the bound rises to the
    least memory beyond it. Beyond the last of :data:`ROUNDS`, the bound so far stands.

    Parameters
    ----------
    deadline : float, Deadline or None
        At the deadline, the best value so far is the bound. It is at least the structural bound, which is the result
        for graphs of more than :data:`MOST_OPS` ops and for problems with a host memory.

    Returns
    -------
    Bound
        On the peak; `infeasible` if it exceeds the budget.

    Examples
    --------
    A product of two tensors: one stays live while the other is computed from a large tensor.

    >>> from remat.graphs import GraphBuilder
    >>> b = GraphBuilder("product")
    >>> for side in "ab":
    ...     _ = b.op(f"large_{side}", size=10)
    ...     _ = b.op(f"small_{side}", inputs=[f"large_{side}"], size=3)
    >>> _ = b.op("product", inputs=["small_a", "small_b"], size=1)
    >>> problem = Problem(b.build())
    >>> structural_bound(problem).value, live_set_bound(problem).value
    (13, 16)
    """
    began, clock, first = time.monotonic(), Deadline.of(deadline), structural_bound(problem)
    if problem.can_move or len(problem.graph.ops) > MOST_OPS:
        return first
    game = _Game(problem)
    bound, cause = (first.value or 0) - problem.constant_bytes, ""
    names, needs = problem.graph.op_names, problem.graph.arrays.op_bytes
    goals = [("", game.kept), *((names[op], game.reads[op]) for op in np.argsort(-needs, kind="stable").tolist())]
    for most in ROUNDS:
        open_goals = []
        for name, goal in goals:
            if clock.expired:
                break
            value, decided = game.least(goal, bound, most, clock)
            if value > bound:
                bound, cause = value, name
            if not decided:
                open_goals.append((name, goal))
        goals = open_goals
    bound += problem.constant_bytes
    if bound == first.value:
        return first
    return bound_on_peak(problem, bound, "the live set bound", EVERY_SCHEDULE, cause=cause, began=began)


@dataclass
class _Game:
    """Sets of tensors that ops write, as bits numbered in the reference order, and steps backwards between them."""

    problem: Problem
    sizes: list[int] = field(init=False)
    writers: list[list[int]] = field(init=False)
    reads: list[int] = field(init=False)
    writes: list[int] = field(init=False)
    kept: int = field(init=False)

    def __post_init__(self) -> None:
        arrays = self.problem.graph.arrays
        last = arrays.producers.highest(arrays.position, -1)
        order = np.argsort(last, kind="stable")
        bit, own = np.argsort(order, kind="stable").tolist(), ~arrays.is_input
        self.sizes = arrays.size[order].tolist()
        producers = arrays.producers.shared_lists()
        self.writers = [list(producers[tensor]) for tensor in order.tolist()]
        tables = arrays.op_inputs.shared_lists(), arrays.op_outputs.shared_lists()
        self.reads, self.writes = ([_mask(bit[t] for t in row if own[t]) for row in table] for table in tables)
        self.kept = _mask(bit[t] for t in np.flatnonzero(self.problem.kept & own).tolist())
        self._needs = arrays.op_bytes.tolist()

    def least(self, goal: int, bound: int, most: int, clock: Deadline) -> tuple[int, bool]:
        """Return the least peak at which the tensors of `goal` can be live together, at least `bound`, and True.

        Beyond `most` sets or at the deadline, return a bound on it and False. Sets whose last op comes first in the
        reference order are expanded first, and of those the smallest.
        """
        while not clock.expired:
            beyond, start = inf, self._reduced(goal, bound)
            known, queue = {start}, [(start.bit_length(), self._bytes(start), start)]
            while queue:
                live = heappop(queue)[-1]
                if not live or len(known) > most or clock.expired:
                    return bound, not live
                for op in {op for tensor in _numbers(live) for op in self.writers[tensor]}:
                    memory = self._memory(op, live)
                    if memory > bound:
                        beyond = min(beyond, memory)
                        continue
                    before = self._reduced(self._before(op, live), bound)
                    if before not in known:
                        known.add(before)
                        heappush(queue, (before.bit_length(), self._bytes(before), before))
            bound = int(beyond)
        return bound, False

    def _reduced(self, live: int, bound: int) -> int:
        """Leave out tensors that an op can write from others of the set within the bound: the smaller set suffices."""
        for tensor in reversed(list(_numbers(live))):
            for op in self.writers[tensor] if live >> tensor & 1 else ():
                inside = not self.reads[op] & (~live | self.writes[op])
                if inside and self._memory(op, live) <= bound:
                    live = self._before(op, live)
                    break
        return live

    def _before(self, op: int, live: int) -> int:
        """Return the tensors that must be live before a step of `op`, so that those of `live` are after it."""
        return (live & ~self.writes[op]) | self.reads[op]

    def _memory(self, op: int, live: int) -> int:
        """Return the memory of a step of `op` with the tensors of `live`."""
        return int(self._needs[op]) + self._bytes(live & ~(self.reads[op] | self.writes[op]))

    def _bytes(self, live: int) -> int:
        return sum(self.sizes[tensor] for tensor in _numbers(live))


def _mask(bits: Iterable[int]) -> int:
    """Return the set with some bits."""
    return reduce(or_, (1 << bit for bit in bits), 0)


def _numbers(live: int) -> Iterator[int]:
    """Yield the numbers of the bits of a set, ascending."""
    while live:
        lowest = live & -live
        yield lowest.bit_length() - 1
        live ^= lowest
