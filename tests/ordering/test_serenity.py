"""Serenity: cuts, soft budgets, limits."""

import random

import pytest
from oracles import counted_least_peak

from remat import Problem
from remat.errors import ProblemError
from remat.graphs import ComputeGraph, GraphBuilder
from remat.ordering import dynamic_programme
from remat.ordering.dynamic_programme import Ending, Programme
from remat.ordering.instance import OrderInstance
from remat.ordering.serenity import Part, Serenity, SerenityOptions, cut_positions, soft_budgets
from remat.runtime.deadline import Deadline
from remat.testing.graphs import random_graph


def combs(teeth: int, branches: int) -> ComputeGraph:
    """Return combs of branches with random sizes, in sequence."""
    b, rng = GraphBuilder("combs"), random.Random(branches)
    for k in range(teeth):
        before = [f"top {k - 1}"] if k else []
        b.op(f"bottom {k}", inputs=before, size=2)
        for branch in range(branches):
            for step in range(5):
                reads = f"{k} {branch} {step - 1}" if step else f"bottom {k}"
                b.op(f"{k} {branch} {step}", inputs=[reads], size=rng.randint(1, 99))
        b.op(f"top {k}", inputs=[f"{k} {branch} 4" for branch in range(branches)], size=1)
    return b.build()


def test_cuts_match_their_definition() -> None:
    """A cut after k ops: the first k ops precede each of the others."""
    for graph in [*(random_graph(seed, 11) for seed in range(40)), combs(3, 2)]:
        instance = OrderInstance.of(Problem(graph))
        before: list[set[int]] = []
        for row in instance.predecessors.lists():
            before.append(set(row).union(*(before[op] for op in row)))
        num = instance.num_ops
        expected = [k for k in range(1, num) if all(set(range(k)) <= before[op] for op in range(k, num))]
        assert cut_positions(instance) == expected


def test_refuted_budget_gives_the_least_peak_above_it() -> None:
    """Bisection steps from one attainable peak to the next, and ends when no budget is left between."""
    graph = random_graph(23, 16)
    instance, least = OrderInstance.of(Problem(graph)), counted_least_peak(graph)
    whole = Programme(instance, 2**30)
    for budget in range(instance.structural_bound, least):
        run = whole.run(Deadline(), budget=budget)
        assert run.ending is Ending.NO_SOLUTION
        assert budget < run.bound <= least
    assert whole.run(Deadline(), budget=least).ending is Ending.SOLUTION

    class Slow(Programme):
        runs = 0

        def run(self, deadline, *, budget, floor=0, seconds=None):
            self.runs += 1
            run = super().run(deadline, budget=budget, floor=floor)
            return dynamic_programme.Run(Ending.TIMEOUT, None, 0, 1) if budget >= least else run

    part = Part.of(instance, 2**30)
    part.programme = Slow(instance, 2**30)
    soft_budgets(part, Deadline(), hard=dynamic_programme.ENDLESS, floor=0, seconds=1.0)
    assert part.bound == part.failed == least < part.peak
    assert part.programme.runs < 30


def test_limits_are_reported_and_options_checked() -> None:
    instance = OrderInstance.of(Problem(combs(1, 12)))
    found = Serenity(SerenityOptions(memory_limit=2**20)).search(instance, deadline=Deadline.after(60))
    assert "do not fit into 1,048,576 bytes" in " ".join(found.notes)
    assert found.bound < found.peak == instance.peak_of(found.order)
    short = SerenityOptions(step_seconds=1e-6, lengthen=False)
    found = Serenity(short).search(instance, deadline=Deadline.after(60))
    assert "no budget left between" in " ".join(found.notes)
    for wrong, message in (
        ({"divide": 3}, "divide must be true or false, not 3"),
        ({"step_seconds": 0}, "step_seconds must be a number above 0, not 0"),
        ({"memory_limit": 5}, "memory_limit must be a whole number from 1,048,576"),
    ):
        with pytest.raises(ProblemError, match=message):
            SerenityOptions(**wrong)
