"""Serenity: the order of least peak by dynamic programming (Ahn et al., MLSys 2020)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

import numpy as np

from remat.ordering.base import OnOrder, Ordering, OrderSearch
from remat.ordering.closed_sets import KERNELS
from remat.ordering.dynamic_programme import ENDLESS, Ending, Programme
from remat.ordering.instance import OrderInstance
from remat.ordering.rules import kahn_order
from remat.runtime.arrays import Int
from remat.runtime.checked_options import Options, Range
from remat.runtime.deadline import Deadline


def cut_positions(instance: OrderInstance) -> list[int]:
    """Return each number k of ops, except 0 and all, such that the same k ops come first in every order.

    These are the first k ops of the reference order. The problem thus splits there into independent parts
    (:meth:`~remat.ordering.instance.OrderInstance.part`). Serenity cuts at single ops on which all later ones depend;
    this generalises it. No op in the set waits for its *last* ops; the *first* ops outside wait only for ops in it. A
    set of ops is done first in every order if and only if each last op has an edge to each first op outside. The
    function counts edges between the two while it takes ops in the reference order, in time O(ops + edges).

    Examples
    --------
    Two diamonds in sequence: a cut lies before and after each op that has no parallel op.

    >>> from remat import GraphBuilder, Problem
    >>> b = GraphBuilder("diamonds")
    >>> for name, reads in ("a", ""), ("b", "a"), ("c", "a"), ("d", "bc"), ("e", "d"), ("f", "d"), ("g", "ef"):
    ...     _ = b.op(name, inputs=list(reads), size=1)
    >>> cut_positions(OrderInstance.of(Problem(b.build())))
    [1, 3, 4, 6]
    """
    before, after = instance.predecessors.lists(), instance.successors.lists()
    waiting = [len(row) for row in before]
    first = {op for op, count in enumerate(waiting) if not count}  # of the ops outside
    last: set[int] = set()  # of the ops inside
    edges, cuts = 0, []
    for op in range(instance.num_ops):
        edges -= sum(other in last for other in before[op])
        first.remove(op)
        for other in before[op]:
            if other in last:
                edges -= sum(third in first for third in after[other])
                last.remove(other)
        last.add(op)
        for other in after[op]:
            waiting[other] -= 1
            if not waiting[other]:
                first.add(other)
                edges += sum(third in last for third in before[other])
        if first and edges == len(first) * len(last):
            cuts.append(op + 1)
    return cuts


def segments(instance: OrderInstance) -> list[tuple[int, int]]:
    """Return ranges of ops (first, one after the last) between the cuts; consecutive single ops form one range.

    Examples
    --------
    >>> from remat import Problem
    >>> from remat.graphs.families import unit_chain
    >>> segments(OrderInstance.of(Problem(unit_chain(3))))
    [(0, 7)]
    """
    ends = [*cut_positions(instance), instance.num_ops]
    ranges: list[tuple[int, int]] = []
    begin, alone = 0, False
    for end in ends:
        if end - begin == 1 and alone:
            ranges[-1] = ranges[-1][0], end
        elif end > begin:
            ranges.append((begin, end))
        alone = end - begin == 1
        begin = end
    return ranges


@dataclass
class Part:
    """Part of an ordering problem with its best order and bounds."""

    instance: OrderInstance
    programme: Programme
    order: Int
    """Best known order, initially Kahn's."""
    peak: int
    """Peak of that order in bytes."""
    bound: int
    """Lower bound of all orders of the part in bytes."""
    failed: int = ENDLESS
    """Least budget at which the dynamic programme took too long or too much memory; bytes."""
    endings: set[Ending] = field(default_factory=set)
    """Endings of the dynamic programme since the last start of :func:`soft_budgets`."""
    states: int = 0

    @classmethod
    def of(cls, instance: OrderInstance, most_bytes: int) -> Part:
        """Return the part with Kahn's order."""
        order = kahn_order(instance)
        programme = Programme(instance, most_bytes)
        return cls(instance, programme, order, instance.peak_of(order), instance.structural_bound)

    def run(self, deadline: Deadline, *, budget: int = ENDLESS, floor: int = 0, seconds: float | None = None) -> Ending:
        """Run the dynamic programme once and record its result."""
        found = self.programme.run(deadline, budget=budget, floor=floor, seconds=seconds)
        self.endings.add(found.ending)
        self.states += found.states
        self.bound = max(self.bound, found.bound)
        if found.order is not None:
            self.order, self.peak = found.order, self.instance.peak_of(found.order)
            self.bound = min(self.bound, max(floor, self.peak))
        return found.ending


