"""Choice of an option for each group, and further options for the memory that the choice leaves to each group."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from remat.errors import ProblemError
from remat.formulations.composites import Composite, CompositeProblem, Option
from remat.hierarchy.effort import Effort, answered
from remat.hierarchy.groups import Group
from remat.hierarchy.quotient import Choice, Quotient, choice_of
from remat.hierarchy.subproblem import SubProblem, translated
from remat.problem import Objective, Problem
from remat.runtime.deadline import Deadline
from remat.schedule import Schedule
from remat.schedule.simulate import simulate
from remat.solving.session import Session

#: Shares of the free memory between the parts of a group by which its limit on saved bytes is raised.
SHARES = (1.0, 0.5, 0.0)
#: Shares of an option's saved bytes by which the limit is lowered, for other groups to use.
LESS = (0.25, 0.5)


@dataclass(frozen=True)
class Headroom:
    """Free bytes for a group while it runs and between its parts; negative if over the budget."""

    running: int
    between: int


def headrooms(quotient: Quotient, choice: Choice) -> list[Headroom]:
    """Return the memory that a choice leaves to each composite.

    Examples
    --------
    >>> from remat.graphs.families import unit_chain
    >>> from remat.hierarchy.quotient import choice_of
    >>> middle = Composite("middle", [1, 2], [6, 7], [Option([1, 2], [6, 7]), Option([1, 2], [1, 6, 7])])
    >>> problem = Problem(unit_chain(4), 8)
    >>> best = choice_of(problem, [middle], Deadline.after(10), effort=Effort(("eviction",)))
    >>> headrooms(Quotient(CompositeProblem(problem, (middle,))), best)
    [Headroom(running=2, between=2)]
    """
    whole, small = quotient.whole, quotient.problem(choice.options)
    budget = whole.problem.budget_bytes
    assert budget is not None
    run = simulate(small.graph, choice.small)
    left = budget - run.memory
    composite = np.array([node.composite for node in whole.nodes], dtype=np.int64)
    back = np.array([node.is_backward for node in whole.nodes], dtype=np.bool_)
    found = []
    for number in range(len(whole.composites)):
        mine = np.flatnonzero(run.is_compute & (composite[run.ops] == number))
        ahead = mine[~back[run.ops[mine]]]
        between = left[int(ahead[0]) : int(mine[-1]) + 1]
        found.append(Headroom(int(left[mine].min()), int(between.min())))
    return found


def refined(
    problem: Problem, composites: Sequence[Composite], choice: Choice, effort: Effort, deadline: Deadline
) -> list[Composite]:
    """Return the composites with further options appended, for the memory left to each.

    Each group is solved for new budgets: its peak plus all free memory. Between its parts it gets all, part or none of
    the free memory there, or less than it saves now, which frees memory for others.

    Parameters
    ----------
    problem : Problem
        With a budget.
    choice : Choice
        A choice of options of these composites.
    effort : Effort
        Methods of the groups; each group gets an equal share of the time.
    """
    left = headrooms(Quotient(CompositeProblem(problem, tuple(composites))), choice)
    made = []
    for number, (each, room) in enumerate(zip(composites, left, strict=True)):
        part = deadline.earlier(deadline.remaining / (len(composites) - number))
        more = _options(problem, each, each.options[choice.options[number]], room, effort=effort, deadline=part)
        made.append(Composite(each.name, each.forward, each.backward, [*each.options, *more]))
    return made


def _options(
    problem: Problem, composite: Composite, option: Option, room: Headroom, *, effort: Effort, deadline: Deadline
) -> list[Option]:
    """Return further options of a composite near one of its options."""
    try:
        part = SubProblem.of(problem, Group(composite.name, composite.forward, composite.backward))
        own = part.schedule(translated(option, part.place))
    except ProblemError:
        return []
    run = simulate(part.problem.graph, own)
    computes = np.flatnonzero(run.is_compute)
    peak = int(run.memory.max())
    budget = max(peak + room.running, part.problem.structural_peak)
    if part.outside is None:
        asked = [part.asking(budget)]
    else:
        held = int(run.memory[computes[run.ops[computes] == part.outside][0]])
        limits = {held + int(share * room.between) for share in SHARES}
        limits |= {held - int(share * (held - part.held_least)) for share in LESS}
        asked = [
            part.asking(max(budget, limit), limit) for limit in sorted(limits, reverse=True) if limit >= part.held_least
        ]
    known = {_key(each) for each in composite.options}
    found = []
    for question in asked:
        for method in effort.methods:
            schedule = None if deadline.expired else answered(question, method, effort, deadline)
            if schedule is not None:
                one = translated(part.cut(schedule), part.ops)
                if _key(one) not in known:
                    known.add(_key(one))
                    found.append(one)
    return found


def _key(option: Option) -> tuple[bytes, bytes]:
    return option.forward.tobytes(), b"" if option.backward is None else option.backward.tobytes()


#: First and last step in which :func:`_least_peak` lowers the budget, as shares of the gap above the structural bound.
FIRST_STEP, LAST_STEP = 0.25, 0.02
#: Most rounds of further options, and the share of the time left that each round gets.
ROUNDS, REFINE_SHARE = 3, 0.5

#: Rank of a choice, smaller is better: over the budget, objective, the other criterion.
Worth = tuple[bool, int, int]


@dataclass(frozen=True, eq=False)
class Chosen:
    """Best choice of an option for each group of one partition."""

    composites: list[Composite]
    """Groups with their first options and that of the best choice; few options keep models small."""
    worth: Worth = (True, 0, 0)
    """Rank of the best choice."""
    schedule: Schedule | None = None
    """Schedule of the best choice, if it is within the budget."""


def choose(
    session: Session, composites: Sequence[Composite], effort: Effort, leaf: Effort, *, moves: int, clock: Deadline
) -> Chosen:
    """Choose an option of each composite and add the schedules to the session.

    Parameters
    ----------
    effort : Effort
        Methods for the problem that consists of one option of each group.
    leaf : Effort
        Methods for further options within the memory that the best choice leaves to each group.
    moves : int
        Changes to try per composite.
    """
    if session.asks_peak:
        return Chosen(list(composites), _least_peak(session, composites, effort, moves=moves, clock=clock))
    return _least_cost(session, list(composites), effort, leaf, moves=moves, clock=clock)


def _take(session: Session, choice: Choice) -> Worth:
    seen = session.add(choice.schedule, "groups with options").certificate
    return not choice.fits, *session.problem.objective.rank(seen)


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
