"""Further options of groups for the memory that the best choice of options leaves to each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from remat.errors import ProblemError
from remat.formulations.composites import Composite, CompositeProblem, Option
from remat.hierarchy.effort import Effort, answered
from remat.hierarchy.groups import Group
from remat.hierarchy.quotient import Choice, Quotient
from remat.hierarchy.subproblem import SubProblem, translated
from remat.problem import Problem
from remat.runtime.deadline import Deadline
from remat.schedule.simulate import simulate

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

    Each group is solved for new budgets: its peak plus all free memory, and between its parts all, part or none of the
    free memory there, or less than it saves now, which frees memory for others.

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
