"""Adaptive soft budgeting: bisection of the budget of the dynamic programme."""

from __future__ import annotations

from dataclasses import dataclass, field

from remat.ordering.dynamic_programme import ENDLESS, Ending, Programme
from remat.ordering.instance import OrderInstance
from remat.ordering.rules import kahn_order
from remat.runtime.arrays import Int
from remat.runtime.deadline import Deadline


@dataclass
class Part:
    """Part of an ordering problem with its best order and bounds.

    Attributes
    ----------
    instance : OrderInstance
    programme : Programme
    order : int64 array
        Best known order, initially Kahn's.
    peak, bound : int
        Its peak, and a lower bound of all orders of the part; bytes.
    failed : int
        Least budget at which the dynamic programme took too long or too much memory; bytes.
    endings : set of Ending
        Endings of the dynamic programme since the last start of :func:`soft_budgets`.
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
