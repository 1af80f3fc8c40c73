"""The interface of a heuristic: a schedule without a solver's proof."""

from __future__ import annotations

import sys
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import ClassVar

from remat.backends.base import Backend, SolveOptions
from remat.compiled.algorithm import Algorithm
from remat.deadline import Deadline
from remat.problem import Problem
from remat.runtime.resources import available_cpus
from remat.schedule import Schedule
from remat.schedule.certificate import Certificate, Verdict
from remat.scope import Scope

OnSchedule = Callable[[Schedule], object]

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


def rank_of(certificate: Certificate) -> tuple[bool, int, int]:
    """Return the :func:`rank` of a schedule with this certificate."""
    return rank(certificate.accepted, certificate.cost, certificate.peak)


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
        return self.on_schedule is not None and bool(self.on_schedule(schedule))


class Best:
    """The best schedule of a run: the cheapest within the budget, or else the one of least peak.

    Parameters
    ----------
    problem : Problem
    run : HeuristicRun
        Receives each schedule within the budget that is better than those before.
    bound : int, optional
        A schedule that costs no more is enough.
    over_budget : bool
        The run also receives schedules that only miss the budget.

    Attributes
    ----------
    schedule : Schedule or None
    certificate : Certificate or None
        That of `schedule`.
    enough : bool
        Whether the search may stop: a schedule reached `bound`, or the receiver of schedules asked for no more.

    Examples
    --------
    >>> from remat.graphs.families import unit_chain
    >>> problem = Problem(unit_chain(8), 10)
    >>> best = Best(problem, HeuristicRun(), bound=17)
    >>> best.offer(Schedule.reference(problem.graph)).cost, best.cost, best.enough
    (17, 17, True)
    """

    def __init__(
        self, problem: Problem, run: HeuristicRun, bound: int | None = None, *, over_budget: bool = False
    ) -> None:
        self.problem, self.run, self.bound = problem, run, bound
        self._told = (Verdict.VALID, Verdict.OVER_BUDGET) if over_budget else (Verdict.VALID,)
        self.schedule: Schedule | None = None
        self.certificate: Certificate | None = None
        self.enough = False

    @property
    def cost(self) -> int | None:
        """Cost of the best schedule within the budget, None without one."""
        return self.certificate.cost if self.certificate is not None and self.certificate.accepted else None

    @property
    def rank(self) -> tuple[bool, int, int]:
        """The :func:`rank` of the best schedule; worse than any other without one."""
        return rank_of(self.certificate) if self.certificate is not None else (True, sys.maxsize, 0)

    def offer(self, schedule: Schedule, *, tell: bool = True) -> Certificate:
        """Validate a schedule, keep it if it is the best, and hand it on unless `tell` is false."""
        certificate = self.problem.validate(schedule)
        if rank_of(certificate) < self.rank:
            self.schedule, self.certificate = schedule, certificate
            if tell and certificate.verdict in self._told:
                self.enough |= self.run.tell(schedule)
            self.enough |= self.bound is not None and certificate.accepted and certificate.cost <= self.bound
        return certificate


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
