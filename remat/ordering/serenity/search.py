"""Serenity: dynamic programme, divide and conquer, adaptive soft budgeting."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np

from remat.ordering.base import OnOrder, Ordering, OrderSearch
from remat.ordering.closed_sets import KERNELS
from remat.ordering.dynamic_programme import ENDLESS, Ending
from remat.ordering.instance import OrderInstance
from remat.ordering.serenity.budgets import Part, soft_budgets
from remat.ordering.serenity.division import segments
from remat.runtime.arrays import Int
from remat.runtime.checked_options import Options, Range
from remat.runtime.deadline import Deadline


@dataclass(frozen=True)
class SerenityOptions(Options):
    """Options of :class:`Serenity`.

    Attributes
    ----------
    divide : bool
        Divide the graph where every order has done the same ops, and order the parts separately.
    soft_budgets : bool
        Discard states above a budget, which bisection determines.
    step_seconds : float
        With soft budgets: the time limit for each level of the dynamic programme, the paper's hyperparameter T.
    lengthen : bool
        With soft budgets: once no budget is left to try, double that time and restart, until the deadline or until
        memory is the limit. Otherwise the search ends there, with the best order and the bound.
    memory_limit : int
        Memory for the states of the dynamic programme, in bytes.
    """

    divide: bool = True
    soft_budgets: bool = True
    step_seconds: Annotated[float, Range(above=0)] = 1.0
    lengthen: bool = True
    memory_limit: Annotated[int, Range(2**20)] = 2 * 2**30


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
        """Return whether the search is complete or the deadline has passed."""
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
