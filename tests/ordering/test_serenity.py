"""Serenity's dynamic programme: right with and without its techniques, and honest when it is broken off."""

import itertools
import random
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from oracles import counted_least_peak
from small_graphs import LIBERIS_LANE

from remat import Problem, SolveOptions, solve
from remat.deadline import Deadline
from remat.errors import ProblemError
from remat.graphs import ComputeGraph, GraphBuilder, layered
from remat.ordering import programme
from remat.ordering.best_first import Aim, explore
from remat.ordering.instance import OrderInstance
from remat.ordering.programme import Ending, Programme
from remat.ordering.serenity import Serenity, SerenityOptions
from remat.ordering.serenity.budgets import Part, soft_budgets
from remat.ordering.serenity.cuts import cut_positions
from remat.testing.graphs import random_graph

SWITCHES = [SerenityOptions(divide=d, soft_budgets=s) for d, s in itertools.product((False, True), repeat=2)]


def graphs(number: int, most_ops: int = 11) -> Iterator[ComputeGraph]:
    """Random graphs: every third one with accumulation buffers; workspaces, kept tensors, several outputs, inputs."""
    for seed in range(number):
        yield random_graph(seed, most_ops, buffers=seed % 3 == 1)


def joined(*parts: ComputeGraph) -> ComputeGraph:
    """One graph after the other, with an op between them that reads all that the first leaves."""
    b = GraphBuilder("joined")
    between: list[str] = []
    for number, part in enumerate(parts):
        for tensor in part.tensors:
            if tensor.name not in part.inputs:
                b.tensor(f"{number}.{tensor.name}", tensor.size)
        read = {name for op in part.ops for name in op.inputs}
        for op in part.ops:
            reads = [f"{number}.{name}" for name in op.inputs if name not in part.inputs] or between
            writes = [f"{number}.{name}" for name in op.outputs]
            b.op(f"{number}.{op.name}", inputs=reads, outputs=writes, workspace=op.workspace)
        left = [f"{number}.{t.name}" for t in part.tensors if t.name not in read and t.name not in part.inputs]
        b.op(f"join {number}", inputs=left, size=3)
        between = [f"join {number}"]
        b.output(*(f"{number}.{name}" for name in part.outputs if name not in part.inputs))
    return b.build()


def combs(teeth: int, branches: int) -> ComputeGraph:
    """Combs of branches with random sizes, one after the other."""
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


class Countdown(Deadline):
    """Over after so many looks at the clock."""

    @classmethod
    def of(cls, looks: int) -> "Countdown":
        self = cls()
        object.__setattr__(self, "looks", [looks])
        return self

    @property
    def expired(self) -> bool:
        self.looks[0] -= 1
        return self.looks[0] < 0


def test_right_with_all_techniques_and_without() -> None:
    """Against another search over sets of ops, that shares nothing with it."""
    for graph in graphs(36, 10):
        instance = OrderInstance.of(Problem(graph))
        least = counted_least_peak(graph)
        for options in SWITCHES:
            found = Serenity(options).search(instance)
            assert (found.peak, found.bound) == (least, least), (graph.name, options)
            assert instance.peak_of(found.order) == least
            refused = Serenity(options).search(instance, upper=least)
            assert (refused.order, refused.bound) == (None, least)
            assert Serenity(options).search(instance, upper=least + 1).peak == least


@pytest.mark.slow
def test_500_random_graphs() -> None:
    """Exhaustive search, best-first search and CP-SAT say the same."""
    for number, graph in enumerate(graphs(500, 10)):
        problem = Problem(graph, order="free", max_computes=1, objective="least-peak")
        instance, least = OrderInstance.of(problem), counted_least_peak(graph)
        for options in SWITCHES:
            found = Serenity(options).search(instance)
            assert (found.peak, found.bound) == (least, least), (graph.name, options)
        explored = explore(problem, Aim.PEAK, limit=least + 1)
        assert explored is not None
        assert explored.bound == least
        result = solve(problem, "retention-intervals", stop=60, options=SolveOptions(threads=1, seed=number))
        assert (result.peak, result.proved) == (least, True), graph.name


