"""Division of a budget: the model's answer is that of all choices."""

from itertools import product

import numpy as np
import pytest

from remat import Problem
from remat.graphs.families import unit_chain
from remat.hierarchy.division import Part, _Places, divide, least_peak
from remat.hierarchy.effort import Effort
from remat.hierarchy.group_options import Budgets, options_of
from remat.hierarchy.groups import Group
from remat.hierarchy.subproblem import SubProblem, translated
from remat.runtime.deadline import Deadline


@pytest.mark.parametrize(("length", "size", "tied"), [(10, 3, False), (10, 3, True), (9, 4, False)])
def test_cheapest_choice_is_that_of_all_choices(length: int, size: int, tied: bool) -> None:
    """Cost, bound and least peak, for every budget; parts with one tie get the same option.

    Without time, the options of one number that fit are found.
    """
    graph = unit_chain(length)
    parts = []
    for begin in range(0, length - size + 1, size):
        group = Group(str(begin), np.arange(begin, begin + size), 2 * length - np.arange(begin, begin + size)[::-1])
        part = SubProblem.of(Problem(graph), group)
        found = options_of(part, Budgets(3, 3), Effort(("eviction",)), Deadline.after(20))
        options = [translated(each.option, part.ops) for each in found if each.option.backward is not None]
        parts.append(Part(group, options[:5], 0 if tied else begin))
    places, whole = _Places(Problem(graph), parts), Problem(graph)
    choices = [
        choice for choice in product(*(range(len(part.options)) for part in parts)) if not tied or len({*choice}) == 1
    ]
    seen = [whole.validate(places.schedule(choice)) for choice in choices]
    least = min(each.peak for each in seen)
    found_least = least_peak(whole, parts, Deadline.after(20))
    assert found_least is not None and found_least.certificate.peak == least
    assert divide(Problem(graph, least - 1), parts, Deadline.after(20)) is None
    for budget in range(least, whole.reference_peak + 1):
        best = min(each.cost for each in seen if each.peak <= budget)
        found = divide(Problem(graph, budget), parts, Deadline.after(20))
        assert found is not None and (found.certificate.cost, found.bound) == (best, best)
        alike = [
            each.cost for choice, each in zip(choices, seen, strict=True) if len({*choice}) == 1 and each.peak <= budget
        ]
        late = divide(Problem(graph, budget), parts, Deadline.after(0))
        assert (late.certificate.cost if late else None) == min(alike, default=None)
