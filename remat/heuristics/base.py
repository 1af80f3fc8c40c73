"""The interface of a heuristic: a schedule without a solver."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from remat.problem import Problem
from remat.schedule import Schedule
from remat.timing import Deadline


class Heuristic(ABC):
    """A method that makes a schedule without a solver and proves nothing."""

    name: ClassVar[str]

    def prepare(self) -> None:  # noqa: B027  (most heuristics have nothing to prepare)
        """Load what takes long the first time, such as compiled code, so that the clock of a run need not bear it."""

    @abstractmethod
    def run(self, problem: Problem, deadline: Deadline, seed: int) -> Schedule | None:
        """The best schedule found before `deadline`; it may miss the budget. None: nothing at all.

        The same seed gives the same schedule, unless the deadline cuts the search short.
        """
