"""State of one call of solve()."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property

from remat.backends.base import Backend
from remat.errors import BackendError, ModelError, ProblemError
from remat.heuristics.base import Heuristic, HeuristicRun, overrun_remark
from remat.ordering.base import Ordering, OrderSearch
from remat.ordering.instance import OrderInstance
from remat.problem import Problem
from remat.problem.scope import EVERY_SCHEDULE, Scope, covers, own_scope
from remat.runtime.arrays import Int
from remat.runtime.compiled import COMPILING
from remat.runtime.deadline import Deadline, OverdueError
from remat.runtime.solve_options import MOST, SolveOptions, StopReason
from remat.schedule import Schedule
from remat.solving.backend_call import SolverFailedError
from remat.solving.incumbents import Certified, Incumbents
from remat.solving.progress import OnProgress, Progress, relative_gap
from remat.solving.result import Point, Step, base_versions
from remat.solving.stop import AnyOf, StoppingCriterion

#: Remark on a method whose proofs do not count.
NOT_COUNTED = "writes no output in place of an input: what it proves does not count"
#: Remark on a budget that is too small without outputs in place of inputs.
NOT_IN_PLACE = "it writes no output in place of an input, and the budget is too small for that"
#: Remark on a method that moves nothing to the host.
NOT_MOVED = "moves no tensor to the host: what it proves does not count"
#: Share of an order search's time for its bound, if bounds and orders need separate runs.
BOUND_SHARE = 0.5
#: End of the remark on a method that was skipped.
NOT_COMPILED = " was not compiled in time"


@dataclass
class Session:
    """State of one call of :func:`remat.solve`: all results so far.

    Attributes
    ----------
    problem : Problem
    call : SolveOptions
        Deadline, threads, seed and other options, for all parts of the solve.
    method, backend : str
        Names of method and backend; `backend` is empty without one.
    on_progress : callable or None
    criterion : StoppingCriterion or None
        Criterion in addition to deadline, proof and gap; `reached` is the one that was met.
    incumbents : Incumbents
        Keeps the best schedule.
    bound : int
        Lower bound on the cost (or peak in bytes, by the problem's objective) of all schedules in `scope`.
    bound_kind, bound_cause : str
        For a peak: source of the bound, and the op that causes it, if any.
    cost_bound : int
        For a peak: lower bound on the cost of schedules with the least known peak.
    infeasible : bool
        True if no schedule in `scope` exists; `proof` says why, starting with its punctuation.
    """

    problem: Problem
    call: SolveOptions
    method: str
    backend: str = ""
    on_progress: OnProgress | None = None
    criterion: StoppingCriterion | None = None
    solver: Backend | None = None
    """Solves the models of methods that use a backend."""
    warm_start: Schedule | None = None
    whole: Session | None = None
    """Session of which this one is a part; both share their schedules."""

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
    """Variables and constraints of the model, if any."""
    states: int | None = None
    """Number of states of order searches."""
    any_method: bool = False
    """True if schedules of any method count as answers."""
    begun: float = field(default_factory=time.monotonic)
    bound_kind: str = ""
    bound_cause: str = ""
    lock: threading.RLock = field(default_factory=threading.RLock, repr=False)
    """Held while a bound or a report changes: a heuristic may run while bounds are computed."""

    def __post_init__(self) -> None:
        if self.whole is None:
            self.incumbents = Incumbents(self.problem)
            self.reference = self.incumbents.add(Schedule.reference(self.problem.graph), "the reference order")
            if self.call.start == "alone" and not self.asks_peak:
                self.incumbents.best = None
        else:
            self.incumbents, self.reference = self.whole.incumbents, self.whole.reference
        self.cost_bound = self.problem.graph.base_cost
        self.bound = self.least_bound

    @property
    def best(self) -> Certified | None:
        """Best schedule so far."""
        return self.incumbents.best

    @property
    def cost(self) -> int | None:
        """Cost of the best schedule."""
        return None if self.best is None else self.best.certificate.cost

    @property
    def asks_peak(self) -> bool:
        """Return True if the objective is the peak."""
        return self.problem.objective.is_memory

    @property
    def least_bound(self) -> int:
        """Trivial bound on the objective."""
        return self.problem.objective.base(self.problem.graph)

    @property
    def value(self) -> int | None:
        """Objective of the best schedule so far, such as its cost or its peak."""
        return None if self.best is None else self.problem.value(self.best.certificate)

    @property
    def decided(self) -> bool:
        """Return True if the best schedule is proved optimal, or that none exists."""
        self.report_progress()
        return self.infeasible or (self.value is not None and self.problem.objective.reaches(self.value, self.bound))

    @property
    def enough(self) -> bool:
        """Return True if to end: decided, within the gap, or at the stopping criterion."""
        return self.decided or self.near or self.reached is not None

    @property
    def near(self) -> bool:
        """Return True if the gap is within its limit."""
        gap = relative_gap(self.value, self.bound)
        return gap is not None and gap <= self.call.relative_gap

    def raise_bound(self, bound: int | None, scope: Scope | None = None) -> None:
        """Record a bound on the objective if it is better, with its `scope` if that is new."""
        with self.lock:
            if bound is not None and bound > self.bound:
                self.bound = bound
                if scope is not None:
                    self.scope = scope
                self.report_progress()

    def raise_cost_bound(self, bound: int | None, scope: Scope | None = None) -> None:
        """Record a bound on the cost, if it bounds the objective."""
        if self.problem.objective.includes_cost:
            self.raise_bound(bound, scope)

    def end_infeasible(self, scope: Scope, kind: str) -> None:
        """Record the proof that no schedule within `scope` exists; raise BackendError if one is known."""
        if self.best is not None:
            raise BackendError(
                f"{kind} claims that no schedule exists, but the schedule of {self.best.source} "
                f"{self.problem.objective.verb} {self.value:,}",
                "refuted",
            )
        self.infeasible, self.scope, self.proof = True, scope, f" (by {kind})"

    def raise_peak_bound(self, bound: int, kind: str, cause: str = "") -> None:
        """Record a better bound on the peak of every schedule that the problem allows, with its source.

        Raise BackendError if a schedule with a lower peak is known.
        """
        least = self.incumbents.least_peak
        assert least is not None  # the reference order is always known
        if bound > least.certificate.peak:
            self._refute(bound, kind, least)
        if bound > self.bound:
            self.bound_kind, self.bound_cause = kind, cause
            self.raise_bound(bound, own_scope(self.problem))

    @staticmethod
    def _refute(bound: int, kind: str, found: Certified) -> None:
        raise BackendError(
            f"{kind} claims that no schedule holds less than {bound:,} bytes, "
            f"but that of {found.source} holds {found.certificate.peak:,}",
            "refuted",
        )

    def add(self, schedule: Schedule, source: str) -> Certified:
        """Certify a schedule, record it, and report it.

        Raise BackendError if it is invalid, or its peak is below the bound.
        """
        certified = self.incumbents.add(schedule, source)
        self.check(certified)
        return certified

    def check(self, certified: Certified) -> None:
        """Raise an error if a schedule contradicts the bound on the peak; otherwise report progress."""
        if self.asks_peak and self.bound > certified.certificate.peak:
            self._refute(self.bound, self.bound_kind, certified)
        self.report_progress()

    def adopt(self, part: Session) -> None:
        """Record the best schedules of another session, and report progress."""
        for found in (part.incumbents.best, part.incumbents.least_peak):
            if found is not None and found is not part.reference:
                self.incumbents.add(found.schedule, found.source)
        self.report_progress()

    # -- heuristics --------------------------------------------------------------------------------------------------

    def improve(
        self, heuristic: Heuristic, deadline: Deadline, start: Schedule | None = None, turn: int = 0,
        horizon: Deadline | None = None, *, background: bool = False,
    ) -> None:  # fmt: skip
        """Run a heuristic, with a different seed for each `turn`; validate all its schedules.

        With a `horizon`, its last run may be resumed. In the background of other work it has one thread.
        """

        def add(schedule: Schedule) -> bool:
            self.incumbents.add(schedule, heuristic.name)
            return self.enough

        phase = self.phase
        if not heuristic.prepared(deadline, lambda: self.enter(f"{phase}: {COMPILING}")):
            self.not_compiled(heuristic.name)
            return
        if self.phase != phase:
            self.enter(phase)
        threads = 1 if background else self.call.threads
        call = replace(self.call, deadline=deadline, seed=(self.call.seed + turn) % (MOST + 1), threads=threads)
        problem = (self.problem if heuristic.moves else self.problem.one_memory).plain
        if problem is not self.problem and problem.hopeless:
            self.note(f"{heuristic.name} was left out: {NOT_IN_PLACE}")
            return
        if not heuristic.moves:
            start = self.start_without_moves(start)
        run = HeuristicRun(call, start and self.problem.for_plain(start), add, self.solver, horizon, background)
        schedule = None
        with contextlib.suppress(OverdueError):
            schedule = heuristic.run(problem, run)
        self.note(overrun_remark(heuristic, deadline))
        if schedule is not None:
            add(schedule)
        if problem is self.problem:
            self.raise_cost_bound(heuristic.bound, heuristic.scope)
            if heuristic.infeasible:
                self.end_infeasible(heuristic.scope or own_scope(self.problem), heuristic.name)

    @staticmethod
    def start_without_moves(start: Schedule | None) -> Schedule | None:
        """Return a start for methods that move nothing: none if it moves tensors."""
        return None if start is None or start.has_transfers else start

    # -- order searches ----------------------------------------------------------------------------------------------

    @cached_property
    def orders(self) -> OrderInstance:
        """Problem in the form of order searches; its bounds are valid."""
        return OrderInstance.of(self.problem)

    @cached_property
    def pessimistic_orders(self) -> OrderInstance:
        """:attr:`orders` if that is exact; otherwise an instance whose peaks are upper bounds."""
        return self.orders if self.orders.exact else OrderInstance.of(self.problem, least=False)

    def search_order(
        self, search: OrderSearch, deadline: Deadline, upper: int | None = None,
        done: Callable[[], bool] | None = None,
    ) -> Ordering:  # fmt: skip
        """Search for an order of low peak; certify and record all orders found.

        `upper`: search only for orders with a lower peak than this. `done`: ends the search when it returns true;
        default: :attr:`enough`.

        Raise BackendError if an order has another peak than claimed, or one below the bound.
        """
        if self.orders.exact:
            return self._search_order(self.orders, search, deadline, upper, done)
        # The first instance gives a bound, the second a low peak.
        found = self._search_order(self.orders, search, deadline.share(BOUND_SHARE), upper, done)
        over = self.enough if done is None else done()
        if not over and (upper is None or found.bound < upper):
            self._search_order(self.pessimistic_orders, search, deadline, upper, done)
        return found

    def _search_order(
        self, instance: OrderInstance, search: OrderSearch, deadline: Deadline, upper: int | None,
        done: Callable[[], bool] | None,
    ) -> Ordering:  # fmt: skip
        def add(order: Int, peak: int) -> bool:
            found = self.add(instance.schedule(self.problem, order, search.name), search.name).certificate.peak
            if found != peak and instance.exact:
                text = f"{search.name} claims a peak of {peak:,} bytes for an order that has {found:,}"
                raise BackendError(text, "wrong-peak")
            return self.enough if done is None else done()

        found = search.search(instance, deadline=deadline, seed=self.call.seed, upper=upper, on_order=add)
        if found.order is not None and found.peak is not None:
            add(found.order, found.peak)
        if self.asks_peak and found.states is not None:
            self.states = (self.states or 0) + found.states
        return found

    def part(
        self, name: str, run: Callable[[Session], None], call: SolveOptions, solver: Backend | None = None, *,
        start: Schedule | None = None, step: str = "",
    ) -> Session | None:  # fmt: skip
        """Run another method on the problem as a step, and adopt its proofs that cover every schedule.

        Return its session; None with a remark if it does not apply, or its solver is missing or fails.

        Raise BackendError if an answer of the solver is wrong. Raise KeyboardInterrupt if the solver was interrupted.

        Parameters
        ----------
        name : str
            Name of the method.
        run : callable
            Runs the method on the session that it receives.
        solver : Backend, optional
            Solver of the method's models.
        start : Schedule, optional
            Warm start.
        step : str, optional
            Name of the step; empty: no step.
        """
        backend = "" if solver is None else solver.full_name
        if solver is not None and not solver.ready().ready:
            self.note(f"backend {backend!r} was left out: {solver.ready().reason}")
            return None
        part = Session(self.problem, call, name, backend, solver=solver, warm_start=start, whole=self)
        part.on_progress, part.criterion, part.bound = lambda _: self.report_progress(), self.criterion, self.bound
        with self.step(step) if step else contextlib.nullcontext():
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
        """Set the stop reason after a method that tries several things, unless it is set already.

        A bound on the peak above the budget proves that no schedule fits.
        """
        budget = self.problem.budget_bytes
        if self.asks_peak and budget is not None and self.bound > budget:
            self.infeasible, self.proof = True, f" (by {self.bound_kind})"
        if self.stop is StopReason.FINISHED and not self.enough:
            self.stop = StopReason.DEADLINE if self.call.deadline.expired else StopReason.EXHAUSTED

    # -- progress ----------------------------------------------------------------------------------------------------

    def note(self, remark: str) -> None:
        """Add a remark to the result, once."""
        if remark and remark not in self.notes:
            self.notes.append(remark)

    def not_compiled(self, name: str) -> None:
        """Note that a method was skipped; proved results omit the remark."""
        self.note(name + NOT_COMPILED)

    def enter(self, phase: str) -> None:
        """Start a phase."""
        self.phase = phase
        self.report_progress()

    def report_progress(self) -> None:
        """Report the current state, and record it if it improved."""
        with self.lock:
            self._report()

    def _report(self) -> None:
        now = self.call.deadline.elapsed
        value = self.value
        bound = self.bound if value is None else min(self.bound, value)
        last = self.points[-1] if self.points else Point(0.0, None, self.least_bound)
        if value != last.objective:
            self.improved = now
        if (value, bound) != (last.objective, last.bound):
            self.points.append(Point(now, value, bound))
        best = self.best
        base = self.least_bound or self.problem.graph.base_cost
        moment = Progress(
            self.phase, now, base, value, bound, self.improved,
            aim=self.problem.objective, cost=self.cost, limit=self.call.deadline.seconds,
            schedule=None if best is None else best.schedule, source="" if best is None else best.source,
            peak=None if best is None else best.certificate.peak,
        )  # fmt: skip
        if self.criterion is not None and self.reached is None and self.criterion.reached(moment):
            self.reached = self.criterion.first(moment) if isinstance(self.criterion, AnyOf) else self.criterion
        if self.on_progress is not None:
            self.on_progress(moment)

    @contextlib.contextmanager
    def timed(self, phase: str) -> Iterator[None]:
        """Run a phase and add its seconds to the timings."""
        self.enter(phase)
        begun = time.monotonic()
        try:
            yield
        finally:
            self.timings[phase] = self.timings.get(phase, 0.0) + time.monotonic() - begun

    @contextlib.contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Run a step and record its outcome."""
        self.enter(name)
        begun = time.monotonic()
        try:
            yield
        finally:
            self.steps.append(Step(name, time.monotonic() - begun, self.value, self.bound))
