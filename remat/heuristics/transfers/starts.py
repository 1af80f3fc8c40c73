"""Choices from which annealing starts."""

from __future__ import annotations

import math
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from remat.heuristics.transfers.state import Value

if TYPE_CHECKING:
    from remat.heuristics.transfers.program_kernel import Choices

#: Number of starts that are kept, and of the best ones that are improved.
MOST, BEST = 6, 3


@dataclass(eq=False)
class Start:
    """Choices with their value; `rounds` of annealing have started from them."""

    value: Value
    choices: Choices
    rounds: int = 0


@dataclass(eq=False)
class Starts:
    """The best of the choices found so far in different ways.

    A round of annealing improves each of the :data:`BEST` ones, and later ones the best. Others explore: they leave a
    start, the one with the fewest rounds, for others that are kept if they are among the :data:`MOST` best. The more of
    them have been in vain, the rarer they become: `most_between` is the largest number of other rounds between two.
    """

    most_between: float = math.inf
    known: list[Start] = field(default_factory=list)
    _vain: int = 0
    """Number of rounds that explored since the last one whose result was among the best."""
    _since: int = 0
    """Number of rounds since the last one that explored."""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, value: Value, choices: Choices) -> None:
        """Add choices, unless some with the same value are there or :data:`MOST` better ones."""
        with self._lock:
            if all(each.value != value for each in self.known):
                self._keep([*self.known, Start(value, choices)])

    def next(self) -> tuple[Start, bool]:
        """Return the start of the next round, and true if the round explores."""
        with self._lock:
            new = [start for start in self.known[:BEST] if start.rounds == 0]
            explores = not new and self._since >= min(self._vain, self.most_between)
            self._since = 0 if explores else self._since + 1
            among = new or (self.known if explores else self.known[:1])
            start = min(among, key=lambda each: (each.rounds, each.value))
            start.rounds += 1
            return start, explores

    def replace(self, start: Start, value: Value, choices: Choices, *, explored: bool) -> None:
        """Replace a start by the result of a round if that is better; otherwise add the result."""
        with self._lock:
            better = value < start.value
            others = [each for each in self.known if each.value != value and not (better and each is start)]
            if better or len(others) == len(self.known):
                self._keep([*others, Start(value, choices)])
            if explored:
                best = any(each.value == value and each.rounds == 0 for each in self.known[:BEST])
                self._vain = 0 if best else self._vain + 1

    def _keep(self, starts: list[Start]) -> None:
        self.known = sorted(starts, key=lambda start: start.value)[:MOST]
