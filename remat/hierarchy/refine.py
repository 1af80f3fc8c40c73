"""More options of groups, for the memory that the best choice of options leaves to each of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from remat.deadline import Deadline
from remat.errors import ProblemError
from remat.formulations.hierarchical import Composite, CompositeProblem, Option
from remat.hierarchy.options import Effort, answered
from remat.hierarchy.quotient import Choice, Quotient
from remat.hierarchy.subproblem import SubProblem, translated
from remat.hierarchy.tree import Group
from remat.problem import Problem
from remat.schedule.simulate import simulate

#: Shares of the memory left over between the parts of a group that it is asked to save more, or less.
SHARES = (1.0, 0.5, 0.0)
#: Shares of what an option saves that others might have instead.
LESS = (0.25, 0.5)


@dataclass(frozen=True)
class Room:
    """Bytes that a group may take more than it does, as it runs and between its parts; negative: less."""

    running: int
    between: int


def rooms(quotient: Quotient, choice: Choice) -> list[Room]:
    """What the rest of the schedule of a choice leaves to each composite.

    Examples
    --------
    >>> from remat.graphs.families import unit_chain
    >>> from remat.hierarchy.quotient import choice_of
    >>> middle = Composite("middle", [1, 2], [6, 7], [Option([1, 2], [6, 7]), Option([1, 2], [1, 6, 7])])
    >>> problem = Problem(unit_chain(4), 8)
    >>> best = choice_of(problem, [middle], Deadline.after(10), effort=Effort(("eviction",)))
    >>> rooms(Quotient(CompositeProblem(problem, (middle,))), best)
    [Room(running=2, between=2)]
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
        found.append(Room(int(left[mine].min()), int(between.min())))
    return found


def refined(
    problem: Problem, composites: Sequence[Composite], choice: Choice, effort: Effort, deadline: Deadline
) -> list[Composite]:
    """The composites with more options, about the memory that is left to each; those that were there come first.

    Each group is solved for some budgets anew: with its peak and all that is free besides, and with all, a part, or
    nothing of what is free between its parts, or less than what it saves, which leaves more to others.

    Parameters
    ----------
    problem : Problem
        With a budget.
    choice : Choice
        Of these composites.
    effort : Effort
        Who solves the groups; each gets its share of the time.
    """
    left = rooms(Quotient(CompositeProblem(problem, tuple(composites))), choice)
    made = []
    for number, (each, room) in enumerate(zip(composites, left, strict=True)):
        part = deadline.earlier(deadline.remaining / (len(composites) - number))
        more = _options(problem, each, each.options[choice.options[number]], room, effort=effort, deadline=part)
        made.append(Composite(each.name, each.forward, each.backward, [*each.options, *more]))
    return made


def _options(
    problem: Problem, composite: Composite, option: Option, room: Room, *, effort: Effort, deadline: Deadline
) -> list[Option]:
    """More options of a composite near one of them."""
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
