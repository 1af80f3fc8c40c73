"""Stopping rules of a solve: seconds, or a criterion on the current state.

Every parameter ``stop`` accepts seconds (``10``), a running :class:`remat.runtime.deadline.Deadline`, or a class
of this module. Criteria are evaluated at every new schedule, bound or phase, so they do not interrupt a silent solver;
seconds always apply.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from typing import Annotated, TypeAlias

from remat.errors import ProblemError
from remat.runtime.checked_options import Options, Range
from remat.runtime.deadline import Deadline
from remat.runtime.solve_options import SolveOptions, StopReason
from remat.solving.progress import Progress, relative_gap

#: A positive number of seconds.
Seconds = Annotated[float, Range(above=0)]


class StoppingCriterion(ABC):
    """Decides whether the current state suffices. Immutable, so one object can be used in many solves."""

    reason: StopReason = StopReason.CRITERION
    """Stop reason of results that it ended."""

    @abstractmethod
    def reached(self, moment: Progress) -> bool:
        """Return True if to end the solve at that moment."""

    @property
    def seconds(self) -> float:
        """Seconds after which it ends a solve in any case; infinite without such a limit."""
        return math.inf

    @property
    def gap(self) -> float:
        """Relative gap, for solvers that can stop at it; 0 without one."""
        return 0.0

    @abstractmethod
    def __str__(self) -> str: ...


@dataclass(frozen=True)
class MaxSeconds(Options, StoppingCriterion):
    """A number of seconds as a criterion; a plain number is equivalent.

    Examples
    --------
    >>> str(MaxSeconds(10))
    'after 10 s'
    """

    limit: Seconds
    reason = StopReason.DEADLINE

    @property
    def seconds(self) -> float:
        return self.limit

    def reached(self, moment: Progress) -> bool:
        return moment.elapsed >= self.limit

    def __str__(self) -> str:
        return f"after {self.limit:g} s"


@dataclass(frozen=True)
class TargetCost(Options, StoppingCriterion):
    """A schedule with at most this objective (cost or peak, by the problem), or the proof that there is none.

    Examples
    --------
    >>> [TargetCost(105).reached(Progress("solve", 1.0, 100, objective)) for objective in (None, 106, 105)]
    [False, False, True]
    """

    target: Annotated[int, Range(0)]

    def reached(self, moment: Progress) -> bool:
        reaches = moment.aim.reaches
        found = moment.objective is not None and reaches(moment.objective, self.target)
        return found or (moment.bound is not None and not reaches(moment.bound, self.target))

    def __str__(self) -> str:
        return f"at {self.target:,} or less, or when that is ruled out"


@dataclass(frozen=True)
class Gap(Options, StoppingCriterion):
    """A relative gap, (objective − bound) / objective, of at most `relative`.

    Examples
    --------
    >>> Gap(0.01).reached(Progress("solve", 1.0, 100, objective=200, bound=198))
    True
    """

    relative: Annotated[float, Range(0, below=1)]
    reason = StopReason.GAP

    @property
    def gap(self) -> float:
        return self.relative

    def reached(self, moment: Progress) -> bool:
        gap = relative_gap(moment.objective, moment.bound)
        return gap is not None and gap <= self.relative

    def __str__(self) -> str:
        return f"at a gap of {100 * self.relative:g} %"


@dataclass(frozen=True)
class NoImprovement(Options, StoppingCriterion):
    """A number of seconds since the last better schedule.

    Examples
    --------
    >>> NoImprovement(5).reached(Progress("solve", 9.0, 100, objective=105, improved=3.5))
    True
    """

    limit: Seconds

    def reached(self, moment: Progress) -> bool:
        return moment.objective is not None and moment.elapsed - moment.improved >= self.limit

    def __str__(self) -> str:
        return f"after {self.limit:g} s without a better schedule"


@dataclass(frozen=True)
class FirstFeasible(StoppingCriterion):
    """The first schedule within the budget.

    Examples
    --------
    >>> FirstFeasible().reached(Progress("solve", 1.0, 100, objective=150))
    True
    """

    def reached(self, moment: Progress) -> bool:
        return moment.objective is not None

    def __str__(self) -> str:
        return "at the first schedule"


@dataclass(frozen=True, init=False)
class AnyOf(StoppingCriterion):
    """The first of several criteria to be reached; plain numbers are seconds.

    Examples
    --------
    >>> criterion = AnyOf(60, TargetCost(105))
    >>> criterion.seconds, str(criterion)
    (60.0, 'after 60 s, or at 105 or less, or when that is ruled out')
    """

    criteria: tuple[StoppingCriterion, ...] = field(default=())

    def __init__(self, *criteria: StoppingCriterion | float) -> None:
        made = tuple(one if isinstance(one, StoppingCriterion) else MaxSeconds(one) for one in criteria)
        if not made:
            raise ProblemError("AnyOf needs at least one criterion")
        object.__setattr__(self, "criteria", made)

    @property
    def seconds(self) -> float:
        return min(float(one.seconds) for one in self.criteria)

    @property
    def gap(self) -> float:
        return max(one.gap for one in self.criteria)

    def reached(self, moment: Progress) -> bool:
        return self.first(moment) is not None

    def first(self, moment: Progress) -> StoppingCriterion | None:
        """Return the criterion that is reached, or None."""
        return next((one for one in self.criteria if one.reached(moment)), None)

    def __str__(self) -> str:
        return ", or ".join(str(one) for one in self.criteria)


#: Values of `stop`: seconds, a running deadline, a criterion, or None to end at the proof only.
Stop: TypeAlias = "float | Deadline | StoppingCriterion | None"


def stopping(stop: Stop, options: SolveOptions) -> tuple[SolveOptions, StoppingCriterion | None]:
    """Return the options with the deadline and gap of `stop`, and the criterion to evaluate; the clock starts here.

    Raises
    ------
    ProblemError
        If `stop` is invalid, or `options` are not :class:`SolveOptions`.

    Examples
    --------
    >>> options, criterion = stopping(AnyOf(30, FirstFeasible()), SolveOptions())
    >>> options.deadline.seconds, str(criterion)
    (30.0, 'after 30 s, or at the first schedule')
    """
    if not isinstance(options, SolveOptions):
        raise ProblemError(
            f"options must be SolveOptions, not {_shown(options)}; options of a formulation or heuristic go with "
            "method_options",
            "bad-options",
        )
    if stop is None or isinstance(stop, Deadline):
        given, criterion = stop or Deadline.after(None), None
    elif isinstance(stop, StoppingCriterion):
        given, criterion = Deadline.after(stop.seconds), stop
    else:
        if isinstance(stop, bool) or not isinstance(stop, int | float) or not stop > 0:
            raise ProblemError(
                f"stop must be a positive number of seconds or a stopping criterion, not {_shown(stop)}", "bad-stop"
            )
        given, criterion = Deadline.after(stop), None
    own = options.deadline
    if math.isfinite(own.seconds):  # both apply
        deadline = own if stop is None else given.earlier(own.remaining)
    else:
        deadline = given
    gap = options.relative_gap if criterion is None else max(options.relative_gap, criterion.gap)
    return replace(options, deadline=deadline, relative_gap=gap), criterion


def described(stop: Stop) -> float | str | None:
    """Return `stop` for tables and files: a number of seconds, or text."""
    if isinstance(stop, StoppingCriterion):
        return str(stop)
    return stop.seconds if isinstance(stop, Deadline) else stop


def _shown(value: object) -> str:
    return f"{value!r}"[:60]
