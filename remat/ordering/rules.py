"""Rules that make one order at a time: what compilers and frameworks do."""

from __future__ import annotations

import heapq

from remat.deadline import Deadline
from remat.ordering.base import OnOrder, Ordering, OrderSearch
from remat.ordering.instance import Int, OrderInstance


def kahn_order(instance: OrderInstance) -> Int:
    """Kahn's order: of the ops that are ready, the one that has been ready for the longest time.

    Source: A. B. Kahn, Topological sorting of large networks, 1962. Ops that are ready at the start, or become ready
    with the same op, come in the reference order.

    Examples
    --------
    >>> from remat import Problem
    >>> from remat.graphs.families import unit_chain
    >>> kahn_order(OrderInstance.of(Problem(unit_chain(3)))).tolist()
    [0, 1, 2, 3, 4, 5, 6]
    """
    waiting = instance.predecessors.counts.tolist()
    after = instance.successors.lists()
    ready = [(0, op) for op, count in enumerate(waiting) if not count]
    order = instance.reference
    for step in range(len(order)):
        op = order[step] = heapq.heappop(ready)[1]
        for other in after[op]:
            waiting[other] -= 1
            if not waiting[other]:
                heapq.heappush(ready, (step + 1, other))
    return order


class Kahn(OrderSearch):
    """Kahn's order, first in, first out: what many frameworks run, and what Serenity begins from."""

    name = "kahn"

    def search(
        self,
        instance: OrderInstance,
        *,
        deadline: Deadline | None = None,
        seed: int = 0,
        upper: int | None = None,
        on_order: OnOrder | None = None,
    ) -> Ordering:
        """One order, and the structural bound."""
        order = kahn_order(instance)
        peak = instance.peak_of(order)
        if upper is not None and peak >= upper:
            return Ordering(None, None, min(instance.structural_bound, upper))
        return Ordering(order, peak, instance.structural_bound)
