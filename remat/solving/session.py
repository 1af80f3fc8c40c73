"""What is known so far in one call of solve(), and the result that it makes in the end."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from remat.backends.base import MOST, Backend, SolveOptions, Status, StopReason
from remat.compiled import COMPILING
from remat.deadline import Deadline, OverdueError
from remat.errors import BackendError, ModelError, ProblemError
from remat.heuristics.base import Heuristic, HeuristicRun, went_on
from remat.interruption import interrupted
from remat.problem import Objective, Problem
from remat.schedule import Schedule
from remat.schedule.validate import validate
from remat.scope import EVERY_SCHEDULE, Scope, covers
from remat.solving.backend_call import SolverFailedError
from remat.solving.incumbents import Certified, Incumbents
from remat.solving.min_peak import least_known_budget
from remat.solving.progress import OnProgress, Progress, relative_gap
from remat.solving.result import Point, Result, Step, base_versions
from remat.solving.stop import AnyOf, StoppingCriterion

#: Seconds in which a low peak is looked for when a budget is refused, and where time is over.
LEAST_SECONDS, LATE_SECONDS = 1.0, 0.2
#: Ops up to which it is looked for even where time is over: beyond, one look at the graph takes seconds.
LEAST_OPS = 3000


@dataclass
class Session:
    """One call of :func:`remat.solve`; its state is what is known so far.

    Attributes
    ----------
    problem : Problem
    call : SolveOptions
        Deadline, threads, seed and the like, for everything that solves a part of it.
    method, backend : str
        Names of who answers; `backend` is empty without one.
    on_progress : callable or None
    criterion : StoppingCriterion or None
        What ends it besides the deadline, a proof and the gap; `reached` is it, or the one of several, once that is so.
    incumbents : Incumbents
        Keeps the best schedule.
    bound : int
        Cost (or peak in bytes, as the problem asks) that no schedule in `scope` can beat.
    bound_kind, bound_cause : str
        For a peak: what gives the bound, and the op at whose step, where there is one.
    cost_bound : int
        For a peak: what no schedule with the least peak known costs less than.
    infeasible : bool
        Whether it is proved that no schedule in `scope` exists; `proof` says by what, with the punctuation before it.
    """

    problem: Problem
    call: SolveOptions
    method: str
    backend: str = ""
    on_progress: OnProgress | None = None
    criterion: StoppingCriterion | None = None
    solver: Backend | None = None
    """Solves the models of methods that have some."""
    warm_start: Schedule | None = None
    whole: Session | None = None
    """The session on the same problem that this one is a part of: they share what is found."""

    reached: StoppingCriterion | None = None
    improved: float = 0.0
    """Seconds at which the best schedule was found."""
    phase: str = "start"
    stop: StopReason = StopReason.FINISHED
    scope: Scope = EVERY_SCHEDULE
    infeasible: bool = False
    proof: str = ""
    points: list[Point] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    timings: dict[str, float] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=base_versions)
    size: tuple[int, int] | None = None
    """Variables and constraints of the model, where there is one."""
    states: int | None = None
    """How many states searches for an order have looked at."""
    any_method: bool = False
    """Whether a schedule is an answer whoever found it: nobody in particular was asked."""
    begun: float = field(default_factory=time.monotonic)
    bound_kind: str = ""
    bound_cause: str = ""

    def __post_init__(self) -> None:
        if self.whole is None:
            self.incumbents = Incumbents(self.problem)
            self.reference = self.incumbents.see(Schedule.reference(self.problem.graph), "the reference order")
        else:
            self.incumbents, self.reference = self.whole.incumbents, self.whole.reference
        self.cost_bound = self.problem.graph.base_cost
        self.bound = self.least_bound

    @property
    def best(self) -> Certified | None:
        """The best schedule so far."""
        return self.incumbents.best

    @property
    def cost(self) -> int | None:
        """Its cost."""
        return None if self.incumbents.best is None else self.incumbents.best.certificate.cost

    @property
    def asks_peak(self) -> bool:
        """Whether the objective is the peak."""
        return self.problem.objective is Objective.LEAST_PEAK

    @property
    def least_bound(self) -> int:
        """What is known of the objective before anything is done."""
        return 0 if self.asks_peak else self.problem.graph.base_cost

    @property
    def value(self) -> int | None:
        """The objective of the best schedule so far: its cost or its peak."""
        best = self.incumbents.best
        if best is None:
            return None
        return best.certificate.peak if self.asks_peak else best.certificate.cost

    @property
    def decided(self) -> bool:
        """Whether nothing can beat the best schedule, or there is none at all."""
        self.tell()
        return self.infeasible or (self.value is not None and self.value <= self.bound)

    @property
    def enough(self) -> bool:
        """Whether it is decided, near enough to that, or at what it was asked to stop at."""
        return self.decided or self._near or self.reached is not None

    @property
    def _near(self) -> bool:
        """Whether the gap is as small as was asked for."""
        gap = relative_gap(self.value, self.bound)
        return gap is not None and gap <= self.call.relative_gap

    def raise_bound(self, bound: int | None, scope: Scope | None = None) -> None:
        """Take note of a bound on the objective if it is better; `scope` is whom it speaks of, where that is new."""
        if bound is not None and bound > self.bound:
            self.bound = bound
            if scope is not None:
                self.scope = scope
            self.tell()

    # -- heuristics --------------------------------------------------------------------------------------------------

    def improve(
        self, heuristic: Heuristic, deadline: Deadline, start: Schedule | None = None, turn: int = 0,
        horizon: Deadline | None = None,
    ) -> None:  # fmt: skip
        """Let a heuristic look for something better, with a seed for each `turn`; all it finds is checked.

        With a `horizon`, its last run may be gone on with.
        """

        def see(schedule: Schedule) -> bool:
            self.incumbents.see(schedule, heuristic.name)
            return self.enough

        phase = self.phase
        if not heuristic.prepared(deadline, lambda: self.enter(f"{phase}: {COMPILING}")):
            self.note(f"{heuristic.name} was not compiled in time")
            return
        if self.phase != phase:
            self.enter(phase)
        call = replace(self.call, deadline=deadline, seed=(self.call.seed + turn) % (MOST + 1))
        run = HeuristicRun(call, start, see, self.solver, horizon)
        schedule = None
        with contextlib.suppress(OverdueError):
            schedule = heuristic.run(self.problem, run)
        self.note(went_on(heuristic, deadline))
        if schedule is not None:
            see(schedule)
        self.raise_bound(heuristic.bound, heuristic.scope)

    def part(
        self, name: str, run: Callable[[Session], None], call: SolveOptions, solver: Backend | None = None, *,
        start: Schedule | None = None, step: str = "",
    ) -> Session | None:  # fmt: skip
        """Let another method answer the problem as a step, and take over what it proves of every schedule.

        Parameters
        ----------
        name : str
            Of the method.
        run : callable
            Answers the session that it receives.
        call : SolveOptions
        solver : Backend, optional
            For the models of the method.
        start : Schedule, optional
            To begin with.
        step : str, optional
            Name of the step; default: that of the method.

        Returns
        -------
        Session or None
            Of the method; None with a remark where it does not apply, or its solver is missing or fails.

        Raises
        ------
        BackendError
            If an answer of the solver is wrong.
        KeyboardInterrupt
            If the solver was interrupted.
        """
        backend = "" if solver is None else solver.full_name
        if solver is not None and not solver.ready().ready:
            self.note(f"backend {backend!r} was left out: {solver.ready().reason}")
            return None
        part = Session(self.problem, call, name, backend, solver=solver, warm_start=start, whole=self)
        part.on_progress, part.criterion = lambda _: self.tell(), self.criterion
        with self.step(step or name):
            try:
                run(part)
            except (ProblemError, ModelError, BackendError, OverdueError) as error:
                if solver is not None and isinstance(error, BackendError) and not isinstance(error, SolverFailedError):
                    raise
                self.note(f"{name} was left out: {error}")
                return None
            finally:
                self.size, self.versions = part.size or self.size, self.versions | part.versions
                for phase, seconds in part.timings.items():
                    self.timings[phase] = self.timings.get(phase, 0.0) + seconds
            for remark in part.notes:
                self.note(remark)
            if covers(part.scope, self.problem):
                self.raise_bound(part.bound, part.scope)
                if part.infeasible:
                    self.infeasible, self.scope, self.proof = True, part.scope, part.proof
        if part.stop is StopReason.INTERRUPTED:
            raise KeyboardInterrupt
        return part

    def conclude(self) -> None:
        """After a method that tries one thing after the other: why it has ended, where nothing else says so."""
        if self.stop is StopReason.FINISHED and not self.enough:
            self.stop = StopReason.DEADLINE if self.call.deadline.expired else StopReason.EXHAUSTED

    # -- news --------------------------------------------------------------------------------------------------------

    def note(self, remark: str) -> None:
        """Remember a remark for the result, once."""
        if remark and remark not in self.notes:
            self.notes.append(remark)

    def enter(self, phase: str) -> None:
        """Begin a phase."""
        self.phase = phase
        self.tell()

    def tell(self) -> None:
        """Report where things stand, and remember it if anything is better."""
        now = self.call.deadline.elapsed
        value = self.value
        bound = self.bound if value is None else min(self.bound, value)
        last = self.points[-1] if self.points else Point(0.0, None, self.least_bound)
        if value != last.objective:
            self.improved = now
        if (value, bound) != (last.objective, last.bound):
            self.points.append(Point(now, value, bound))
        best, aim = None if self.best is None else self.best.schedule, Objective(self.problem.objective)
        base = self.problem.graph.base_cost
        moment = Progress(self.phase, now, base, value, bound, self.improved, best, aim, self.cost)
        if self.criterion is not None and self.reached is None and self.criterion.reached(moment):
            self.reached = self.criterion.first(moment) if isinstance(self.criterion, AnyOf) else self.criterion
        if self.on_progress is not None:
            self.on_progress(moment)

    @contextlib.contextmanager
    def timed(self, phase: str) -> Iterator[None]:
        """A phase whose seconds are a part of the timings."""
        self.enter(phase)
        begun = time.monotonic()
        try:
            yield
        finally:
            self.timings[phase] = self.timings.get(phase, 0.0) + time.monotonic() - begun

    @contextlib.contextmanager
    def step(self, name: str) -> Iterator[None]:
        """A step of several, remembered with what came of it."""
        self.enter(name)
        begun = time.monotonic()
        try:
            yield
        finally:
            self.steps.append(Step(name, time.monotonic() - begun, self.value, self.bound))

    # -- the result --------------------------------------------------------------------------------------------------

    def result(self) -> Result:
        """Everything that is known, the best schedule validated once more."""
        if interrupted() and not self.enough:
            self.stop = StopReason.INTERRUPTED
        if self.reached is not None and self.stop is not StopReason.INTERRUPTED:
            self.stop = self.reached.reason
        lowest = self._look_for_least() if self.best is None else None
        best, base = self.best, self.problem.graph.base_cost
        status = Status.INFEASIBLE if self.infeasible else Status.UNKNOWN
        schedule = certificate = over = None
        assert self.incumbents.least_peak is not None
        least = self.incumbents.least_peak.certificate.peak
        if best is not None:
            schedule = best.schedule
            rules = self.problem.rules
            if self.asks_peak:
                rules = replace(rules, budget=best.certificate.peak)
            certificate = validate(self.problem.graph, schedule, rules)
            if not certificate.accepted or certificate.cost != best.certificate.cost:
                raise BackendError(f"the schedule of {best.source} changed its verdict: {certificate.first}")
            value = certificate.peak if self.asks_peak else certificate.cost
            self.bound = min(self.bound, value)
            status = Status.OPTIMAL if self.bound == value else Status.FEASIBLE
            if status is Status.OPTIMAL:
                self.stop = StopReason.FINISHED
            elif self._near and self.stop in (StopReason.FINISHED, StopReason.EXHAUSTED):
                self.stop = StopReason.GAP
            if certificate.cost == base:
                self.cost_bound = base
                self.scope = self.scope if self.asks_peak else EVERY_SCHEDULE
        else:
            assert lowest is not None
            over, least = self.incumbents.least_peak, lowest
            self.notes.insert(0, f"{self._why_none()}; {self._suffices(least)}")
        self.timings["total"] = time.monotonic() - self.begun
        return Result(
            problem=self.problem,
            schedule=schedule,
            certificate=certificate,
            status=status,
            stop=self.stop,
            bound=self.bound,
            scope=self.scope,
            least_feasible_budget=least,
            least_peak_schedule=None if over is None else over.schedule,
            least_peak_certificate=None if over is None else over.certificate,
            incumbents=tuple(self.points),
            steps=tuple(self.steps),
            timings=self.timings,
            variables=None if self.size is None else self.size[0],
            constraints=None if self.size is None else self.size[1],
            bound_kind=self.bound_kind,
            bound_cause=self.bound_cause,
            cost_bound=self.cost_bound if self.asks_peak else None,
            states=self.states,
            method=self.method,
            backend=self.backend,
            source="" if best is None else best.source,
            seed=self.call.seed,
            threads=self.call.threads,
            versions=self.versions,
            message="; ".join(self.notes),
        )

    def _why_none(self) -> str:
        if self.infeasible:
            if covers(self.scope, self.problem):
                return f"no schedule exists{self.proof}"
            return f"no schedule exists within {self.scope}{self.proof}, which says nothing of schedules beyond that"
        if self.stop in (StopReason.FINISHED, StopReason.EXHAUSTED):
            return f"{self.method} found no schedule within the budget, which proves nothing"
        when = {StopReason.DEADLINE: "in time", StopReason.INTERRUPTED: "before the interruption"}
        return f"no schedule was found {when.get(self.stop, 'before the solver gave up')}, and none is ruled out"

    def _look_for_least(self) -> int:
        """The least peak that is known, after a short look for a lower one."""
        assert self.incumbents.least_peak is not None
        known = self.incumbents.least_peak.certificate.peak
        if self.stop is StopReason.INTERRUPTED:
            return known
        if self.call.deadline.expired and len(self.problem.graph.ops) > LEAST_OPS:
            return known
        seconds = min(LEAST_SECONDS, max(LATE_SECONDS, self.call.deadline.remaining))
        found = least_known_budget(self.problem, seconds, self.call.seed)
        # A schedule by another method than the one that was asked is no answer.
        other = self.incumbents if self.any_method else Incumbents(self.problem)
        if other.see(found.schedule, found.source).fits and self.infeasible and covers(self.scope, self.problem):
            raise BackendError(
                f"it is claimed that no schedule exists{self.proof}, but {found.source} found one", "refuted"
            )
        return min(known, found.certificate.peak)

    def _suffices(self, peak: int) -> str:
        whole = self.problem.reference_peak
        share = f" ({100 * peak / whole:.4g} %)" if whole else ""
        return f"{peak:,} bytes{share} are known to suffice"