def soft_budgets(part: Part, deadline: Deadline, *, hard: int, floor: int, seconds: float) -> None:
    """Run Serenity's Algorithm 2: bisection of the budget until the dynamic programme ends within it.

    The first budget is the peak of Kahn's order (`hard`, if that is lower). A budget without an order is refuted: the
    least discarded peak bounds every order and is the new lower end. A budget at which a level takes too long is too
    high, without proof; the next one is half way to the lower end. The first budget with an order gives an optimal one,
    since the dynamic programme keeps the least peak. The paper's bisection does not terminate if every budget is
    refuted or takes too long. This one ends when no budget is left between the largest refuted and the least that took
    too long; the lower end is then the bound.

    Parameters
    ----------
    part : Part
        Records the results.
    deadline : Deadline
    hard : int
        Bytes; orders with a higher peak are not accepted.
    floor : int
        Bytes; a lower bound for the whole problem.
    seconds : float
        Time limit for each level, the paper's T.
    """
    part.endings.clear()
    budget = min(part.peak, hard)
    while max(part.bound, floor) < part.peak and part.bound <= hard and not deadline.expired:
        ending = part.run(deadline, budget=budget, floor=floor, seconds=seconds)
        if ending in (Ending.SOLUTION, Ending.DEADLINE):
            return
        if ending is not Ending.NO_SOLUTION:
            part.failed = min(part.failed, budget)
        least = max(part.bound, floor)
        if least >= part.failed:
            return
        budget = (least + min(part.failed - 1, part.peak, hard)) // 2


@dataclass(frozen=True)
class SerenityOptions(Options):
    """Options of :class:`Serenity`."""

    divide: bool = True
    """Divide the graph where every order has done the same ops, and order the parts separately."""
    soft_budgets: bool = True
    """Discard states above a budget, which bisection determines."""
    step_seconds: Annotated[float, Range(above=0)] = 1.0
    """With soft budgets: the time limit for each level of the dynamic programme, the paper's hyperparameter T."""
    lengthen: bool = True
    """With soft budgets: once no budget is left to try, double that time and restart, until the deadline or until
    memory is the limit. Otherwise the search ends there, with the best order and the bound."""
    memory_limit: Annotated[int, Range(2**20)] = 2 * 2**30
    """Memory for the states of the dynamic programme, in bytes."""


class Serenity(OrderSearch):
    """Dynamic programme over signatures, with divide and conquer and adaptive soft budgeting.

    Source: Ahn et al., Ordering Chaos: Memory-Aware Scheduling of Irregularly Wired Neural Networks for Edge Devices,
    MLSys 2020, sections 3.1 and 3.2, Algorithms 1 and 2.

    The signature of a set of computed ops is its set of ready ops. It determines the computed ops (any other op is
    ready or depends on a ready one), and with them the live bytes. Of all orders with the same signature only one of
    least peak matters, so each level has one state per signature. Cuts, where every order has computed the same ops,
    divide the problem; tensors that are live across a part count in it. Within a part, states above a budget are
    discarded, and bisection determines the budget.

    The search ends with a proof, unless the deadline, its memory, or the time limit of the levels stops it. The bound
    is then the least peak of a finished level, or the largest refuted budget.

    Examples
    --------
    >>> from remat import Problem
    >>> from remat.graphs.families import unit_chain
    >>> found = Serenity().search(OrderInstance.of(Problem(unit_chain(4))))
    >>> found.peak, found.proved
    (6, True)
    """

    name = "serenity"
    options_type = SerenityOptions
    kernels = (KERNELS,)

    def search(
        self,
        instance: OrderInstance,
        *,
        deadline: Deadline | None = None,
        seed: int = 0,
        upper: int | None = None,
        on_order: OnOrder | None = None,
    ) -> Ordering:
        return _Search(self.options, instance, deadline or Deadline(), upper, on_order).run()


