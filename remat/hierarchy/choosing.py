"""Choice of an option for each group, and further options for the memory that the choice leaves to each group."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from remat.formulations.composites import Composite
from remat.hierarchy.effort import Effort
from remat.hierarchy.quotient import Choice, choice_of
from remat.hierarchy.refine import refined
from remat.problem import Objective
from remat.runtime.deadline import Deadline
from remat.schedule import Schedule
from remat.solving.session import Session

#: First and last step in which :func:`_least_peak` lowers the budget, as shares of the gap above the structural bound.
FIRST_STEP, LAST_STEP = 0.25, 0.02
#: Most rounds of further options, and the share of the time left that each round of them gets.
ROUNDS, REFINE_SHARE = 3, 0.5

#: Rank of a choice, smaller is better: over the budget, objective, the other criterion.
Worth = tuple[bool, int, int]


@dataclass(frozen=True, eq=False)
class Chosen:
    """Best choice of an option for each group of one partition.

    Attributes
    ----------
    composites : list of Composite
        Groups with their first options and the one that the best choice takes: few options make small models.
    worth : tuple
        Rank of the best choice.
    schedule : Schedule or None
        The best choice, if it is within the budget.
    """

    composites: list[Composite]
    worth: Worth = (True, 0, 0)
    schedule: Schedule | None = None


def choose(
    session: Session, composites: Sequence[Composite], effort: Effort, leaf: Effort, *, moves: int, clock: Deadline
) -> Chosen:
    """Choose an option of each composite and add the schedules to the session.

    Parameters
    ----------
    effort : Effort
        Answers the problem that one option of each group makes.
    leaf : Effort
        Makes further options for the memory that the best choice leaves to each group.
    moves : int
        Changes to try per composite.
    """
    if session.asks_peak:
        return Chosen(list(composites), _least_peak(session, composites, effort, moves=moves, clock=clock))
    return _least_cost(session, list(composites), effort, leaf, moves=moves, clock=clock)


def _take(session: Session, choice: Choice) -> Worth:
    seen = session.add(choice.schedule, "groups with options").certificate
    return not choice.fits, *((seen.peak, seen.cost) if session.asks_peak else (seen.cost, seen.peak))


def _least_cost(
    session: Session, composites: list[Composite], effort: Effort, leaf: Effort, *, moves: int, clock: Deadline
) -> Chosen:
    worth: Worth = (True, 0, 0)
    best: Choice | None = None
    given = composites
    for number in range(1 + ROUNDS):
        if session.problem.budget_bytes is None or session.enough or (number and (clock.expired or best is None)):
            break
        if best is not None:
            part = clock.earlier(REFINE_SHARE * clock.remaining)
            more = refined(session.problem, composites, best, leaf, part)
            if sum(len(each.options) for each in more) == sum(len(each.options) for each in composites):
                break
            composites = more
        found = choice_of(
            session.problem, composites, clock, effort=effort.seeded(number), moves=moves,
            first=None if best is None else best.options,
        )  # fmt: skip
        if found is None:
            break
        mine = _take(session, found)
        if best is not None and best.fits and mine >= worth:
            break
        best, worth = found, mine
    if best is None:
        return Chosen(given)
    few = [_with(*each) for each in zip(given, composites, best.options, strict=True)]
    return Chosen(few, worth, best.schedule if best.fits else None)


def _with(given: Composite, more: Composite, option: int) -> Composite:
    """Return a composite with one more option of `more`, whose first options are those of `given`."""
    if option < len(given.options):
        return given
    return Composite(given.name, given.forward, given.backward, [*given.options, more.options[option]])


def _least_peak(
    session: Session, composites: Sequence[Composite], effort: Effort, *, moves: int, clock: Deadline
) -> Worth:
    """Lower the budget step by step; halve the step after a failure."""
    worth: Worth = (True, 0, 0)
    problem, step = session.problem, FIRST_STEP
    assert session.incumbents.least_peak is not None
    peak = session.incumbents.least_peak.certificate.peak
    while step >= LAST_STEP and not (clock.expired or session.enough):
        limit = peak - max(1, int(step * (peak - problem.structural_peak)))
        asked = replace(problem, budget=limit, objective=Objective.LEAST_COST)
        found = choice_of(asked, composites, clock, effort=effort, moves=moves)
        if found is not None and found.fits:
            worth = _take(session, found)
            peak = min(peak, worth[1])
        else:
            step /= 2
    return worth
