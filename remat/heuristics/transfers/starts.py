"""Choices from which annealing starts."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from remat.heuristics.transfers.state import Value

if TYPE_CHECKING:
    from remat.heuristics.transfers.program_kernel import Choices

#: Number of starts that are kept.
MOST = 6


@dataclass(eq=False)
class Start:
    """Choices with their value; `rounds` of annealing have started from them without improving them."""

    value: Value
    choices: Choices
    rounds: int = 0


@dataclass(eq=False)
class Starts:
    """The best of the choices found so far in different ways. Rounds of annealing improve each of them.

    The best one is annealed until a round does not improve it, then the one with the fewest rounds in vain.
    """

    known: list[Start] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, value: Value, choices: Choices) -> None:
        """Add choices, unless some with the same value are there or :data:`MOST` better ones."""
        with self._lock:
            if all(each.value != value for each in self.known):
                self._keep([*self.known, Start(value, choices)])

    def next(self) -> Start:
        """Return the start of the next round."""
        with self._lock:
            return min(self.known, key=lambda start: (start.rounds, start.value))

    def improve(self, start: Start, value: Value, choices: Choices) -> None:
        """Replace a start by the result of a round if that is better."""
        with self._lock:
            if value < start.value:
                others = [each for each in self.known if each is not start and each.value != value]
                self._keep([*others, Start(value, choices)])
            else:
                start.rounds += 1

    def _keep(self, starts: list[Start]) -> None:
        self.known = sorted(starts, key=lambda start: start.value)[:MOST]
