"""Options of groups: certified schedules for several budgets, none dominated or repeated."""

from typing import ClassVar

import numpy as np
from helpers import judged

from remat import Problem
from remat.formulations.composites import Option
from remat.graphs.families import unit_chain
from remat.graphs.zoo import gpt
from remat.heuristics.base import HeuristicRun
from remat.heuristics.eviction import Eviction
from remat.hierarchy.effort import Effort
from remat.hierarchy.group_options import Budgets, Measured, farthest_first, options_of
from remat.hierarchy.groups import Group
from remat.hierarchy.subproblem import SubProblem
from remat.problem.training_step import TrainingStep
from remat.runtime.arrays import Int
from remat.runtime.deadline import Deadline
from remat.schedule import Certificate, Schedule
from remat.schedule.validate import validate


def test_options_have_their_certified_cost_and_memory() -> None:
    whole = Problem(unit_chain(8))
    part = SubProblem.of(whole, Group("g", np.arange(1, 7), np.arange(10, 16)))
    found = options_of(part, Budgets(), Effort(("eviction", "checkpoint-last")), Deadline.after(60))
    assert sum(one.option.backward is None for one in found) == 1  # fast-forward
    keys = {(one.cost, one.forward_peak, one.backward_peak, one.saved, one.needs) for one in found}
    assert len(keys) == len(found)
    assert {one.saved for one in found} >= {0, 1, 2, 5}
    for one in found:
        assert not any(other is not one and other.dominates(one) for other in found)
        if one.option.backward is None:
            continue
        computes = part.schedule(one.option).targets

        def certificate(problem: Problem, computes: Int = computes) -> Certificate:
            return validate(problem.graph, Schedule.of_computes(problem.graph, computes), problem.rules)

        held = one.saved + part.held_least
        assert certificate(part.problem).cost == one.cost
        assert certificate(part.asking(10**6, held)).peak == 10**6  # `outside`; its workspace is the remaining budget
        if one.saved:
            assert certificate(part.asking(10**6, held - 1)).peak > 10**6


def test_inapplicable_methods_give_no_option() -> None:
    whole = Problem(unit_chain(8))
    part = SubProblem.of(whole, Group("g", np.arange(1, 7)))  # checkpointing needs a backward part
    found = options_of(part, Budgets(), Effort(("chen-sqrt",)), Deadline.after(60))
    assert [one.option.forward.tolist() for one in found] == [[0, 1, 2, 3, 4, 5]]


class Recording(Eviction):
    """Eviction that records its problems and starts."""

    name = "recording"
    calls: ClassVar[list[tuple[Problem, Schedule | None]]] = []

    def run(self, problem: Problem, run: HeuristicRun) -> Schedule | None:
        self.calls.append((problem, run.start))
        return super().run(problem, run)


def test_each_budget_starts_from_the_best_schedule_for_lower_budgets() -> None:
    """Starts keep the budget and the limit on held tensors."""
    whole = Problem(gpt(layers=1, width=16, heads=2, sequence=8, vocabulary=30), "50%")
    ops = whole.graph.arrays.order
    step = TrainingStep.of(whole)
    part = SubProblem.of(whole, Group("g", ops[1 : step.num_forward], ops[step.first_backward : -1]))
    Recording.calls.clear()
    options_of(part, Budgets(), Effort((Recording,)), Deadline.after(60))
    starts = [(problem, start) for problem, start in Recording.calls if start is not None]
    assert len(starts) > 3
    for problem, start in starts:
        assert start is not None and judged(problem, start).accepted


def test_farthest_first_selects_distinct_options() -> None:
    def option(cost: int, peak: int) -> Measured:
        return Measured(Option([0], [1]), cost, peak, peak, 0, frozenset())

    some = [option(cost, 20 - 2 * cost) for cost in range(10)]
    fast = Measured(Option([0]), 0, 0, 0, 0, frozenset())
    for count in range(1, 13):
        taken = farthest_first([*some, fast], count)
        assert len(set(map(id, taken))) == len(taken) == min(count, 10) + 1
        assert taken[0] is some[0] and fast in taken
    assert [one.peak for one in farthest_first(some, 3)] == [20, 12, 2]