class _Search:
    """State of one search."""

    def __init__(
        self, options: SerenityOptions, instance: OrderInstance, deadline: Deadline, upper: int | None,
        on_order: OnOrder | None,
    ) -> None:  # fmt: skip
        self.options, self.instance, self.deadline, self.on_order = options, instance, deadline, on_order
        self.hard = ENDLESS if upper is None else upper - 1
        self.best: tuple[int, Int] | None = None
        self.enough = False
        ranges = segments(instance) if options.divide else [(0, instance.num_ops)][: instance.num_ops]
        self.parts = [self._part(begin, end, len(ranges)) for begin, end in ranges]

    def _part(self, begin: int, end: int, count: int) -> Part:
        if count == 1:
            return Part.of(self.instance, self.options.memory_limit)
        return Part.of(self.instance.part(range(begin, end), range(begin)), self.options.memory_limit)

    @property
    def floor(self) -> int:
        """Lower bound of all orders, in bytes."""
        return max([self.instance.structural_bound, *(part.bound for part in self.parts)])

    def run(self) -> Ordering:
        options = self.options
        self._tell()
        seconds = options.step_seconds
        while not self._over():
            for part in sorted(self._open, key=lambda part: part.instance.num_ops):
                if self._over():
                    break
                if options.soft_budgets:
                    soft_budgets(part, self.deadline, hard=self.hard, floor=self.floor, seconds=seconds)
                else:
                    part.run(self.deadline, floor=self.floor)
                self._tell()
            out_of_memory = any(Ending.MEMORY in part.endings for part in self._open)
            if not options.soft_budgets or not options.lengthen or out_of_memory:
                break
            seconds *= 2
            for part in self._open:
                part.failed = ENDLESS
        return self._ordering()

    @property
    def _open(self) -> list[Part]:
        """Parts whose orders may determine the peak."""
        floor = self.floor
        return [part for part in self.parts if part.peak > floor]

    def _over(self) -> bool:
        """Return True if the search is complete or the deadline has passed."""
        return self.enough or not self._open or self.floor > self.hard or self.deadline.expired

    def _tell(self) -> None:
        """Concatenate the orders of the parts and report the result."""
        peak = max((part.peak for part in self.parts), default=self.instance.held)
        if peak > self.hard or (self.best is not None and peak >= self.best[0]):
            return
        order = np.zeros(self.instance.num_ops, dtype=np.int64)
        begin = 0
        for part in self.parts:
            order[begin : begin + len(part.order)] = begin + part.order
            begin += len(part.order)
        self.best = peak, order
        self.enough = self.on_order is not None and self.on_order(order, peak)

    def _ordering(self) -> Ordering:
        notes = []
        if len(self.parts) > 1:
            largest = max(part.instance.num_ops for part in self.parts)
            notes.append(f"serenity divided the graph into {len(self.parts)} parts, the largest of {largest} ops")
        endings = {ending for part in self._open for ending in part.endings}
        if Ending.MEMORY in endings:
            notes.append(f"the tables of serenity do not fit into {self.options.memory_limit:,} bytes")
        elif Ending.TIMEOUT in endings and not self.deadline.expired:
            notes.append("serenity has no budget left between those refuted and those that take too long")
        states = sum(part.states for part in self.parts)
        peak, order = (None, None) if self.best is None else self.best
        bound = min(self.floor, self.hard + 1 if peak is None else peak)
        return Ordering(order, peak, bound, states, tuple(notes))
