"""Adaptive soft budgeting: the dynamic programme with a budget that is as low as may be, and as high as must be."""

from __future__ import annotations

from dataclasses import dataclass, field

from remat.deadline import Deadline
from remat.ordering.instance import OrderInstance
from remat.ordering.programme import ENDLESS, Ending, Programme
from remat.ordering.rules import kahn_order
from remat.runtime.arrays import Int


@dataclass
class Part:
    """One part of the question, and what is known of it.

    Attributes
    ----------
    instance : OrderInstance
    programme : Programme
    order : int64 array
        The best order known, at first Kahn's.
    peak, bound : int
        Its peak, and what no order of the part has less of; bytes.
    failed : int
        The least budget at which the dynamic programme took too long or too much memory; bytes.
    endings : set of Ending
        How the dynamic programme ended, since the last beginning of :func:`soft_budgets`.
    states : int
    """

    instance: OrderInstance
    programme: Programme
    order: Int
    peak: int
    bound: int
    failed: int = ENDLESS
    endings: set[Ending] = field(default_factory=set)
    states: int = 0

    @classmethod
    def of(cls, instance: OrderInstance, most_bytes: int) -> Part:
        """The part with Kahn's order."""
        order = kahn_order(instance)
        programme = Programme(instance, most_bytes)
        return cls(instance, programme, order, instance.peak_of(order), instance.structural_bound)

    def run(self, deadline: Deadline, *, budget: int = ENDLESS, floor: int = 0, seconds: float | None = None) -> Ending:
        """Run the dynamic programme once, and take note of what it found."""
        found = self.programme.run(deadline, budget=budget, floor=floor, seconds=seconds)
        self.endings.add(found.ending)
        self.states += found.states
        self.bound = max(self.bound, found.bound)
        if found.order is not None:
            self.order, self.peak = found.order, self.instance.peak_of(found.order)
            self.bound = min(self.bound, max(floor, self.peak))
        return found.ending


def soft_budgets(part: Part, deadline: Deadline, *, hard: int, floor: int, seconds: float) -> None:
    """Serenity's Algorithm 2: bisection of the budget until the dynamic programme ends within it.

    The first budget is the peak of Kahn's order (`hard`, where that is lower). A budget within which there is no order
    is refuted: every order has at least the least peak that was left out, which is the new lower end. One with which a
    level takes longer than allowed is too high, though nothing is proved by that; the next one is half way to the lower
    end. The first one that gives an order gives the best, since the dynamic programme keeps the least peak. The paper's
    bisection has no end where every budget is refuted or takes too long; here it ends when no budget is left between
    the largest that was refuted and the least that took too long, and the lower end is the bound.

    Parameters
    ----------
    part : Part
        Takes note of what is found.
    deadline : Deadline
    hard : int
        Bytes; orders with a higher peak are not wanted.
    floor : int
        Bytes; what the whole question needs anyhow.
    seconds : float
        For each level, the paper's T.
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
