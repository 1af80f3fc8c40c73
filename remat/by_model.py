"""Solving by a formulation and a backend: build, look for a start, solve, and believe nothing."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from remat.attempt import Attempt
from remat.backends.base import Backend, RawResult, SolveOptions, Status, StopReason, Values
from remat.backends.running import OverdueError, time_limit
from remat.calling import SolverFailedError, call_backend
from remat.errors import BackendError, ProblemError
from remat.formulations.base import Formulation, Preliminary
from remat.judge import EVERY_SCHEDULE, TOLERANCE, Reader, Seen, lower_bound
from remat.modeling import Model
from remat.schedule import Schedule
from remat.starts import best_hint, expressed, why_no_hint

#: Share of the time left that the preliminary model may use.
PRELIMINARY_SHARE = 0.5


class ModelSolve:
    """One formulation of the problem of an attempt, solved by one backend.

    Parameters
    ----------
    attempt : Attempt
        Learns what is found; its bound and scope become those of the formulation.
    kind : subclass of Formulation
    backend : Backend
    options : optional
        Of the formulation.
    call : SolveOptions, optional
        In place of that of the attempt.
    """

    def __init__(
        self, attempt: Attempt, kind: type[Formulation], backend: Backend, options: Any = None,
        call: SolveOptions | None = None,
    ) -> None:  # fmt: skip
        self.attempt, self.kind, self.backend, self.options = attempt, kind, backend, options
        self.call = call or attempt.call
        self.judge = attempt.judge
        self.source = f"{kind.name} by {backend.full_name}"
        self.last_cost = attempt.bound

    def run(self, warm_start: Schedule | None = None) -> None:
        """Solve.

        Raises
        ------
        BackendError
            If the backend is not available, fails with nothing found, or its answer is not what the schedule shows.
        ProblemError
            If the formulation cannot state the problem or does not take the options.
        """
        attempt, availability = self.attempt, self.backend.ready()
        if not availability.ready:
            reason = f"{availability.state}, {availability.reason}"
            raise BackendError(f"backend {self.backend.full_name!r} cannot be used: {reason}")
        attempt.enter("build")
        begun = time.monotonic()
        try:
            with time_limit(self.call.deadline):
                formulation = self._make_formulation()
                formulation.leave_out_above(attempt.cost)
                self.model = formulation.build()
                attempt.size = (self.model.num_vars, self.model.num_constraints)
                self.reader = Reader(self.judge, formulation, self.model, self.source)
                if warm_start is not None:
                    attempt.note(why_no_hint(formulation, warm_start))
                hint = best_hint(formulation, self.judge, attempt.reference)
                preliminary = formulation.preliminary() if self.judge.best is None else None
        except OverdueError:
            attempt.stop = StopReason.DEADLINE
            attempt.note("the time was over before the model was built")
            return
        finally:
            attempt.timings["build"] += time.monotonic() - begun
        if preliminary is not None and not self._run_preliminary(formulation, preliminary, hint):
            return
        if attempt.decided:
            return
        attempt.scope = formulation.scope()
        if self.call.deadline.expired:
            attempt.stop = StopReason.DEADLINE
            return
        attempt.enter("solve")
        hint = best_hint(formulation, self.judge, attempt.reference)
        raw = self._call(self.model, self.call, hint, self._on_main)
        if raw is not None:
            self._conclude(formulation, raw)
        attempt.notes.extend(sorted(self.reader.notes))

    def _make_formulation(self) -> Formulation:
        if self.options is None:
            return self.kind(self.attempt.problem)
        try:
            return self.kind(self.attempt.problem, self.options)  # type: ignore[call-arg]
        except TypeError as error:
            raise ProblemError(f"formulation {self.kind.name!r} does not take these options: {error}") from None

    # -- calls of the backend ----------------------------------------------------------------------------------------

    def _run_preliminary(self, formulation: Formulation, preliminary: Preliminary, hint: Values | None) -> bool:
        """Look for a start within the budget; whether the main model is worth solving then."""
        self.attempt.enter("preliminary")
        goal = preliminary.goal + TOLERANCE * max(1.0, abs(preliminary.goal))

        def on_values(values: Values, objective: float) -> bool:
            return self.reader.preliminary(values).fits or objective <= goal

        deadline = self.call.deadline
        part = deadline.earlier(PRELIMINARY_SHARE * deadline.remaining)
        start = None if hint is None else preliminary.extend(hint)
        call = replace(self.call, deadline=part, relative_gap=0.0)
        raw = self._call(preliminary.model, call, start, on_values)
        if raw is None or self.attempt.stop is StopReason.INTERRUPTED:
            return False
        lower = raw.objective if raw.bound is None and raw.status is Status.OPTIMAL else raw.bound
        if raw.status is Status.INFEASIBLE or (lower is not None and lower > goal):
            self._prove_infeasible(formulation)
            return False
        return True

    def _on_main(self, values: Values, objective: float) -> bool:
        self.last_cost = self.reader.main(values, objective).certificate.cost
        return False

    def _call(
        self,
        model: Model,
        options: SolveOptions,
        hint: Values | None,
        on_values: Callable[[Values, float], bool],
    ) -> RawResult | None:
        """Let the backend solve `model`, every solution going to `on_values`; None if it failed with one at hand."""
        attempt = self.attempt

        def take(values: Values, objective: float) -> bool:
            enough = on_values(values, objective)
            attempt.tell()
            return enough

        def on_bound(bound: float) -> None:
            if model is self.model:  # the bound of a preliminary model is not one on cost
                attempt.raise_bound(lower_bound(bound))

        begun = time.monotonic()
        try:
            raw = call_backend(self.backend, model, options, hint, on_values=take, on_bound=on_bound)
        except SolverFailedError as crash:
            if self.judge.best is None:
                raise
            attempt.stop = StopReason.OTHER
            attempt.note(f"{crash}; the schedule found before is kept")
            return None
        finally:
            attempt.timings[attempt.phase] = attempt.timings.get(attempt.phase, 0.0) + time.monotonic() - begun
        attempt.versions.update(raw.versions)
        attempt.stop = raw.stop
        attempt.note(raw.message)
        return raw

    # -- conclusions -------------------------------------------------------------------------------------------------

    def _conclude(self, formulation: Formulation, raw: RawResult) -> None:
        """What the solver's last word says of all schedules in the scope."""
        attempt = self.attempt
        if raw.status is Status.INFEASIBLE:
            self._prove_infeasible(formulation)
            return
        attempt.raise_bound(lower_bound(raw.bound))
        closed = raw.bound is None or _reaches(raw.bound, raw.objective)
        if raw.status is Status.OPTIMAL and raw.stop is StopReason.FINISHED and closed:
            attempt.raise_bound(self.last_cost)
        best = self.judge.best
        if best is not None and attempt.bound > best.certificate.cost and self._in_scope(formulation, best):
            raise BackendError(
                f"{self.source} claims that no schedule costs less than {attempt.bound:,}, "
                f"but that of {best.source} costs {best.certificate.cost:,}"
            )

    def _prove_infeasible(self, formulation: Formulation) -> None:
        attempt, best = self.attempt, self.judge.best
        attempt.stop = StopReason.FINISHED
        if best is None:
            attempt.infeasible, attempt.scope = True, formulation.scope()
            attempt.proof = f" (proved by {self.kind.name} and {self.backend.full_name})"
        elif self._in_scope(formulation, best):
            raise BackendError(f"{self.source} claims that no schedule exists, but that of {best.source} is one")
        else:
            attempt.note(f"{self.source} proved that no schedule fits within: {formulation.scope()}")
            attempt.scope, attempt.bound = EVERY_SCHEDULE, attempt.problem.graph.base_cost

    @staticmethod
    def _in_scope(formulation: Formulation, seen: Seen) -> bool:
        """Whether a claim of the model certainly covers that schedule; restrictions in words cannot be checked."""
        return not formulation.scope().notes and expressed(formulation, seen) is not None


def _reaches(bound: float, objective: float | None) -> bool:
    return objective is not None and bound >= objective - TOLERANCE * max(1.0, abs(objective))
