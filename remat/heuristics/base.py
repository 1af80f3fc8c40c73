"""The interface of a heuristic: a schedule without a solver's proof."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import ClassVar

from remat.backends.base import Backend, SolveOptions
from remat.backends.resources import available_cpus
from remat.compiled.algorithm import Algorithm
from remat.deadline import Deadline
from remat.problem import Problem
from remat.schedule import Schedule
from remat.scope import Scope

OnSchedule = Callable[[Schedule], bool]

#: Seconds after its deadline from which on it is remarked that a heuristic did not end.
LATE = 1.0


def rank(fits: bool, cost: int, peak: int) -> tuple[bool, int, int]:
    """The smaller, the better: within the budget (`fits`), then cost and peak; over it, peak and cost.

    Examples
    --------
    >>> rank(True, 9, 4) < rank(True, 10, 3) < rank(False, 1, 5) < rank(False, 0, 6)
    True
    """
    return (False, cost, peak) if fits else (True, peak, cost)


@dataclass(frozen=True)
class HeuristicRun:
    """How long a heuristic runs, from where, and who wants to know what it finds on the way.

    Attributes
    ----------
    options : SolveOptions
        Those of the solve, whole: deadline, seed and threads for every heuristic; for those that call solvers also
        the rest.
    start : Schedule or None
        A valid schedule to improve, perhaps over the budget. Heuristics that build from nothing do not look at it.
    on_schedule : callable or None
        Receives better schedules as they are found; True means that the search may stop.
    backend : Backend or None
        For heuristics that solve models (`uses_backend`); None: their own choice.
    horizon : Deadline or None
        When the last of several turns ends, where this run is one of them: the same object will be asked again, and
        may go on where it stopped.

    Examples
    --------
    >>> HeuristicRun(SolveOptions(Deadline.after(10), seed=3, threads=2)).threads
    2
    """

    options: SolveOptions = field(default_factory=SolveOptions)
    start: Schedule | None = None
    on_schedule: OnSchedule | None = None
    backend: Backend | None = None
    horizon: Deadline | None = None

    @property
    def deadline(self) -> Deadline:
        """When it must end."""
        return self.options.deadline

    @property
    def seed(self) -> int:
        """Fixes everything random."""
        return self.options.seed

    @property
    def threads(self) -> int:
        """How many may be used: as many as this process may, where nothing is said."""
        return self.options.threads or available_cpus()

    def until(self, deadline: Deadline) -> HeuristicRun:
        """The same run with another deadline."""
        return replace(self, options=replace(self.options, deadline=deadline))

    def tell(self, schedule: Schedule) -> bool:
        """Hand on a schedule; whether the search may stop."""
        return self.on_schedule is not None and self.on_schedule(schedule)


class Heuristic(Algorithm):
    """A method that makes a schedule and proves nothing.

    Parameters
    ----------
    options : optional
        Of the class's `options_type`; None: its defaults.

    Raises
    ------
    ProblemError
        For anything else.
    """

    uses_backend: ClassVar[bool] = False
    """Whether it solves models by the backend of its run."""

    bound: int | None = None
    scope: Scope | None = None
    """What no schedule in `scope` beats, where the last run found that out on the way."""

    @property
    def needs_backend(self) -> bool:
        """Whether this very one solves models by the backend of its run."""
        return self.uses_backend

    @abstractmethod
    def run(self, problem: Problem, run: HeuristicRun) -> Schedule | None:
        """The best schedule found before the deadline; it may miss the budget. None: nothing at all.

        The same seed gives the same schedule, unless the deadline cuts the search short.
        """


def went_on(heuristic: Heuristic, deadline: Deadline) -> str:
    """A remark on a heuristic that ended late, empty otherwise: one that does not look at the clock is waited for."""
    late = deadline.elapsed - deadline.seconds
    return f"{heuristic.name} went on for {late:.1f} s after its deadline" if late > LATE else ""
