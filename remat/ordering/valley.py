"""The search from valley to valley: the least peak by asking for one limit after the other, forwards and backwards."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from remat.deadline import Deadline
from remat.ordering.base import OnOrder, Ordering, OrderSearch
from remat.ordering.instance import OrderInstance
from remat.ordering.lifetimes import Lifetimes
from remat.ordering.limit_search import KERNELS, Answer, LimitSearch
from remat.ordering.rules import kahn_order

Int = NDArray[np.int64]

#: Work for one limit in the first round, and by how much it grows; ops behind a state that are looked at, likewise.
FIRST_WORK, MORE_WORK, FIRST_WINDOW, MOST_WINDOW = 300_000, 4, 128, 4096
#: A round ends when what is open between answers and failures is this share of what is open altogether.
FINE = 16
#: Share of the time for the bound by cuts.
CUT_SHARE = 0.2


@dataclass
class Climb:
    """What is known of the least peak of an instance, and the search that narrows it down, in rounds.

    Attributes
    ----------
    low, high : int
        No order has a peak below `low`; one below `high` is looked for.
    order : int64 array or None
        The best order found, with a peak of `high`.
    """

    instance: OrderInstance
    low: int
    high: int
    seed: int = 0
    on_order: OnOrder | None = None
    order: Int | None = None
    stopped: bool = False
    rounds: int = 0

    def __post_init__(self) -> None:
        lifetimes = Lifetimes.of(self.instance)
        self._searches = [LimitSearch(lifetimes, self.seed), LimitSearch(lifetimes.mirrored, self.seed)]
        self._first = 0

    @property
    def done(self) -> bool:
        """Whether there is nothing left to be found out."""
        return self.stopped or self.low >= self.high

    @property
    def states(self) -> int:
        """States looked at so far."""
        return sum(search.states for search in self._searches)

    def see(self, order: Int) -> None:
        """An order that may be better than the best one."""
        peak = self.instance.peak_of(order)
        if peak < self.high:
            self.high, self.order = peak, order
            if self.on_order is not None:
                self.stopped = self.on_order(order, peak) or self.stopped

    def cut(self, deadline: Deadline) -> None:
        """Raise the bound by cuts at the ops whose steps hold the most in the best order known."""
        order = self.instance.reference if self.order is None else self.order
        profile = self.instance.profile(order)
        for step in np.argsort(-profile, kind="stable").tolist():
            if profile[step] <= self.low or deadline.expired:
                break
            self.low = max(self.low, min(self.high, self._searches[0].cut_at(int(order[step]))))

    def round(self, deadline: Deadline) -> None:
        """Ask for limits between the bounds, with a limit on the work for each that grows from round to round."""
        work = FIRST_WORK * MORE_WORK**self.rounds
        window = min(MOST_WINDOW, FIRST_WINDOW << self.rounds)
        if self.rounds:
            for search in self._searches:
                search.shuffle(self.seed + self.rounds, self.rounds % 2)
        self.rounds += 1
        failed: list[int] = []
        limit: int | None = self.low
        while limit is not None and not self.done and not deadline.expired:
            answer = self._ask(limit, work, window, deadline)
            if answer is Answer.OPEN:
                failed.append(limit)
            failed = [limit for limit in failed if self.low <= limit < self.high]
            limit = self._next(failed)

    def _next(self, failed: list[int]) -> int | None:
        """The limit to be asked for next in this round."""
        if self.done:
            return None
        if not failed:
            return (self.low + self.high - 1) // 2
        below, above = min(failed) - self.low, self.high - 1 - max(failed)
        if max(below, above) <= (self.high - self.low) // FINE:
            return None
        return self.low + (below - 1) // 2 if below > above else max(failed) + (above + 1) // 2

    def _ask(self, limit: int, work: int, window: int, deadline: Deadline) -> Answer:
        """Look for an order within a limit from both ends, the one first that answered last."""
        for share in (4, 1):
            for at in (self._first, 1 - self._first):
                search = self._searches[at]
                answer = search.go(limit, work // share, window=window, deadline=deadline)
                if answer is Answer.OPEN:
                    continue
                self._first = at
                if answer is Answer.REFUTED:
                    self.low = min(self.high, search.above)
                else:
                    self.see(search.order[::-1].copy() if at else search.order)
                return answer
        return Answer.OPEN


class ValleySearch(OrderSearch):
    """Asks whether there is an order within a limit, for one limit after the other; see docs/ordering/valley.md."""

    name = "valley-order"
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
        """The order of least peak, or a better one and a bound when time is over."""
        clock = deadline or Deadline()
        if not instance.num_ops:
            return Ordering(instance.reference, 0, 0)
        orders = [instance.reference, kahn_order(instance)]
        peaks = [instance.peak_of(order) for order in orders]
        high = min(peaks) + 1 if upper is None else upper
        climb = Climb(instance, min(high, instance.structural_bound), high, seed, on_order)
        for order in orders:
            climb.see(order)
        if not climb.done:
            climb.cut(clock.earlier(CUT_SHARE * clock.remaining))
        while not climb.done and not clock.expired:
            climb.round(clock)
        peak = None if climb.order is None else climb.high
        return Ordering(climb.order, peak, climb.low, climb.states)
