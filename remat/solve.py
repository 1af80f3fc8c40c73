"""solve(): a problem, a formulation and a backend, or a heuristic, make a certified result."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from remat.backends.base import Backend, RawResult, SolveOptions, Status, StopReason, Values
from remat.backends.running import GRACE, OverdueError, time_limit
from remat.calling import SolverFailedError, call_backend, call_options
from remat.errors import BackendError, ProblemError
from remat.formulations.base import Formulation, Preliminary, Scope
from remat.heuristics.base import Heuristic, Run
from remat.judge import EVERY_SCHEDULE, TOLERANCE, Judge, Reader, Seen, covers, lower_bound, structural_peak
from remat.modeling import Model
from remat.problem import Problem
from remat.progress import OnProgress, Progress
from remat.registry import heuristics, load, make_backend
from remat.result import Point, Result, base_versions
from remat.schedule import OrderRule, Schedule
from remat.schedule.validate import validate
from remat.starts import best_hint, expressed, take_warm_start, why_no_hint
from remat.timing import Deadline

#: The heuristic that starts a solver, where it is registered.
START_HEURISTICS = {OrderRule.FIXED: "greedy", OrderRule.FREE: "annealing"}
#: Shares of the time left that the start heuristic and the preliminary model may use.
START_SHARE, PRELIMINARY_SHARE = 0.1, 0.5
#: Share of the time left in which the start heuristic must be loaded, and compiled where it is for the first time.
PREPARE_SHARE = 0.4
#: Most seconds of the start heuristic for each op.
START_SECONDS = 0.02


def solve(
    problem: Problem,
    method: str | type[Formulation] | type[Heuristic] = "retention-intervals",
    backend: str | Backend = "cp-sat",
    *,
    deadline: float | Deadline | None = None,
    warm_start: Schedule | None = None,
    threads: int | None = None,
    seed: int = 0,
    relative_gap: float = 0.0,
    options: Any = None,
    solver_options: Mapping[str, Any] | None = None,
    on_progress: OnProgress | None = None,
    log: Callable[[str], None] | None = None,
    isolate: bool = False,
    memory_limit: int | str | None = None,
) -> Result:
    """Find the cheapest schedule that keeps the rules of `problem`.

    What needs no solver is answered at once: a budget below the structural bound, and a budget that a schedule
    without recomputation keeps. Otherwise the formulation is built and solved; where no start within the budget is
    known, its preliminary model looks for one first. Every schedule on the way is validated and priced by itself.

    Parameters
    ----------
    problem : Problem
    method : str or subclass of Formulation or Heuristic
        Name of a registered formulation or heuristic, or one itself.
    backend : str or Backend
        Name of a registered backend, or a backend itself; not used by heuristics.
    deadline : float, Deadline or None
        Seconds for everything, or a deadline whose clock runs already; None: as long as it takes.
    warm_start : Schedule, optional
        A valid schedule to start from; within the budget it is also the answer if nothing better is found. Where the
        formulation cannot express it, the result's message says so.
    threads : int or None
        None: as many as the machine has.
    seed : int
    relative_gap : float
        Stop when (objective − bound) / objective is at most this.
    options : optional
        Options of the formulation or heuristic.
    solver_options : mapping, optional
        Passed to the solver untouched.
    on_progress : callable, optional
        Receives a :class:`remat.progress.Progress` at every new phase, schedule and bound, from any thread.
    log : callable, optional
        Receives the solver's own log, line by line.
    isolate : bool
        Run the solver in a process of its own, which is killed if it misses the deadline; what it had found is kept.
    memory_limit : int or str, optional
        Bytes that this process may hold (``"4GiB"``); means `isolate`.

    Returns
    -------
    Result
        With the best schedule found, also after Ctrl-C or a crash of the solver.

    Raises
    ------
    RematError
        For a name that is not registered; a ProblemError for options out of range, a warm start that is not a valid
        schedule of the graph, or a problem that the formulation cannot state.
    BackendError
        If the backend is not available, fails with nothing found, or its answer is not what the schedule shows.
    KeyboardInterrupt
        If Ctrl-C comes before there is any schedule, and not while the solver runs.

    Examples
    --------
    >>> from remat import GraphBuilder, Problem, solve
    >>> b = GraphBuilder("pair")
    >>> _ = b.op("a", size=4, cost=1), b.op("b", inputs=["a"], size=6, cost=1)
    >>> graph = b.build()
    >>> solve(Problem(graph, "100%")).status.value
    'optimal'
    >>> solve(Problem(graph, 9)).message
    "no schedule exists: budget 9 bytes is below the 10 bytes that op 'b' needs; 10 bytes (100 %) are known to suffice"
    """
    if warm_start is not None and not isinstance(warm_start, Schedule):
        raise ProblemError(f"the warm start is a {type(warm_start).__name__}, not a Schedule")
    call = call_options(
        deadline, threads=threads, seed=seed, relative_gap=relative_gap, log=log, solver=solver_options,
        isolate=isolate, memory_limit=memory_limit,
    )  # fmt: skip
    return _Solve(problem, method, backend, call, warm_start, options, on_progress).run()


@dataclass
class _Solve:
    """One call of :func:`solve`; its state is what is known so far."""

    problem: Problem
    method: str | type[Formulation] | type[Heuristic]
    backend: str | Backend
    call: SolveOptions
    warm_start: Schedule | None
    options: Any
    on_progress: OnProgress | None

    phase: str = "start"
    stop: StopReason = StopReason.FINISHED
    scope: Scope = EVERY_SCHEDULE
    infeasible: bool = False
    points: list[Point] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    timings: dict[str, float] = field(default_factory=lambda: {"build": 0.0, "preliminary": 0.0, "solve": 0.0})
    versions: dict[str, str] = field(default_factory=base_versions)
    model: Model | None = None

    def __post_init__(self) -> None:
        self.begun = time.monotonic()
        self.judge = Judge(self.problem)
        self.bound = self.last_cost = self.problem.graph.base_cost
        self.is_heuristic = (
            self.method in heuristics() if isinstance(self.method, str) else issubclass(self.method, Heuristic)
        )
        self.method_name = self.method if isinstance(self.method, str) else self.method.name
        self.backend_name = self.backend if isinstance(self.backend, str) else self.backend.full_name
        if self.is_heuristic:
            self.backend_name = ""

    # -- the way -----------------------------------------------------------------------------------------------------

    def run(self) -> Result:
        # An unknown name is an error even where no solver is needed; loading a name brings no solver along.
        kind: Any = None if self.is_heuristic else _named("formulations", self.method)
        backend: Any = None if self.is_heuristic else self.backend
        if isinstance(backend, str):
            backend = make_backend(backend)
        self.reference = self.judge.see(Schedule.reference(self.problem.graph), "the reference order")
        peak, where = structural_peak(self.problem)
        if self.problem.budget_bytes is not None and self.problem.budget_bytes < peak:
            self.infeasible = True
            return self._result(f"budget {self.problem.budget_bytes:,} bytes is below the {peak:,} bytes that {where}")
        try:
            if not self._decided() and self.warm_start is not None:
                self._note(take_warm_start(self.judge, self.warm_start))
            if not self._decided():
                self._run_heuristic()
            if not self._decided() and not self.is_heuristic:
                self._run_solver(kind, backend)
        except KeyboardInterrupt:
            if self.judge.best is None:
                raise
            self.stop = StopReason.INTERRUPTED
        return self._result()

    def _decided(self) -> bool:
        """Whether a schedule costs no more than computing each op once, which nothing beats."""
        self._tell()
        return self.judge.best is not None and self.judge.best.certificate.cost <= self.problem.graph.base_cost

    def _run_heuristic(self) -> None:
        method: Any = self.method if self.is_heuristic else START_HEURISTICS.get(OrderRule(self.problem.order), "")
        if not self.is_heuristic and method not in heuristics():
            return
        heuristic: Heuristic = _named("heuristics", method)(self.options if self.is_heuristic else None)
        deadline = self.call.deadline
        if not self.is_heuristic:
            with contextlib.suppress(OverdueError), time_limit(deadline.earlier(PREPARE_SHARE * deadline.remaining)):
                heuristic.prepare()
            share = START_SHARE * deadline.remaining
            deadline = deadline.earlier(min(START_SECONDS * len(self.problem.graph.ops), share))
        schedule = None
        with contextlib.suppress(OverdueError), time_limit(Deadline(deadline.seconds + GRACE, deadline.started)):
            schedule = heuristic.run(self.problem, Run(deadline, self.call.seed, start=self.warm_start))
        if schedule is not None:
            self.judge.see(schedule, heuristic.name)
        self.bound, self.scope = heuristic.bound or self.bound, heuristic.scope or self.scope
        if self.is_heuristic and self.call.deadline.expired:
            self.stop = StopReason.DEADLINE

    def _run_solver(self, kind: type[Formulation], backend: Backend) -> None:
        availability = backend.ready()
        if not availability.ready:
            reason = f"{availability.state}, {availability.reason}"
            raise BackendError(f"backend {backend.full_name!r} cannot be used: {reason}")
        self._enter("build")
        begun = time.monotonic()
        try:
            with time_limit(self.call.deadline):
                formulation = self._make_formulation(kind)
                formulation.leave_out_above(self.judge.best.certificate.cost if self.judge.best else None)
                self.model = formulation.build()
                source = f"{self.method_name} by {self.backend_name}"
                self.reader = Reader(self.judge, formulation, self.model, source)
                if self.warm_start is not None:
                    self._note(why_no_hint(formulation, self.warm_start))
                hint = best_hint(formulation, self.judge, self.reference)
                preliminary = formulation.preliminary() if self.judge.best is None else None
        except OverdueError:
            self.stop = StopReason.DEADLINE
            self._note("the time was over before the model was built")
            return
        finally:
            self.timings["build"] = time.monotonic() - begun
        if preliminary is not None and not self._run_preliminary(backend, formulation, preliminary, hint):
            return
        if self._decided():
            return
        self.scope = formulation.scope()
        if self.call.deadline.expired:
            self.stop = StopReason.DEADLINE
            return
        self._enter("solve")
        hint = best_hint(formulation, self.judge, self.reference)
        raw = self._call(backend, self.model, self.call, hint, self._on_main)
        if raw is not None:
            self._conclude(formulation, raw)
        self.notes.extend(sorted(self.reader.notes))

    def _make_formulation(self, kind: type[Formulation]) -> Formulation:
        if self.options is None:
            return kind(self.problem)
        try:
            return kind(self.problem, self.options)  # type: ignore[call-arg]
        except TypeError as error:
            raise ProblemError(f"formulation {self.method_name!r} does not take these options: {error}") from None

    # -- calls of the backend ----------------------------------------------------------------------------------------

    def _run_preliminary(
        self, backend: Backend, formulation: Formulation, preliminary: Preliminary, hint: Values | None
    ) -> bool:
        """Look for a start within the budget; whether the main model is worth solving then."""
        self._enter("preliminary")
        goal = preliminary.goal + TOLERANCE * max(1.0, abs(preliminary.goal))

        def on_values(values: Values, objective: float) -> bool:
            return self.reader.preliminary(values).fits or objective <= goal

        deadline = self.call.deadline
        part = deadline.earlier(PRELIMINARY_SHARE * deadline.remaining)
        start = None if hint is None else preliminary.extend(hint)
        call = replace(self.call, deadline=part, relative_gap=0.0)
        raw = self._call(backend, preliminary.model, call, start, on_values)
        if raw is None or self.stop is StopReason.INTERRUPTED:
            return False
        lower = raw.objective if raw.bound is None and raw.status is Status.OPTIMAL else raw.bound
        if raw.status is Status.INFEASIBLE or (lower is not None and lower > goal):
            self._prove_infeasible(formulation)
            return False
        return True

    def _on_main(self, values: Values, objective: float) -> bool:
        self.last_cost = self.reader.main(values, objective).certificate.cost
        return False

    def _raise_bound(self, bound: float | None) -> None:
        """Take note of a solver's bound on cost if it is better."""
        better = lower_bound(bound)
        if better is not None and better > self.bound:
            self.bound = better
            self._tell()

    def _call(
        self,
        backend: Backend,
        model: Model,
        options: SolveOptions,
        hint: Values | None,
        on_values: Callable[[Values, float], bool],
    ) -> RawResult | None:
        """Let the backend solve `model`, every solution going to `on_values`; None if it failed with one at hand."""

        def take(values: Values, objective: float) -> bool:
            enough = on_values(values, objective)
            self._tell()
            return enough

        def on_bound(bound: float) -> None:
            if model is self.model:  # the bound of a preliminary model is not one on cost
                self._raise_bound(bound)

        begun = time.monotonic()
        try:
            raw = call_backend(backend, model, options, hint, on_values=take, on_bound=on_bound)
        except SolverFailedError as crash:
            if self.judge.best is None:
                raise
            self.stop = StopReason.OTHER
            self.notes.append(f"{crash}; the schedule found before is kept")
            return None
        finally:
            self.timings[self.phase] = time.monotonic() - begun
        self.versions.update(raw.versions)
        self.stop = raw.stop
        self._note(raw.message)
        return raw

    # -- conclusions -------------------------------------------------------------------------------------------------

    def _conclude(self, formulation: Formulation, raw: RawResult) -> None:
        """What the solver's last word says of all schedules in the scope."""
        if raw.status is Status.INFEASIBLE:
            self._prove_infeasible(formulation)
            return
        self._raise_bound(raw.bound)
        closed = raw.bound is None or _reaches(raw.bound, raw.objective)
        if raw.status is Status.OPTIMAL and raw.stop is StopReason.FINISHED and closed:
            self.bound = max(self.bound, self.last_cost)
            self._tell()
        best = self.judge.best
        if best is not None and self.bound > best.certificate.cost and self._in_scope(formulation, best):
            raise BackendError(
                f"{self.method_name} by {self.backend_name} claims that no schedule costs less than {self.bound:,}, "
                f"but that of {best.source} costs {best.certificate.cost:,}"
            )

    def _prove_infeasible(self, formulation: Formulation) -> None:
        best, self.stop, source = self.judge.best, StopReason.FINISHED, f"{self.method_name} by {self.backend_name}"
        if best is None:
            self.infeasible, self.scope = True, formulation.scope()
        elif self._in_scope(formulation, best):
            raise BackendError(f"{source} claims that no schedule exists, but that of {best.source} is one")
        else:
            self.notes.append(f"{source} proved that no schedule fits within: {formulation.scope()}")
            self.scope, self.bound = EVERY_SCHEDULE, self.problem.graph.base_cost

    @staticmethod
    def _in_scope(formulation: Formulation, seen: Seen) -> bool:
        """Whether a claim of the model certainly covers that schedule; restrictions in words cannot be checked."""
        return not formulation.scope().notes and expressed(formulation, seen) is not None

    def _result(self, reason: str = "") -> Result:
        best, base = self.judge.best, self.problem.graph.base_cost
        assert self.judge.leanest is not None
        status = Status.INFEASIBLE if self.infeasible else Status.UNKNOWN
        schedule = certificate = None
        if best is not None:
            schedule = best.schedule
            certificate = validate(self.problem.graph, schedule, self.problem.rules)
            if not certificate.accepted or certificate.cost != best.certificate.cost:
                raise BackendError(f"the schedule of {best.source} changed its verdict: {certificate.first}")
            self.bound = min(self.bound, certificate.cost)
            status = Status.OPTIMAL if self.bound == certificate.cost else Status.FEASIBLE
            if status is Status.OPTIMAL:
                self.stop = StopReason.FINISHED
            if certificate.cost == base:
                self.scope = EVERY_SCHEDULE
        else:
            self.notes.insert(0, f"{self._why_none(reason)}; {self._suffices()}")
        self.timings["total"] = time.monotonic() - self.begun
        return Result(
            problem=self.problem,
            schedule=schedule,
            certificate=certificate,
            status=status,
            stop=self.stop,
            bound=self.bound,
            scope=self.scope,
            least_feasible_budget=self.judge.leanest.certificate.peak,
            incumbents=tuple(self.points),
            timings=self.timings,
            variables=None if self.model is None else self.model.num_vars,
            constraints=None if self.model is None else self.model.num_constraints,
            method=self.method_name,
            backend=self.backend_name,
            source="" if best is None else best.source,
            seed=self.call.seed,
            threads=self.call.threads,
            versions=self.versions,
            message="; ".join(self.notes),
        )

    def _why_none(self, reason: str) -> str:
        if reason:
            return f"no schedule exists: {reason}"
        if self.infeasible:
            proved = f"proved by {self.method_name} and {self.backend_name}"
            if covers(self.scope, self.problem):
                return f"no schedule exists ({proved})"
            return f"no schedule exists within {self.scope} ({proved}), which says nothing of schedules beyond that"
        if self.is_heuristic:
            return f"{self.method_name} found no schedule within the budget, which proves nothing"
        when = {StopReason.DEADLINE: "in time", StopReason.INTERRUPTED: "before the interruption"}
        return f"no schedule was found {when.get(self.stop, 'before the solver gave up')}, and none is ruled out"

    def _suffices(self) -> str:
        assert self.judge.leanest is not None
        peak, whole = self.judge.leanest.certificate.peak, self.problem.reference_peak
        share = f" ({100 * peak / whole:.4g} %)" if whole else ""
        return f"{peak:,} bytes{share} are known to suffice"

    def _note(self, remark: str) -> None:
        if remark:
            self.notes.append(remark)

    # -- news --------------------------------------------------------------------------------------------------------

    def _enter(self, phase: str) -> None:
        self.phase = phase
        self._tell()

    def _tell(self) -> None:
        best, now = self.judge.best, self.call.deadline.elapsed
        objective = None if best is None else best.certificate.cost
        bound = self.bound if objective is None else min(self.bound, objective)
        last = self.points[-1] if self.points else Point(0.0, None, self.problem.graph.base_cost)
        if (objective, bound) != (last.objective, last.bound):
            self.points.append(Point(now, objective, bound))
        if self.on_progress is not None:
            self.on_progress(Progress(self.phase, now, self.problem.graph.base_cost, objective, bound))


def _named(group: str, what: Any) -> Any:
    """What is registered under a name; anything else as it is."""
    return load(group, what) if isinstance(what, str) else what


def _reaches(bound: float, objective: float | None) -> bool:
    return objective is not None and bound >= objective - TOLERANCE * max(1.0, abs(objective))
