"""State of one solve, shared by all backends: incumbents, bound, failing callbacks, verdict."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from remat.backends.results import Incumbent, OnBound, OnIncumbent, RawResult, Values
from remat.errors import BackendError
from remat.modeling import Model
from remat.runtime.deadline import Deadline
from remat.runtime.interruption import interrupted
from remat.runtime.solve_options import Status, StopReason


@dataclass
class Bookkeeping:
    """Solutions and bounds of one solve. Both only improve; callbacks never raise into the solver."""

    solver: str
    """Name for messages."""
    model: Model
    clock: Deadline
    """Clock for the times of incumbents."""
    on_incumbent: OnIncumbent | None = None
    on_bound: OnBound | None = None
    stop: Callable[[], object] = lambda: None
    """Asks the solver to stop; called when a callback returns true or raises."""
    hint: Values | None = None
    """Starting solution."""
    versions: dict[str, str] = field(default_factory=dict)
    """Versions of the software that solves."""
    stop_reason: StopReason | None = None
    """First reason for which the solver was asked to stop."""
    incumbents: list[Incumbent] = field(default_factory=list)
    """Each better than the previous one."""
    bound: float | None = None
    """Largest lower bound so far."""
    failure: BaseException | None = None
    """First exception of a callback, raised by the caller when the solver has stopped."""
    closed: bool = False
    """True once the solver is abandoned; later solutions and bounds are discarded."""

    @property
    def best(self) -> Incumbent | None:
        """Best solution so far."""
        return self.incumbents[-1] if self.incumbents else None

    @property
    def proved(self) -> bool:
        """Return True if the bound proves the best solution optimal, up to rounding."""
        best = self.best
        return (
            best is not None
            and self.bound is not None
            and best.objective - self.bound <= 1e-6 + 1e-9 * abs(best.objective)
        )

    def found(self, values: Values, *, notify: bool = True) -> None:
        """Record a solution if it is better than the last; solvers may report a hint again."""
        objective = self.model.objective.value(values)
        if self.closed or (self.incumbents and objective >= self.incumbents[-1].objective):
            return
        self.incumbents.append(Incumbent(self.clock.elapsed, objective, self.bound, values))
        if notify:
            self._call(self.on_incumbent, self.incumbents[-1])

    def raise_bound(self, bound: float | None, *, notify: bool = True) -> None:
        """Record a bound if it is better than the last."""
        if self.closed or bound is None or (self.bound is not None and bound <= self.bound):
            return
        self.bound = bound
        if notify:
            self._call(self.on_bound, self.clock.elapsed, bound)

    def _call(self, callback: Any, *arguments: Any) -> None:
        if callback is None or self.failure is not None:
            return
        try:
            if callback(*arguments):
                self.request_stop()
        except BaseException as error:  # must not propagate into the solver's thread
            self.fail(error)

    def fail(self, error: BaseException) -> None:
        """Store the first exception, to be raised at the end, and ask the solver to stop."""
        self.failure = self.failure or error
        self.request_stop()

    def request_stop(self, reason: StopReason = StopReason.INTERRUPTED) -> None:
        """Ask the solver to stop soon. The first reason counts; after the deadline it is the deadline."""
        if self.clock.expired:
            reason = StopReason.INTERRUPTED if interrupted() else StopReason.DEADLINE
        self.stop_reason = self.stop_reason or reason
        self.stop()

    def conclude(
        self, said: Status, stop: StopReason, *, relative_gap: float
    ) -> tuple[Status, StopReason, float | None]:
        """Return status, stop reason and bound from the solver's final status.

        Parameters
        ----------
        said : Status
            Translated from the solver's own. `OPTIMAL` may mean within the gap; `ERROR` is kept.
        stop : StopReason
            Reason if nothing is proved.

        Raises
        ------
        BackendError
            If the solver claims infeasibility although a solution exists.
        BaseException
            The exception of a callback.
        """
        if self.failure is not None:
            raise self.failure
        best = self.best
        if said is Status.INFEASIBLE:
            if best is not None:
                raise BackendError(
                    f"{self.solver} reports an infeasible model, but there is a solution", "not-infeasible"
                )
            return said, StopReason.FINISHED, None
        if best is None:
            return (said if said is Status.ERROR else Status.UNKNOWN), stop, self.bound
        bound = None if self.bound is None else min(self.bound, best.objective)
        if said is Status.OPTIMAL:
            if relative_gap > 0 and (bound is None or bound < best.objective):
                return Status.FEASIBLE, StopReason.GAP, bound
            return Status.OPTIMAL, StopReason.FINISHED, bound
        return (said if said is Status.ERROR else Status.FEASIBLE), stop, bound

    def result(
        self, verdict: tuple[Status, StopReason, float | None], seconds: tuple[float, float], message: str = ""
    ) -> RawResult:
        """Return the result, given a verdict of :meth:`conclude` and the seconds of building and of solving."""
        status, stop, bound = verdict
        best = self.best
        values, objective = (best.values, best.objective) if best else (None, None)
        return RawResult(
            status, stop, objective, bound, values, tuple(self.incumbents), *seconds, self.versions, message
        )
