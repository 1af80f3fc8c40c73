"""Orders at random, guided by rules, again and again until time is up."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from itertools import product
from typing import Annotated

import numpy as np

from remat.compiled import KernelSet
from remat.deadline import Deadline
from remat.ordering.base import OnOrder, Ordering, OrderSearch
from remat.ordering.instance import OrderInstance
from remat.ordering.ready import Ready
from remat.ordering.rules import RULES, DepthFirst, ExtraUsersFirst, Kahn, Rule
from remat.runtime.options import Options, Range

#: More than any peak.
ENDLESS = 2**62
#: Links between ops and tensors that are gone along between two looks at the clock.
PIECE = 1_000_000
#: Ways to choose: by which rule, how many of the ready ops it looks at, and how often of 1000 any op is taken. After
#: the rules that look at memory come the places of an op in Kahn's order, in those that are depth first, and in the
#: best one so far.
WAYS = [*product(range(3), (2, 4, 1024), (0, 30)), *product((3 + 1, 3 + 2, 3 + 3, 3 + 4), (1024,), (10, 100))]
#: Share of the restarts that are made in the way that came farthest so far.
LEADING = 0.6


@dataclass(frozen=True)
class RandomRestartsOptions(Options):
    """Options of :class:`RandomRestarts`.

    Attributes
    ----------
    restarts : int or None
        Most orders to be tried. None: until the deadline; without one, 20,000.
    """

    restarts: Annotated[int, Range(0)] | None = None


class RandomRestarts(OrderSearch):
    """The rules, and then orders at random in which every choice is guided by one of them.

    A restart takes one way to choose: by the score of a rule (peak, growth, how long an op has been ready, its place
    in Kahn's order, in one that is depth first, or in the best order so far), among some or all ready ops, and now and
    then any of them. It is given up as soon as it holds as much as the best order. Ways that come farther before that
    are taken more often.

    The bound is the structural one. The same seed and number of restarts give the same order.

    Examples
    --------
    >>> from remat import Problem
    >>> from remat.graphs.layered import layered
    >>> instance = OrderInstance.of(Problem(layered(60, seed=1)))
    >>> found = RandomRestarts(RandomRestartsOptions(300)).search(instance, seed=1)
    >>> found.peak < min(rule().search(instance).peak for rule in RULES)
    True
    """

    name = "random-restarts"
    options_type = RandomRestartsOptions

    def search(
        self,
        instance: OrderInstance,
        *,
        deadline: Deadline | None = None,
        seed: int = 0,
        upper: int | None = None,
        on_order: OnOrder | None = None,
    ) -> Ordering:
        """The best order, and the structural bound; `states` counts the orders that were tried."""
        clock, bound = deadline or Deadline(), instance.structural_bound
        most: float = math.inf if self.options.restarts is None else self.options.restarts
        if self.options.restarts is None and math.isinf(clock.seconds):
            most = 20_000
        best, peak = None, ENDLESS if upper is None else upper
        enough = False
        for rule in RULES:
            found = rule().search(instance, deadline=clock, upper=peak)
            if found.order is not None and found.peak is not None:
                best, peak = found.order, found.peak
                enough = on_order is not None and on_order(best, peak)
            if enough or peak <= bound or clock.expired:
                break
        tried = 0
        if not (enough or peak <= bound or clock.expired or not most):
            restarts = _Restarts(instance, clock, seed)
            while not (enough or peak <= bound or clock.expired) and tried < most:
                tried += restarts.run(peak, min(most - tried, math.inf))
                if restarts.peak < peak:
                    best, peak = restarts.best.copy(), restarts.peak
                    enough = on_order is not None and on_order(best, peak)
        if best is None:
            return Ordering(None, None, bound if upper is None else min(bound, upper), tried)
        return Ordering(best, peak, bound, tried)


class _Restarts:
    """The tables of the kernel, and which ways came how far."""

    def __init__(self, instance: OrderInstance, clock: Deadline, seed: int) -> None:
        from remat.ordering import restarts_kernel as kernel

        self.kernel, self.random, n = kernel, random.Random(seed), instance.num_ops
        tables = (instance.op_inputs, instance.op_outputs, instance.successors)
        users = (instance.producers, instance.consumers)
        self.links = np.concatenate([rows.indices for rows in (*tables, *users)])
        begins = np.cumsum([0, *(len(rows.indices) for rows in (*tables, *users))])
        self.op_ptr = np.stack([rows.indptr + begin for rows, begin in zip(tables, begins[:3], strict=True)])
        self.tensor_ptr = np.stack([rows.indptr + begin for rows, begin in zip(users, begins[3:5], strict=True)])
        at_start = Ready(instance)
        self.ops = np.array([at_start.need, at_start.growth, instance.predecessors.counts], dtype=np.int64)
        uses = instance.producers.counts + instance.consumers.counts + instance.kept
        self.tensors = np.stack([uses, instance.live, instance.size, instance.kept]).astype(np.int64)
        self.ranks = np.zeros((5, n), dtype=np.int64)
        self.ranks[0] = -instance.successors.counts
        fixed: tuple[type[Rule], ...] = (Kahn, DepthFirst, ExtraUsersFirst)
        for row, rule in enumerate(fixed, start=1):
            found = rule().search(instance, deadline=clock)
            self.ranks[row, instance.reference if found.order is None else found.order] = np.arange(n)
        self.ranks[4] = self.ranks[3]
        self.op_room = np.zeros((6, n), dtype=np.int64)
        self.tensor_room = np.zeros((2, instance.num_tensors), dtype=np.int64)
        self.order, self.best = np.zeros((2, n), dtype=np.int64)
        self.number = np.zeros(9, dtype=np.int64)
        self.number[kernel.RANDOM] = self.random.getrandbits(31)
        self.number[kernel.START] = instance.start
        self.peak = ENDLESS
        self.piece = max(1, PIECE // (n + len(self.links)))
        self.steps = [0] * len(WAYS)
        self.counts = [0] * len(WAYS)

    def run(self, limit: int, most: float) -> int:
        """Make some orders in one way; how many. What is below the limit is in `best` and `peak` then."""
        at, number = self.kernel, self.number
        untried = [way for way, count in enumerate(self.counts) if not count]
        if untried:
            way = untried[0]
        elif self.random.random() < LEADING:
            way = max(range(len(WAYS)), key=lambda each: self.steps[each] / self.counts[each])
        else:
            way = self.random.randrange(len(WAYS))
        count = int(min(self.piece, most, 100))
        number[at.RULE], number[at.SAMPLE], number[at.RATE] = WAYS[way]
        number[at.LIMIT], number[at.COUNT], number[at.STEPS], number[at.COMPLETE] = limit, count, 0, 0
        at.restart(
            self.op_ptr, self.tensor_ptr, self.links, self.ops, self.tensors, self.ranks, self.op_room,
            self.tensor_room, number, self.order, self.best,
        )  # fmt: skip
        if number[at.COMPLETE]:
            self.peak = int(number[at.LIMIT])
            self.ranks[4, self.best] = np.arange(len(self.best))
        self.steps[way] += int(number[at.STEPS])
        self.counts[way] += count
        return count


def _example() -> None:
    from remat.graphs.families import unit_chain
    from remat.problem import Problem

    _Restarts(OrderInstance.of(Problem(unit_chain(2))), Deadline(), 0).run(ENDLESS, 1)


#: The compiled restarts.
KERNELS = KernelSet("random-restarts", __name__, _example)
RandomRestarts.kernels = (KERNELS,)