def test_parts_between_cuts() -> None:
    """Kept tensors, several outputs and buffers cross the cuts; the parts are as good as the whole."""
    cut = 0
    for seed in range(0, 36, 3):
        graph = joined(*(random_graph(seed + k, 7, buffers=k == 1) for k in range(3)))
        instance = OrderInstance.of(Problem(graph, keep=[graph.tensors[0].name]))
        whole = Serenity(SerenityOptions(divide=False)).search(instance)
        assert Serenity().search(instance).peak == whole.peak == whole.bound
        cut += len(cut_positions(instance)) > 1
    assert cut == 12


def test_cuts_are_where_every_order_has_done_the_same() -> None:
    """By their definition: the first ops are done first in every order if all of them come before each of the rest."""
    for graph in [*graphs(40), joined(LIBERIS_LANE, LIBERIS_LANE)]:
        instance = OrderInstance.of(Problem(graph))
        before: list[set[int]] = []
        for row in instance.predecessors.lists():
            before.append(set(row).union(*(before[op] for op in row)))
        num = instance.num_ops
        expected = [k for k in range(1, num) if all(set(range(k)) <= before[op] for op in range(k, num))]
        assert cut_positions(instance) == expected


def test_honest_wherever_it_is_broken_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bound holds, and grows; the order is a valid one."""
    monkeypatch.setattr(programme, "MOST_PIECE", 3)
    for seed in range(2):
        graph = layered(13, seed=seed)
        instance, least = OrderInstance.of(Problem(graph)), counted_least_peak(graph)
        for options in SWITCHES:
            bounds = []
            for looks in (*range(1, 30, 7), *range(40, 400, 60), 10**6):
                found = Serenity(options).search(instance, deadline=Countdown.of(looks))
                assert found.bound <= least <= found.peak == instance.peak_of(found.order)
                bounds.append(found.bound)
            assert bounds == sorted(bounds)
            assert found.proved


def test_a_budget_is_refuted_by_the_least_peak_above_it() -> None:
    """So the bisection steps from one attainable peak to another, and ends when no budget is left between."""
    graph = random_graph(23, 16)
    instance, least = OrderInstance.of(Problem(graph)), counted_least_peak(graph)
    whole = Programme(instance, 2**30)
    for budget in range(instance.structural_bound, least):
        run = whole.run(Deadline(), budget=budget)
        assert run.ending is Ending.NO_SOLUTION
        assert budget < run.bound <= least
    assert whole.run(Deadline(), budget=least).ending is Ending.SOLUTION

    class Slow(Programme):
        def run(self, deadline, *, budget, floor=0, seconds=None):
            run = super().run(deadline, budget=budget, floor=floor)
            return programme.Run(Ending.TIMEOUT, None, 0, 1) if budget >= least else run

    part = Part.of(instance, 2**30)
    part.programme = Slow(instance, 2**30)
    soft_budgets(part, Deadline(), hard=programme.ENDLESS, floor=0, seconds=1.0)
    assert part.bound == part.failed == least < part.peak
    assert len(part.tried) < 30


def test_limits_and_options() -> None:
    """A memory limit that is reached is said; options out of range are refused in one line."""
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


def test_more_than_64_ops() -> None:
    """Sets of ops of several words."""
    instance = OrderInstance.of(Problem(combs(5, 3)))
    assert instance.num_ops == 85
    whole = Serenity(SerenityOptions(divide=False)).search(instance)
    divided = Serenity(SerenityOptions(soft_budgets=False)).search(instance)
    assert whole.peak == divided.peak == whole.bound == divided.bound == instance.peak_of(whole.order)
    assert np.unique(whole.order).tolist() == list(range(85))


@pytest.mark.slow
def test_table_2_by_one_command() -> None:
    """Every combination of techniques proves the published peaks."""
    bench = Path(__file__).parents[2] / "benchmarks" / "bench_orders.py"
    words = "--methods serenity-table --graphs swiftnet-cells-folded,swiftnet-rewritten"
    run = subprocess.run([sys.executable, bench, *words.split()], capture_output=True, text=True, check=True)
    for least in ("200,704", "188,160"):
        assert len(re.findall(rf" {least} +{least} +proved ", run.stdout)) == 4
