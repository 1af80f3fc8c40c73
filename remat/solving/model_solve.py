"""Solve by a formulation and a backend: build, find a start, solve, and check every answer."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from remat.backends.base import Backend
from remat.backends.results import RawResult, Values
from remat.errors import BackendError, ProblemError
from remat.formulations.base import Formulation, Preliminary
from remat.modeling import Model
from remat.ordering.instance import saved_in_place
from remat.problem import Problem
from remat.problem.scope import EVERY_SCHEDULE, restrictions_hold
from remat.runtime.deadline import OverdueError
from remat.runtime.resources import available_memory
from remat.runtime.solve_options import SolveOptions, Status, StopReason
from remat.schedule import Schedule
from remat.solving.backend_call import SolverFailedError, call_backend
from remat.solving.incumbents import TOLERANCE, Certified, Reader, lower_bound
from remat.solving.session import NOT_COUNTED, NOT_IN_PLACE, Session
from remat.solving.warm_start import best_hint, expressed, why_no_hint

#: Share of the time left for the preliminary model.
PRELIMINARY_SHARE = 0.5


class ModelSolve:
    """One formulation of the problem of a session, solved by one backend.

    `session`: receives all results and the formulation's bound and scope. `options`: options of the formulation.
    """

    def __init__(self, session: Session, kind: type[Formulation], backend: Backend, options: Any = None) -> None:
        self.session, self.kind, self.backend, self.options = session, kind, backend, options
        self.call = session.call
        self.incumbents = session.incumbents
        self.source = f"{kind.name} by {backend.full_name}"
        self.last_cost = session.bound
        #: True if its proofs hold for the session's problem, and not only without outputs in place of inputs.
        self.proves = kind.counts_in_place or not session.problem.graph.in_place
        self.problem = session.problem if self.proves else session.problem.plain
        #: Excess of the model's peaks, in bytes.
        self.shift = 0
        if not self.proves and session.problem.once.all():
            most, sure = saved_in_place(session.problem)
            if (most == sure).all():  # every order writes the same outputs in place
                self.proves = True
                self.problem, self.shift = session.problem.saving(sure)
        if not session.problem.objective.is_memory:
            self.shift = 0

    def run(self, warm_start: Schedule | None = None) -> None:
        """Build and solve the model.

        Raise BackendError if the backend is not available, fails before finding anything, or its answer contradicts the
        schedule; ProblemError if the formulation cannot state the problem or does not accept the options, or its model
        exceeds the memory and no schedule is known.
        """
        session = self.session
        self.backend.check_ready()
        for phase in ("build", "preliminary", "solve"):
            session.timings.setdefault(phase, 0.0)
        session.enter("build")
        begun = time.monotonic()
        if not self.proves:
            session.note(f"{self.kind.name} {NOT_COUNTED}")
            if self.problem.hopeless:
                session.note(f"{self.source} was left out: {NOT_IN_PLACE}")
                return
        try:
            self.call.deadline.check()
            formulation = make_formulation(self.kind, self.problem, self.options)
            formulation.deadline = self.call.deadline
            given = self._given(warm_start)
            limits_value = session.problem.objective.includes_cost or self.kind.moves
            limit = session.value if self.proves and limits_value else None
            if limit is not None and given is not None:
                limit = max(limit, given.certificate.cost)
            formulation.leave_out_above(limit)
            if not self._fits(formulation):
                return
            self.model = formulation.build()
            session.size = (self.model.num_vars, self.model.num_constraints)
            self.call.deadline.check()  # a hint can take as long as the model
            self.reader = Reader(self.incumbents, formulation, self.model, self.source)
            if warm_start is not None:
                own = warm_start.graph_digest == session.problem.graph.digest
                start = replace(warm_start, graph_digest=self.problem.graph.digest) if own else warm_start
                session.note(why_no_hint(formulation, start))
            hint = best_hint(formulation, self.incumbents, session.reference, given)
            preliminary = self._preliminary(formulation)
        except OverdueError:
            session.stop = StopReason.DEADLINE
            session.note("the time was over before the model was built")
            return
        finally:
            session.timings["build"] += time.monotonic() - begun
        if preliminary is not None and not self._run_preliminary(formulation, preliminary, hint):
            return
        if session.enough:
            return
        if self.proves:
            session.scope = formulation.scope()
        if self.call.deadline.expired:
            session.stop = StopReason.DEADLINE
            return
        session.enter("solve")
        hint = best_hint(formulation, self.incumbents, session.reference, given)
        raw = self._call(self.model, self.call, hint, self._on_main)
        if raw is not None:
            self._conclude(formulation, raw)
        session.notes.extend(sorted(self.reader.notes))

    def _given(self, warm_start: Schedule | None) -> Certified | None:
        """Return the warm start if it is within the budget: the formulation may be able to express only this one."""
        seen = None if warm_start is None else self.incumbents.add(warm_start, "the warm start")
        return seen if seen is not None and seen.fits else None

    def _fits(self, formulation: Formulation) -> bool:
        """Return True if the model fits into the remaining memory and time.

        Raise ProblemError if it exceeds the memory and no schedule is known.
        """
        session, rows = self.session, self.backend.reads_rows(self.call)
        size = formulation.linear_estimate() if rows else formulation.estimate()
        if size is None:
            return True
        why = size.lacks_memory(available_memory(self.call.memory_bytes), self.backend.nonzero_bytes)
        if why:
            why = f"the model of {self.source} is not built: it has {size} and {why}"
            if self.incumbents.best is None:
                raise ProblemError(why)
            session.note(why)
            session.stop = StopReason.OTHER
            return False
        why = size.lacks_time(self.call.deadline.remaining)
        if why:
            session.note(f"the time was over before the model was built: it has {size} and {why}")
            session.stop = StopReason.DEADLINE
        return not why

    # -- calls of the backend ----------------------------------------------------------------------------------------

    def _preliminary(self, formulation: Formulation) -> Preliminary | None:
        """Return the model that finds a start, if one is needed.

        A linear form needs none: HiGHS proves FCN8 at 80 % in 1 s without a preliminary model, and in 17 s with one.
        """
        if self.incumbents.best is not None or self.backend.takes_linear_form(self.model, self.call):
            return None
        return formulation.preliminary()

    def _run_preliminary(self, formulation: Formulation, preliminary: Preliminary, hint: Values | None) -> bool:
        """Search for a start within the budget; return whether to solve the main model."""
        self.session.enter("preliminary")
        goal = preliminary.goal + TOLERANCE * max(1.0, abs(preliminary.goal))

        def on_values(values: Values, objective: float) -> bool:
            return self.reader.preliminary(values).fits or objective <= goal

        deadline = self.call.deadline
        part = deadline.earlier(PRELIMINARY_SHARE * deadline.remaining)
        start = None if hint is None else preliminary.extend(hint)
        call = replace(self.call, deadline=part, relative_gap=0.0)
        raw = self._call(preliminary.model, call, start, on_values)
        if raw is None or self.session.stop is StopReason.INTERRUPTED:
            return False
        lower = raw.objective if raw.bound is None and raw.status is Status.OPTIMAL else raw.bound
        if raw.status is Status.INFEASIBLE or (lower is not None and lower > goal):
            self._prove_infeasible(formulation)
            return False
        return True

    def _on_main(self, values: Values, objective: float) -> bool:
        self.last_cost = self.session.problem.value(self.reader.main(values, objective).certificate)
        return self.session.decided

    def _call(
        self, model: Model, options: SolveOptions, hint: Values | None, on_values: Callable[[Values, float], bool]
    ) -> RawResult | None:
        """Solve `model`, passing every solution to `on_values`; return None if it failed but a schedule is known."""
        session = self.session

        def take(values: Values, objective: float) -> bool:
            enough = on_values(values, objective)
            session.report_progress()
            return enough or session.reached is not None

        def on_bound(bound: float) -> bool:
            if model is self.model and self.proves:  # a preliminary model's bound is not a bound on cost
                session.raise_bound(self._bound(bound))
            return session.reached is not None

        begun = time.monotonic()
        try:
            raw = call_backend(self.backend, model, options, hint, on_values=take, on_bound=on_bound)
        except SolverFailedError as crash:
            if self.incumbents.best is None:
                raise
            session.stop = StopReason.OTHER
            session.note(f"{crash}; the schedule found before is kept")
            return None
        finally:
            session.timings[session.phase] = session.timings.get(session.phase, 0.0) + time.monotonic() - begun
        session.versions.update(raw.versions)
        session.stop = raw.stop
        session.note(raw.message)
        return raw

    # -- conclusions -------------------------------------------------------------------------------------------------

    def _conclude(self, formulation: Formulation, raw: RawResult) -> None:
        """Record the final status of the solver for all schedules in the scope."""
        session = self.session
        if raw.status is Status.INFEASIBLE:
            self._prove_infeasible(formulation)
            return
        if not self.proves:
            return
        session.raise_bound(self._bound(raw.bound))
        if raw.stop is StopReason.GAP and raw.bound is None and raw.objective is not None and not self.call.solver:
            # The solver reports no bound, but stops at the given gap.
            session.raise_bound(self._bound(raw.objective - self.call.relative_gap * abs(raw.objective)))
        closed = raw.bound is None or _reaches(raw.bound, raw.objective)
        if raw.status is Status.OPTIMAL and raw.stop is StopReason.FINISHED and closed:
            session.raise_bound(self._bound(raw.objective) if formulation.relaxes else self.last_cost)
        best = self.incumbents.best
        value = session.value
        if best is not None and value is not None and session.bound > value and self._in_scope(formulation, best):
            objective = session.problem.objective
            raise BackendError(
                f"{self.source} claims that no schedule {objective.verb} less than {objective.text(session.bound)}, "
                f"but that of {best.source} {objective.verb} {value:,}",
                "refuted",
            )

    def _bound(self, bound: float | None) -> int | None:
        """Return a bound of the model as one of the problem."""
        found = lower_bound(bound)
        return None if found is None else found - self.shift

    def _prove_infeasible(self, formulation: Formulation) -> None:
        session, best = self.session, self.incumbents.best
        session.stop = StopReason.FINISHED
        if not self.proves:
            session.note(f"{self.source} proved that no schedule without outputs in place of inputs fits")
        elif best is None:
            session.infeasible, session.scope = True, formulation.scope()
            session.proof = f" (proved by {self.kind.name} and {self.backend.full_name})"
        elif self._in_scope(formulation, best):
            raise BackendError(
                f"{self.source} claims that no schedule exists, but that of {best.source} is one", "refuted"
            )
        else:
            session.note(f"{self.source} proved that no schedule fits within: {formulation.scope()}")
            session.scope, session.bound = EVERY_SCHEDULE, session.least_bound

    @staticmethod
    def _in_scope(formulation: Formulation, seen: Certified) -> bool:
        """Return True if claims of the model certainly cover a schedule."""
        return restrictions_hold(formulation.scope(), seen.certificate) and expressed(formulation, seen) is not None


def make_formulation(kind: type[Formulation], problem: Problem, options: Any = None) -> Formulation:
    """Return the formulation of a problem with its options.

    Raise ProblemError if it does not state the problem or its objective, or does not take the options.
    """
    if (objective := problem.objective) not in kind.objectives:
        raise ProblemError(f"formulation {kind.name!r} does not state the objective {objective!r}")
    if options is None:
        return kind(problem)
    try:
        return kind(problem, options)  # type: ignore[call-arg]
    except TypeError as error:
        raise ProblemError(f"formulation {kind.name!r} does not take these options: {error}", "no-options") from None


def _reaches(bound: float, objective: float | None) -> bool:
    return objective is not None and bound >= objective - TOLERANCE * max(1.0, abs(objective))
