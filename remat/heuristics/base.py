"""Interface of heuristics: methods that find a schedule and need not prove anything."""

from __future__ import annotations

import sys
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar

from remat.backends.base import Backend
from remat.problem import Problem
from remat.problem.scope import Scope
from remat.runtime.compiled.algorithm import Algorithm
from remat.runtime.deadline import Deadline
from remat.runtime.resources import available_cpus
from remat.runtime.solve_options import SolveOptions
from remat.schedule import Schedule
from remat.schedule.certificate import Certificate, Verdict

if TYPE_CHECKING:
    from remat.bounds.stage_bound import Programmes

OnSchedule = Callable[[Schedule], object]

#: Seconds past its deadline after which a heuristic is reported as late.
LATE = 1.0
#: Worst :func:`rank`, that of no schedule.
NO_RANK = (True, sys.maxsize, 0)


def rank(fits: bool, cost: int, peak: int) -> tuple[bool, int, int]:
    """Return a sort key, smaller is better: by cost and peak within the budget (`fits`), by peak and cost over it.

    Examples
    --------
    >>> rank(True, 9, 4) < rank(True, 10, 3) < rank(False, 1, 5) < rank(False, 0, 6)
    True
    """
    return (False, cost, peak) if fits else (True, peak, cost)


@dataclass(frozen=True)
class HeuristicRun:
    """Limits and inputs of one run of a heuristic, and the receiver of its schedules.

    Examples
    --------
    >>> HeuristicRun(SolveOptions(Deadline.after(10), seed=3, threads=2)).threads
    2
    """

    options: SolveOptions = field(default_factory=SolveOptions)
    """Options of the solve: deadline, seed and threads for every heuristic; the others for those that call solvers."""
    start: Schedule | None = None
    """Valid schedule to improve, perhaps over the budget. Constructive heuristics ignore it."""
    on_schedule: OnSchedule | None = None
    """Receives better schedules as they are found; returns True to stop the search."""
    backend: Backend | None = None
    """Solver for heuristics that solve models (`uses_backend`); None: their own choice."""
    horizon: Deadline | None = None
    """End of the last turn if this run is one of several turns. The same object runs again then, and may continue where
    it stopped."""
    background: bool = False
    """True while another thread raises the bound, perhaps by programmes of this heuristic, or runs other searches."""

    @property
    def deadline(self) -> Deadline:
        """Time at which the run must end."""
        return self.options.deadline

    @property
    def seed(self) -> int:
        """Seed of everything random."""
        return self.options.seed

    @property
    def threads(self) -> int:
        """Number of threads allowed; default: the CPUs available to the process."""
        return self.options.threads or available_cpus()

    def until(self, deadline: Deadline) -> HeuristicRun:
        """Return the same run with another deadline."""
        return replace(self, options=replace(self.options, deadline=deadline))

    def report(self, schedule: Schedule) -> bool:
        """Pass on a schedule; return True if the search may stop."""
        return self.on_schedule is not None and bool(self.on_schedule(schedule))

    def tell(self, schedule: Schedule) -> bool:
        """Call :meth:`report`; deprecated name, kept for plug-ins."""
        return self.report(schedule)


class Best:
    """Best schedule of a run: the cheapest (fastest) within the budget, or else the one of least peak.

    Parameters
    ----------
    problem : Problem
    run : HeuristicRun
        Receives each schedule within the budget that is better than those before.
    bound : int, optional
        The search may stop at a schedule of at most this cost (time).
    over_budget : bool
        True: the run also receives schedules whose only fault is the budget.

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
        self._reported = (Verdict.VALID, Verdict.OVER_BUDGET) if over_budget else (Verdict.VALID,)
        self.schedule: Schedule | None = None
        self.certificate: Certificate | None = None
        """Certificate of `schedule`."""
        self.enough = False
        """True when the search may stop: a schedule reached `bound`, or the receiver returned True."""

    @property
    def cost(self) -> int | None:
        """Cost (time) of the best schedule within the budget, None without one."""
        found = self.certificate
        return self.problem.value(found) if found is not None and found.accepted else None

    @property
    def rank(self) -> tuple[bool, int, int]:
        """Return the :func:`rank` of the best schedule, or the worst rank without one."""
        return NO_RANK if self.certificate is None else self.rank_of(self.certificate)

    def rank_of(self, certificate: Certificate) -> tuple[bool, int, int]:
        """Return the :func:`rank` of a schedule with this certificate."""
        return rank(certificate.accepted, self.problem.value(certificate), certificate.peak)

    def offer(self, schedule: Schedule, *, report: bool = True) -> Certificate:
        """Validate a schedule, keep it if it is the best, and pass it on unless `report` is false."""
        certificate = self.problem.validate(schedule)
        self.take(schedule, certificate, report=report)
        return certificate

    def take(self, schedule: Schedule, certificate: Certificate, *, report: bool = True) -> None:
        """Do the same with a schedule that is validated already."""
        if self.rank_of(certificate) < self.rank:
            self.schedule, self.certificate = schedule, certificate
            if report and certificate.verdict in self._reported:
                self.enough |= self.run.report(schedule)
            self.enough |= self.bound is not None and self.cost is not None and self.cost <= self.bound


class Heuristic(Algorithm):
    """Method that finds a schedule and need not prove anything.

    Parameters
    ----------
    options : optional
        Of the class's `options_type`; None: its defaults.

    Raises
    ------
    ProblemError
        For options of another type.
    """

    uses_backend: ClassVar[bool] = False
    """True when it solves models with the backend of its run."""

    moves: ClassVar[bool] = False
    """True if it moves tensors to the host where a problem has one. Otherwise it receives problems with one memory."""

    bound: int | None = None
    scope: Scope | None = None
    """Lower bound within `scope` that the last run found; None without one."""

    infeasible: bool = False
    """True if the last run proved that no schedule within `scope` exists."""

    near: Sequence[Schedule] = ()
    """Schedules, perhaps above the budget, as starts: few stages leaves its last ones here, transfers takes them."""

    @property
    def needs_backend(self) -> bool:
        """True when this instance solves models with the backend of its run."""
        return self.uses_backend

    def programmes_of(self, problem: Problem) -> Programmes | None:
        """Return the programmes of a problem that this object shares with the bounds; None: it has none."""
        return None

    @abstractmethod
    def run(self, problem: Problem, run: HeuristicRun) -> Schedule | None:
        """Return the best schedule found before the deadline, perhaps over the budget; None without any.

        The same seed gives the same schedule, unless the deadline cuts the search short.
        """


def overrun_remark(heuristic: Heuristic, deadline: Deadline) -> str:
    """Return a remark on a heuristic that overran its deadline, or an empty string."""
    late = deadline.elapsed - deadline.seconds
    return f"{heuristic.name} continued for {late:.1f} s after its deadline" if late > LATE else ""
