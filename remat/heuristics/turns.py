"""Who has the next turn, where several ways of searching share one stretch of time."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass

#: How much of what is known of an arm's gains the last turn replaces.
NEW = 0.5
#: Share of its share that an arm keeps which brings nothing while others do.
KEPT = 0.25


@dataclass
class Arm:
    """One of those that take turns.

    Attributes
    ----------
    share : float
        Of the time, against the shares of the others, while all bring the same.
    spent : float
        What its turns took so far, in units of its share: the less, the sooner it is next.
    rate : float
        What it brought per unit of time lately; infinite while it has not been tried.
    turns, idle : int
        Turns so far, and how many of the last ones brought nothing.
    """

    share: float
    spent: float = 0.0
    rate: float = math.inf
    turns: int = 0
    idle: int = 0


class Turns:
    """Turns by shares, which move to those that bring more.

    The next turn is that of the arm that has had the least time for its share (stride scheduling; Waldspurger and
    Weihl, 1995). Shares are weighed by the gain per unit of time in the last turns, from a quarter for those that
    brought nothing to one for the best, so nobody is ever given up. Units are what the caller counts in: seconds that
    were really used, or moves.

    Parameters
    ----------
    shares : mapping of str to float
        By name; ties go to the first.
    spent : mapping of str to float, optional
        What some of them have had before, in the same units of time.

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
    'ababbabbabba'
    """

    def __init__(self, shares: Mapping[str, float], spent: Mapping[str, float] | None = None) -> None:
        before = spent or {}
        self.arms = {name: Arm(share, before.get(name, 0.0) / share) for name, share in shares.items()}

    def next(self, among: Collection[str] | None = None) -> str:
        """Whose turn it is, of all or of some."""
        names = [name for name in self.arms if among is None or name in among]
        return min(names, key=lambda name: self.arms[name].spent)

    def add(self, name: str, time: float, gain: float) -> None:
        """Count a turn that took `time` and brought `gain`."""
        arm = self.arms[name]
        rate = gain / max(time, 1e-9)
        arm.rate = rate if arm.turns == 0 else (1 - NEW) * arm.rate + NEW * rate
        arm.turns += 1
        arm.idle = 0 if gain > 0 else arm.idle + 1
        arm.spent += time / (arm.share * self.weight(name))

    def weight(self, name: str) -> float:
        """From a quarter to one: what an arm brought lately, beside the best."""
        best = max((arm.rate for arm in self.arms.values() if arm.turns), default=0.0)
        return 1.0 if best <= 0 else KEPT + (1 - KEPT) * min(1.0, self.arms[name].rate / best)
