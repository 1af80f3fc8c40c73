"""Scheduler of search methods that share one period of time."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass

#: Weight of the last turn in the average gain of an arm.
NEW = 0.5
#: Part of its share that an arm without gains keeps while others gain.
KEPT = 0.25


@dataclass
class Arm:
    """Search method that takes turns."""

    share: float
    """Share of the time relative to the shares of the others, as long as all gain the same."""
    spent: float = 0.0
    """Time of its turns so far, divided by its weighted share; the arm with the least is next."""
    rate: float = math.inf
    """Average gain per unit of time of the last turns; infinite before the first one."""
    turns: int = 0
    """Turns so far."""
    idle: int = 0
    """Turns since the last one with a gain."""


class Turns:
    """Allocation of turns by shares, which shift to the arms that gain more.

    The next turn goes to the arm with the least time relative to its share (stride scheduling; Waldspurger and Weihl,
    1995). Shares are weighted by the gain per unit of time in the last turns: a quarter for arms without gains, one for
    the best. So no arm is ever dropped. The caller chooses the unit of time: seconds used, or moves.

    `shares`: by name; ties go to the first. `spent`: time that some arms have already used, in the same unit.

    Examples
    --------
    >>> turns = Turns({"a": 2.0, "b": 1.0})
    >>> order = []
    >>> for _ in range(6):
    ...     order.append(turns.next())
    ...     turns.add(order[-1], 1.0, 0.0)
    >>> "".join(order)
    'abaaba'
    >>> for _ in range(12):
    ...     order.append(turns.next())
    ...     turns.add(order[-1], 1.0, float(order[-1] == "b"))
    >>> "".join(order[6:])
    'abbabbabbabb'
    """

    def __init__(self, shares: Mapping[str, float], spent: Mapping[str, float] | None = None) -> None:
        before = spent or {}
        self.arms = {name: Arm(share, before.get(name, 0.0) / share) for name, share in shares.items()}

    def next(self, among: Collection[str] | None = None) -> str:
        """Return the name of the next arm, of all or of some."""
        names = [name for name in self.arms if among is None or name in among]
        return min(names, key=lambda name: self.arms[name].spent)

    def add(self, name: str, time: float, gain: float) -> None:
        """Record a turn that took `time` and gained `gain`."""
        arm = self.arms[name]
        rate = gain / max(time, 1e-9)
        arm.rate = rate if arm.turns == 0 else (1 - NEW) * arm.rate + NEW * rate
        arm.turns += 1
        arm.idle = 0 if gain > 0 else arm.idle + 1
        arm.spent += time / (arm.share * self.weight(name))

    def weight(self, name: str) -> float:
        """Return the weight of an arm, from a quarter to one, by its recent gains relative to the best.

        An arm without gains has a quarter even before others had turns: they may have used time that counts in full.
        """
        best = max((arm.rate for arm in self.arms.values() if arm.turns), default=0.0)
        return KEPT + (1 - KEPT) * min(1.0, self.arms[name].rate / best if best > 0 else 0.0)
