"""Choices from which annealing starts."""

from __future__ import annotations

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

    A round of annealing improves each of the :data:`BEST` ones. Other rounds explore: they leave a start, the one with
    the fewest rounds, for others that are kept if they are among the :data:`MOST` best.
    """

    known: list[Start] = field(default_factory=list)
    _explored: bool = False
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
            self._explored = not new and not self._explored
            among = new or (self.known if self._explored else self.known[:1])
            start = min(among, key=lambda each: (each.rounds, each.value))
            start.rounds += 1
            return start, self._explored

    def replace(self, start: Start, value: Value, choices: Choices) -> None:
        """Replace a start by the result of a round if that is better; otherwise add the result."""
        with self._lock:
            better = value < start.value
            others = [each for each in self.known if each.value != value and not (better and each is start)]
            if better or len(others) == len(self.known):
                self._keep([*others, Start(value, choices)])

    def _keep(self, starts: list[Start]) -> None:
        self.known = sorted(starts, key=lambda start: start.value)[:MOST]
