"""Options of groups chosen for a whole problem: try, look what memory is left to each group, make options for that."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from remat.deadline import Deadline
from remat.formulations.hierarchical import Composite
from remat.hierarchy.options import Effort
from remat.hierarchy.quotient import Choice, choice_of
from remat.hierarchy.refine import refined
from remat.problem import Objective
from remat.schedule import Schedule
from remat.solving.session import Session

#: Shares of what is open above the structural bound by which choices are asked for less, at first and at last.
FIRST_STEP, LAST_STEP = 0.25, 0.02
#: Rounds of options for what is left to each group, at most, and the share of the time left for them in each round.
ROUNDS, REFINE_SHARE = 3, 0.5

#: How good a choice is: whether there is none, then the objective, then the other; the smaller, the better.
Worth = tuple[bool, int, int]


@dataclass(frozen=True, eq=False)
class Chosen:
    """The best choice of an option for each group of one partition.

    Attributes
    ----------
    composites : list of Composite
        The groups with the options, of those that were made, that the best choice takes: models are solved sooner with
        few.
    worth : tuple
        Of the best choice.
    schedule : Schedule or None
        Of the best choice, where it fits.
    """

    composites: list[Composite]
    worth: Worth = (True, 0, 0)
    schedule: Schedule | None = None


def choose(
    session: Session, composites: Sequence[Composite], effort: Effort, leaf: Effort, *, moves: int, clock: Deadline
) -> Chosen:
    """Choose an option of each composite; the session learns what is found.

    Parameters
    ----------
    effort : Effort
        Who answers the problem that an option of each makes.
    leaf : Effort
        Who makes more options, for the memory that the best choice leaves to each group.
    moves : int
        Changes that are tried, for each composite.
    """
    if session.asks_peak:
        return Chosen(list(composites), _least_peak(session, composites, effort, moves=moves, clock=clock))
    return _least_cost(session, list(composites), effort, leaf, moves=moves, clock=clock)


def _take(session: Session, choice: Choice) -> Worth:
    seen = session.see(choice.schedule, "groups with options").certificate
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
    """A composite with one more option; those that it has come first in `more`."""
    if option < len(given.options):
        return given
    return Composite(given.name, given.forward, given.backward, [*given.options, more.options[option]])


def _least_peak(
    session: Session, composites: Sequence[Composite], effort: Effort, *, moves: int, clock: Deadline
) -> Worth:
    """Ask for less and less."""
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
