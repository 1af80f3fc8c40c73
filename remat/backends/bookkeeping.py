"""The books of one solve, kept alike by all backends: incumbents, the bound, callbacks that fail, and the verdict."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from remat.backends.results import Incumbent, OnBound, OnIncumbent, RawResult, Status, StopReason, Values
from remat.deadline import Deadline
from remat.errors import BackendError
from remat.interruption import interrupted
from remat.modeling import Model


@dataclass
class Bookkeeping:
    """What a solver has said so far. Solutions and bounds only get better; callbacks never raise into the solver.

    Attributes
    ----------
    solver : str
        Its name, for messages.
    model : Model
    clock : Deadline
        Times of incumbents are counted on it.
    on_incumbent, on_bound : callable, optional
    stop : callable
        Asks the solver to end; called when a callback says that it is enough, or raises.
    hint : array or None
        A starting solution for the solver.
    versions : dict of str to str
        Of what solves.
    stop_reason : StopReason or None
        Why the solver was first asked to end.
    incumbents : list of Incumbent
        Each better than the last.
    bound : float or None
        The largest so far.
    failure : BaseException or None
        The first one from a callback, for the caller to raise when the solver has ended.
    closed : bool
        Set where the solver is left behind: what it still says is not heard.
    """

    solver: str
    model: Model
    clock: Deadline
    on_incumbent: OnIncumbent | None = None
    on_bound: OnBound | None = None
    stop: Callable[[], object] = lambda: None
    hint: Values | None = None
    versions: dict[str, str] = field(default_factory=dict)
    stop_reason: StopReason | None = None
    incumbents: list[Incumbent] = field(default_factory=list)
    bound: float | None = None
    failure: BaseException | None = None
    closed: bool = False

    @property
    def best(self) -> Incumbent | None:
        """The best solution so far."""
        return self.incumbents[-1] if self.incumbents else None

    @property
    def proved(self) -> bool:
        """Whether the bound says that nothing is better than the best solution, but for rounding."""
        best = self.best
        return (
            best is not None
            and self.bound is not None
            and best.objective - self.bound <= 1e-6 + 1e-9 * abs(best.objective)
        )

    def found(self, values: Values, *, tell: bool = True) -> None:
        """Take a solution if it is better than the last; a solver may find a hint anew."""
        objective = self.model.objective.value(values)
        if self.closed or (self.incumbents and objective >= self.incumbents[-1].objective):
            return
        self.incumbents.append(Incumbent(self.clock.elapsed, objective, self.bound, values))
        if tell:
            self._call(self.on_incumbent, self.incumbents[-1])

    def raise_bound(self, bound: float | None, *, tell: bool = True) -> None:
        """Take a bound if it is better than the last."""
        if self.closed or bound is None or (self.bound is not None and bound <= self.bound):
            return
        self.bound = bound
        if tell:
            self._call(self.on_bound, self.clock.elapsed, bound)

    def _call(self, callback: Any, *arguments: Any) -> None:
        if callback is None or self.failure is not None:
            return
        try:
            if callback(*arguments):
                self.ask_to_stop()
        except BaseException as error:  # a solver's own thread must not see it
            self.fail(error)

    def fail(self, error: BaseException) -> None:
        """Keep an exception for the end, unless there is one already, and ask the solver to stop."""
        self.failure = self.failure or error
        self.ask_to_stop()

    def ask_to_stop(self, reason: StopReason = StopReason.INTERRUPTED) -> None:
        """Ask the solver to end soon; the first reason is kept, and after the deadline that is the reason."""
        if self.clock.expired:
            reason = StopReason.INTERRUPTED if interrupted() else StopReason.DEADLINE
        self.stop_reason = self.stop_reason or reason
        self.stop()

    def conclude(
        self, said: Status, stop: StopReason, *, relative_gap: float
    ) -> tuple[Status, StopReason, float | None]:
        """Status, why it stopped, and the bound, from the solver's last word.

        Parameters
        ----------
        said : Status
            By the backend's table of its solver's statuses; `OPTIMAL` may be meant within the gap. `ERROR` stays.
        stop : StopReason
            Where nothing is proved.

        Raises
        ------
        BackendError
            If it says that there is no solution, and there is one.
        BaseException
            What a callback raised.
        """
        if self.failure is not None:
            raise self.failure
        best = self.best
        if said is Status.INFEASIBLE:
            if best is not None:
                raise BackendError(
                    f"{self.solver} says that the model is infeasible, but there is a solution", "not-infeasible"
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
        self,
        verdict: tuple[Status, StopReason, float | None],
        seconds: tuple[float, float],
        message: str = "",
    ) -> RawResult:
        """All of it, with a verdict of :meth:`conclude`, and the seconds of building and of solving."""
        status, stop, bound = verdict
        best = self.best
        values, objective = (best.values, best.objective) if best else (None, None)
        return RawResult(
            status, stop, objective, bound, values, tuple(self.incumbents), *seconds, self.versions, message
        )
