"""Repair of an order: reorder the stretches that exceed a limit, with the remaining steps fixed."""

from __future__ import annotations

import numpy as np

from remat.ordering.instance import OrderInstance
from remat.ordering.lifetimes import Lifetimes
from remat.ordering.limit_search import Answer, TwoWaySearch
from remat.runtime.arrays import Int
from remat.runtime.deadline import Deadline

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
