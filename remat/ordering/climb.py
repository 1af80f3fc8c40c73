"""What is known of the least peak of an instance, narrowed down by limits that are found, refuted or left open."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from remat.bounds.flow import BoundaryNetwork
from remat.deadline import Deadline
from remat.ordering.base import OnOrder
from remat.ordering.instance import OrderInstance
from remat.ordering.lifetimes import Lifetimes
from remat.ordering.limit_search import Answer, LimitSearch
from remat.ordering.repair import repaired
from remat.runtime.arrays import Int

#: Work for one limit in the first round, and by how much it grows; ops behind a state that are looked at, likewise.
FIRST_WORK, MORE_WORK, FIRST_WINDOW, MOST_WINDOW = 300_000, 4, 128, 4096
#: A round ends when what is open between answers and failures is this share of what is open altogether.
FINE = 16
#: Ops before and after the largest step of the best order, for bounds of a part alone; ops with which that is tried.
REACHES, PARTS_FROM, PARTS_TO = (50, 100, 200, 400, 800), 100, 5000


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
    on_order: OnOrder | None = None
    order: Int | None = None
    stopped: bool = False
    rounds: int = 0
    _searches: list[LimitSearch] = field(default_factory=list, repr=False)
    _part_states: int = 0
    _first: int = 0

    def start(self, seed: int = 0) -> None:
        """Set up the searches from both ends; before any of what follows but :meth:`see`."""
        self.seed = seed
        self._lifetimes = Lifetimes.of(self.instance)
        self._searches = [LimitSearch(self._lifetimes, seed), LimitSearch(self._lifetimes.mirrored, seed)]

    @property
    def done(self) -> bool:
        """Whether there is nothing left to be found out."""
        return self.stopped or self.low >= self.high

    @property
    def states(self) -> int:
        """States looked at so far."""
        return self._part_states + sum(search.states for search in self._searches)

    def see(self, order: Int) -> None:
        """An order that may be better than the best one."""
        peak = self.instance.peak_of(order)
        if peak < self.high:
            self.high, self.order = peak, order
            if self.on_order is not None:
                self.stopped = self.on_order(order, peak) or self.stopped

    def cut(self, deadline: Deadline) -> None:
        """Raise the bound by cuts at the ops whose steps hold the most in the best order known."""
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
        if PARTS_FROM <= self.instance.num_ops <= PARTS_TO and not self.done:
            self._parts(work, deadline)

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
        """Look for an order within a limit from both ends, the one first that answered last, and by repair."""
        for share in (4, 1):
            if share == 1 and self.order is not None:
                order = repaired(self.instance, self.order, limit, work, deadline)
                if order is not None:
                    self.see(order)
                    return Answer.FOUND
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

    def _parts(self, work: int, deadline: Deadline) -> None:
        """Raise the bound by what is sure of the ops around the largest step of the best order alone."""
        order = self.instance.reference if self.order is None else self.order
        step = int(self.instance.profile(order).argmax())
        for reach in REACHES:
            if 2 * reach > len(order) or self.done or deadline.expired:
                return
            ops = np.sort(order[max(0, step - reach) : step + reach + 1])
            window = self._lifetimes.window(ops)
            ways = [LimitSearch(window), LimitSearch(window.mirrored)]
            limit = self.low
            while not self.done and not deadline.expired:
                answers = [way.go(limit, work, deadline=deadline) for way in ways]
                if Answer.REFUTED not in answers:
                    break
                above = max(w.above for w, answer in zip(ways, answers, strict=True) if answer is Answer.REFUTED)
                self.low = min(self.high, above)
                limit = (self.low + self.high - 1) // 2
            self._part_states += sum(way.states for way in ways)
