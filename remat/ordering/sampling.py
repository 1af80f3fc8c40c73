"""Random orders, and the distribution of their peaks."""

from __future__ import annotations

import random
from dataclasses import dataclass

import numpy as np

from remat.ordering.instance import OrderInstance
from remat.runtime.arrays import Int
from remat.runtime.bits import bits
from remat.runtime.deadline import Deadline

#: Largest number of closed sets for which orders are counted.
MOST_SETS = 50_000


@dataclass(frozen=True, eq=False)
class Sample:
    """Peaks of random orders."""

    peaks: Int
    """Bytes, ascending. Shape (orders,)."""
    uniform: bool
    """True when every order was equally likely."""
    orders: int | None
    """Number of orders, if counted."""

    def share_within(self, size: int) -> float:
        """Return the share of the orders whose peak is at most `size` bytes."""
        return float(np.searchsorted(self.peaks, size, side="right") / max(1, len(self.peaks)))


def sample_peaks(instance: OrderInstance, number: int, *, seed: int = 0, deadline: Deadline | None = None) -> Sample:
    """Return the peaks of `number` random orders; fewer, but at least one, if the deadline passes first.

    With at most 50,000 closed sets of ops, found in half of the time, the orders are counted, and every order is
    equally likely: the next op is drawn by its number of completions. Otherwise each ready op is equally likely, which
    favours some orders.

    Examples
    --------
    >>> from remat import GraphBuilder, Problem
    >>> b = GraphBuilder("two branches")
    >>> _ = b.op("a", size=2), b.op("b", inputs=["a"], size=9), b.op("c", inputs=["a"], size=9)
    >>> _ = b.op("d", inputs=["b"], size=1), b.op("e", inputs=["c"], size=1), b.op("f", inputs=["d", "e"], size=1)
    >>> sample = sample_peaks(OrderInstance.of(Problem(b.build())), 600)
    >>> sample.orders, sorted(set(sample.peaks.tolist())), abs(sample.share_within(12) - 2 / 6) < 0.05
    (6, [12, 20], True)
    """
    clock = deadline or Deadline()
    before = [bits(row) for row in instance.predecessors.lists()]
    after = instance.successors.lists()
    ways = _ways(after, clock.share(0.5))
    rng = random.Random(seed)
    start = [op for op, mask in enumerate(before) if not mask]
    peaks: list[int] = []
    order = instance.reference
    for _ in range(number):
        if peaks and clock.expired:
            break
        done, ready = 0, list(start)
        for step in range(len(order)):
            if ways is None:
                k = rng.randrange(len(ready))
            else:
                mark, k = rng.randrange(ways[done]), -1
                while mark >= 0:
                    k += 1
                    mark -= ways[done | 1 << ready[k]]
            op = order[step] = ready.pop(k)
            done |= 1 << op
            ready += [other for other in after[op] if not before[other] & ~done]
        peaks.append(instance.peak_of(order))
    return Sample(np.sort(np.array(peaks, dtype=np.int64)), ways is not None, None if ways is None else ways[0])


def _ways(after: list[list[int]], clock: Deadline) -> dict[int, int] | None:
    """Return the number of completions of each closed set; None if there are too many sets."""
    later = [bits(row) for row in after]
    level = {(1 << len(after)) - 1: 1}
    ways = dict(level)
    for _ in after:
        smaller: dict[int, int] = {}
        for done, count in level.items():
            if len(ways) + len(smaller) > MOST_SETS or clock.expired:
                return None
            for op, mask in enumerate(later):
                if done >> op & 1 and not mask & done:  # no other op of the set needs it
                    rest = done ^ 1 << op
                    smaller[rest] = smaller.get(rest, 0) + count
        level = smaller
        ways |= level
    return None if len(ways) > MOST_SETS else ways
