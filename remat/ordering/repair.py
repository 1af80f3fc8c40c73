"""Repair of an order: the stretches that hold too much are ordered anew, each with the rest as it is."""

from __future__ import annotations

import numpy as np

from remat.deadline import Deadline
from remat.ordering.instance import OrderInstance
from remat.ordering.lifetimes import Lifetimes
from remat.ordering.limit_search import Answer, TwoWaySearch
from remat.runtime.arrays import Int

#: Ops before and after a step that holds too much, in the first attempt; by how much they grow; ops of a stretch.
FIRST_REACH, MORE_REACH, MOST_OPS = 12, 2, 2000


def repaired(instance: OrderInstance, order: Int, limit: int, work: int, deadline: Deadline) -> Int | None:
    """An order within a limit, from one that is not; None where that did not succeed.

    The first step above the limit, with some steps around it, is a problem of its own, with what is live before and
    kept after it given: that is solved by the search from valley to valley, forwards and backwards. What cannot be
    solved becomes longer, until the stretch is half of the order, so all that is decided stays a choice.

    Parameters
    ----------
    instance : OrderInstance
    order : int64 array, shape (ops,)
    limit : int
        Bytes.
    work : int
        For each stretch, see :meth:`remat.ordering.limit_search.LimitSearch.go`.
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
