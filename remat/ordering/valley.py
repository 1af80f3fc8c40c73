"""Search from valley to valley, alone or after the rules: the method of ``auto`` for orders."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from remat.ordering.base import OnOrder, Ordering, OrderSearch
from remat.ordering.climb import Climb
from remat.ordering.instance import OrderInstance
from remat.ordering.limit_search import KERNELS
from remat.ordering.rules import RULES, Kahn, Rule
from remat.runtime.arrays import Int
from remat.runtime.deadline import Deadline

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
        climb = Climb(instance, min(high, instance.structural_bound), high, on_order)
        for order in self._orders(instance, clock):
            climb.see(order)
            if climb.done:
                break
        if not climb.done and clock.remaining > SETUP_PER_OP * instance.num_ops:
            climb.start(seed)
            climb.cut(clock.earlier(CUT_SHARE * clock.remaining))
            while not climb.done and not clock.expired:
                climb.round(clock)
        return Ordering(climb.order, None if climb.order is None else climb.high, climb.low, climb.states)

    def _orders(self, instance: OrderInstance, clock: Deadline) -> Iterator[Int]:
        yield instance.reference
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
