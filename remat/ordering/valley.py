"""The search from valley to valley, alone, and with the rules before it: what ``auto`` uses for orders."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from remat.deadline import Deadline
from remat.ordering.base import OnOrder, Ordering, OrderSearch
from remat.ordering.climb import Climb
from remat.ordering.instance import OrderInstance
from remat.ordering.limit_search import KERNELS
from remat.ordering.rules import RULES, Kahn, Rule
from remat.runtime.arrays import Int

#: Share of the time for the bound by cuts, and for each rule.
CUT_SHARE, RULE_SHARE = 0.2, 0.05
#: Seconds for each op that a rule, or setting up the search, may take; what there is less time for is left out.
SETUP_PER_OP = 5e-5


class ValleySearch(OrderSearch):
    """Asks whether there is an order within a limit, for one limit after the other; see docs/ordering/valley.md."""

    name = "valley-order"
    kernels = (KERNELS,)
    rules: ClassVar[tuple[type[Rule], ...]] = (Kahn,)
    """Those whose orders it begins from, beside the reference order."""

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
    """All rules, then the search from valley to valley; never worse than the best of the rules that had time."""

    name = "order-portfolio"
    rules = RULES
