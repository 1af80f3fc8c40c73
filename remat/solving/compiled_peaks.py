"""Budgets of schedules whose compiled programs need more or less memory than predicted: :func:`closest`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, NamedTuple, TypeVar

from remat.errors import ProblemError
from remat.solving.training_steps import StepReport

Made = TypeVar("Made")

#: Most budgets tried for one graph, the first included.
ATTEMPTS = 4
#: A peak of at least this share of the budget leaves no room worth another schedule.
CLOSE = 0.95


class Attempt(NamedTuple, Generic[Made]):
    """Program of a schedule.

    Attributes
    ----------
    budget, predicted : int
        Bytes within which the schedule was solved, and its peak.
    peak : int
        Bytes that the compiler assigns to the program.
    cost, recomputations : int
        Those of the schedule.
    made : Any
    """

    budget: int
    predicted: int
    peak: int
    cost: int
    recomputations: int
    made: Made

    @classmethod
    def of(cls, report: StepReport, peak: int, made: Made) -> Attempt[Made]:
        """Return the program of a reported schedule."""
        cost = report.certificate.cost or 0
        return cls(report.budget or 0, report.predicted_peak, peak, cost, report.recomputations, made)

    def rank(self, room: int) -> tuple[bool, int]:
        """Key that is lower for better programs: those that fit by cost, before others by peak."""
        missed = self.peak > room
        return missed, self.peak if missed else self.cost


def closest(
    first: Attempt[Made], room: int, highest: int, attempt: Callable[[int], Attempt[Made]]
) -> tuple[Attempt[Made], tuple[tuple[int, int], ...]]:
    """Return the cheapest program found whose peak is at most `room`, else that of least peak.

    Also return the budgets tried, each with the peak of its program.

    After a miss the next budget is the schedule's peak lowered in proportion, by twice that after two misses in a row,
    and so on. A budget that leaves room is raised. Budgets stay between those that left room or had no schedule, and
    those that missed.

    Parameters
    ----------
    room, highest : int
        Bytes: the budget of the program, and the peak without recomputation.
    attempt : callable
        Makes the program of a budget; raises `ProblemError` if no schedule within it was found.

    Examples
    --------
    A compiler that needs a quarter more than predicted:

    >>> made = [Attempt(budget, budget, budget * 5 // 4, 1000 - budget, 1, None) for budget in range(1000)]
    >>> best, tried = closest(made[600], 600, 1000, lambda budget: made[budget])
    >>> best.budget, best.peak, tried
    (480, 600, ((600, 750), (480, 600)))
    """
    best, last, tried = first, first, [(first.budget, first.peak)]
    low, high, misses = 0, highest, 0
    for _ in range(ATTEMPTS - 1):
        if last.peak > room:
            start, high, misses = last.predicted, min(high, last.predicted), misses + 1
        else:
            start, low, misses = last.budget, max(low, last.budget), 0
        if best.peak <= room and (best.peak >= CLOSE * room or not best.recomputations):
            break
        aim = start + start * (room - last.peak) * max(1, misses) // max(1, last.peak)
        if not low < aim < high:
            aim = (low + high) // 2
        if not low < aim < high:
            break
        try:
            last = attempt(aim)
        except ProblemError:
            low = max(low, aim)
            continue
        tried.append((last.budget, last.peak))
        best = min(best, last, key=lambda each: each.rank(room))
    return best, tuple(tried)


def time_of_each(time_limit: float | None) -> float | None:
    """Return the seconds for each further schedule, which together have as long as the first."""
    return None if time_limit is None else time_limit / (ATTEMPTS - 1)
