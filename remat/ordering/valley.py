"""Search from valley to valley: limits that it finds, refutes or leaves open narrow the interval of the least peak."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from remat.bounds.flow import BoundaryNetwork
from remat.ordering.base import OnOrder, Ordering, OrderSearch
from remat.ordering.instance import OrderInstance
from remat.ordering.lifetimes import Lifetimes
from remat.ordering.limit_search import KERNELS, Answer, TwoWaySearch
from remat.ordering.numbering import by_structure
from remat.ordering.rules import RULES, Kahn, Rule
from remat.runtime.arrays import Int
from remat.runtime.deadline import Deadline, OverdueError

#: Ops before and after a step above the limit in the first attempt; growth factor; largest number of ops of a stretch.
FIRST_REACH, MORE_REACH, MOST_OPS = 12, 2, 2000


def repaired(instance: OrderInstance, order: Int, limit: int, work: int, deadline: Deadline) -> Int | None:
    """Return an order within a limit, made from one that exceeds it; None if the repair fails.

    The first step above the limit and some steps around it form a problem of their own, with the tensors live before
    and after it given. The search from valley to valley solves it, forwards and backwards. An unsolved stretch is
    lengthened, up to half of the order, so all decisions remain heuristic.

    Parameters
    ----------
    instance : OrderInstance
    order : int64 array, shape (ops,)
    limit : int
        Bytes.
    work : int
        Limit for each stretch, see :meth:`remat.ordering.limit_search.LimitSearch.go`.
    deadline : Deadline
    """
    order = order.copy()
    reach, at = FIRST_REACH, -1
    while True:
        above = np.flatnonzero(instance.profile(order) > limit)
        if not len(above):
            return order
        if above[0] != at:
            reach, at = FIRST_REACH, int(above[0])
        start, end = max(0, at - reach), min(len(order), at + reach + 1)
        if deadline.expired or end - start > min(MOST_OPS, max(2 * FIRST_REACH + 1, len(order) // 2)):
            return None
        numbers = np.sort(order[start:end])
        search = TwoWaySearch(Lifetimes.of(instance.part(numbers, order[:start])))
        if search.go(limit, work, deadline) is Answer.FOUND:
            order[start:end] = numbers[search.order]
        elif len(numbers) == len(order):
            return None
        else:
            reach *= MORE_REACH


#: Work for one limit in the first round, and its growth factor; first and largest window of ops for valleys.
FIRST_WORK, MORE_WORK, FIRST_WINDOW, MOST_WINDOW = 300_000, 4, 128, 4096
#: A round ends when the gaps around failed limits are at most one FINE-th of the open interval.
FINE = 16
#: A round ends with repairs; the first is for a limit this part of the open interval below the best peak.
DESCENT = 64
#: Ops before and after the largest step of the best order for bounds of a part; range of ops where parts are tried.
REACHES, PARTS_FROM, PARTS_TO = (50, 100, 200, 400, 800), 100, 5000


@dataclass
class Climb:
    """Interval of the least peak of an instance, and a search that narrows it in rounds."""

    instance: OrderInstance
    low: int
    """No order has a lower peak, in bytes."""
    high: int
    """The search seeks an order with a lower peak, in bytes."""
    on_order: OnOrder | None = None
    order: Int | None = None
    """Best order found, with a peak of `high`."""
    stopped: bool = False
    rounds: int = 0
    states: int = 0
    """Number of states evaluated."""

    def start(self, seed: int = 0) -> None:
        """Set up the searches from both ends; required before all other methods except :meth:`see`."""
        self.seed = seed
        self._lifetimes = Lifetimes.of(self.instance)
        self._search = TwoWaySearch(self._lifetimes, seed)

    @property
    def done(self) -> bool:
        """True when the search is stopped or the interval is closed."""
        return self.stopped or self.low >= self.high

    def see(self, order: Int) -> None:
        """Record an order that may be better than the best one."""
        peak = self.instance.peak_of(order)
        if peak < self.high:
            self.high, self.order = peak, order
            if self.on_order is not None:
                self.stopped = self.on_order(order, peak) or self.stopped

    def cut(self, deadline: Deadline) -> None:
        """Raise the bound by cuts at the ops whose steps hold the most in the best known order."""
        lives = self._lifetimes
        network = BoundaryNetwork(
            lives.predecessors, lives.successors, lives.begins, lives.ends, lives.live, lives.kept
        )
        order = self.instance.reference if self.order is None else self.order
        profile = self.instance.profile(order)
        for step in np.argsort(-profile, kind="stable").tolist():
            if profile[step] <= self.low or deadline.expired:
                break
            least = int(lives.op_bytes[order[step]]) + network.cut(int(order[step]), lives.size)
            self.low = max(self.low, min(self.high, least))

    def round(self, deadline: Deadline) -> None:
        """Try limits between the bounds, with a limit of work for each that grows from round to round."""
        work, before = FIRST_WORK * MORE_WORK**self.rounds, self._search.states
        window = min(MOST_WINDOW, FIRST_WINDOW << self.rounds)
        if self.rounds:
            self._search.shuffle(self.seed + self.rounds, self.rounds % 2)
        self.rounds += 1
        failed: list[int] = []
        limit: int | None = self.low
        while limit is not None and not self.done and not deadline.expired:
            answer = self._ask(limit, work, window, deadline)
            if answer is Answer.OPEN:
                failed.append(limit)
            failed = [limit for limit in failed if self.low <= limit < self.high]
            limit = self._next(failed)
        self._descend(work, deadline)
        self.states += self._search.states - before
        if PARTS_FROM <= self.instance.num_ops <= PARTS_TO and not self.done:
            self._parts(work, deadline)

    def _next(self, failed: list[int]) -> int | None:
        """Return the next limit to try in this round."""
        if self.done:
            return None
        if not failed:
            return (self.low + self.high - 1) // 2
        below, above = min(failed) - self.low, self.high - 1 - max(failed)
        if max(below, above) <= (self.high - self.low) // FINE:
            return None
        return self.low + (below - 1) // 2 if below > above else max(failed) + (above + 1) // 2

    def _ask(self, limit: int, work: int, window: int, deadline: Deadline) -> Answer:
        """Search for an order within a limit from both ends, the one that answered last first, and by repair."""
        for share in (4, 1):
            if share == 1 and self.order is not None:
                order = repaired(self.instance, self.order, limit, work, deadline)
                if order is not None:
                    self.see(order)
                    return Answer.FOUND
            answer = self._search.go(limit, work // share, deadline, window=window)
            if answer is Answer.REFUTED:
                self.low = min(self.high, self._search.above)
            elif answer is Answer.FOUND:
                self.see(self._search.order)
            if answer is not Answer.OPEN:
                return answer
        return Answer.OPEN

    def _descend(self, work: int, deadline: Deadline) -> None:
        """Repair the best order for limits slightly below its peak, and still closer ones where that fails."""
        step = max(1, (self.high - self.low) // DESCENT)
        while step and self.order is not None and not self.done and not deadline.expired:
            order = repaired(self.instance, self.order, max(self.low, self.high - step), work, deadline)
            if order is None:
                step //= 4
            else:
                self.see(order)

    def _parts(self, work: int, deadline: Deadline) -> None:
        """Raise the bound by limits refuted for only the ops around the largest step of the best order."""
        order = self.instance.reference if self.order is None else self.order
        step = int(self.instance.profile(order).argmax())
        for reach in REACHES:
            if 2 * reach > len(order) or self.done or deadline.expired:
                return
            ops = np.sort(order[max(0, step - reach) : step + reach + 1])
            search, limit = TwoWaySearch(self._lifetimes.window(ops)), self.low
            while not self.done and not deadline.expired and search.go(limit, work, deadline) is Answer.REFUTED:
                self.low = min(self.high, search.above)
                limit = (self.low + self.high - 1) // 2
            self.states += search.states


#: Share of the time for the bound by cuts, and for each rule.
CUT_SHARE, RULE_SHARE = 0.2, 0.05
#: Seconds per op that a rule, or the setup of the search, may take; steps that need more time are skipped.
SETUP_PER_OP = 5e-5


class ValleySearch(OrderSearch):
    """Search from valley to valley for one limit after another; see docs/ordering/valley.md."""

    name = "valley-order"
    kernels = (KERNELS,)
    rules: ClassVar[tuple[type[Rule], ...]] = (Kahn,)
    """Rules whose orders it starts from, in addition to the reference order."""

    def search(
        self,
        instance: OrderInstance,
        *,
        deadline: Deadline | None = None,
        seed: int = 0,
        upper: int | None = None,
        on_order: OnOrder | None = None,
    ) -> Ordering:
        """Return the order of least peak, or the best order and a bound at the deadline."""
        clock = deadline or Deadline()
        high = instance.peak_of(instance.reference) + 1 if upper is None else upper
        numbered, ops = self._numbered(instance, clock)
        seen = None if on_order is None else lambda order, peak: on_order(ops[order], peak)
        climb = Climb(numbered, min(high, numbered.structural_bound), high, seen)
        climb.see(np.argsort(ops))
        for order in self._orders(numbered, clock):
            if climb.done:
                break
            climb.see(order)
        if not climb.done and clock.remaining > SETUP_PER_OP * instance.num_ops:
            climb.start(seed)
            climb.cut(clock.earlier(CUT_SHARE * clock.remaining))
            while not climb.done and not clock.expired:
                climb.round(clock)
        best = climb.order
        return Ordering(
            None if best is None else ops[best], None if best is None else climb.high, climb.low, climb.states
        )

    @staticmethod
    def _numbered(instance: OrderInstance, clock: Deadline) -> tuple[OrderInstance, Int]:
        """Return the instance that is searched, and the numbers of its ops in `instance`."""
        if clock.remaining > SETUP_PER_OP * instance.num_ops:
            with suppress(OverdueError):
                return by_structure(instance, clock.earlier(RULE_SHARE * clock.remaining))
        return instance, instance.reference

    def _orders(self, instance: OrderInstance, clock: Deadline) -> Iterator[Int]:
        for rule in self.rules:
            if clock.remaining < SETUP_PER_OP * instance.num_ops:
                return
            found = rule().search(instance, deadline=clock.earlier(RULE_SHARE * clock.remaining))
            if found.order is not None:
                yield found.order


class Portfolio(ValleySearch):
    """All rules, then the search from valley to valley; never worse than the best rule that finished in time."""

    name = "order-portfolio"
    rules = RULES
