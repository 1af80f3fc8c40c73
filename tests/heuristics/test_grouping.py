"""Grouping: what the grouped problem says of a schedule is true of the expanded one."""

from __future__ import annotations

import random

import numpy as np
import pytest
from helpers import ONE, judged

from remat.backends.base import SolveOptions
from remat.graphs import ComputeGraph, GraphBuilder
from remat.graphs.families import unit_chain
from remat.graphs.layered import layered
from remat.graphs.zoo import ZOO
from remat.heuristics.annealing import Annealing, AnnealingOptions
from remat.heuristics.base import HeuristicRun
from remat.heuristics.grouping import MOST_MEMBERS, Grouped, begin, group
from remat.problem import Problem
from remat.schedule import Schedule, simulate
from remat.schedule.certificate import Verdict
from remat.schedule.validate import validate
from remat.testing.graphs import random_budget, random_graph

SEEDS = range(200)


def some_sequence(problem: Problem, rng: random.Random, more: int) -> list[int]:
    """A random valid sequence with up to `more` recomputations for each op; with the fixed order, in that order."""
    arrays = problem.graph.arrays
    before = [set(row) for row in arrays.op_predecessors.lists()]
    limits, runs = problem.compute_limits, [0] * len(before)
    left, sequence = arrays.order.tolist(), []
    while left:
        ready = left[:1] if problem.order == "fixed" else [op for op in left if all(runs[p] for p in before[op])]
        op = rng.choice(ready)
        left.remove(op)
        most = [more + 1 if limit is None else min(limit, more + 1) for limit in limits]
        again = [o for o, n in enumerate(runs) if 0 < n < most[o]]
        for other in rng.sample(again, min(len(again), rng.randint(0, 2))):
            runs[other] += 1
            sequence.append(other)
        runs[op] += 1
        sequence.append(op)
    return sequence


def check(problem: Problem, grouped: Grouped, sequence: list[int]) -> None:
    """Whether the expanded schedule keeps all rules, costs what the grouped one does, and has at most its peak."""
    small = grouped.problem
    claimed = validate(small.graph, Schedule.of_computes(small.graph, sequence), small.rules)
    assert claimed.verdict is not Verdict.INVALID
    whole = Schedule.of_computes(problem.graph, grouped.expand(sequence))
    measured = judged(problem, whole)
    assert measured.verdict is not Verdict.INVALID, measured.first
    assert measured.cost == claimed.cost
    assert measured.peak is not None
    assert claimed.peak is not None
    assert measured.peak <= claimed.peak


@pytest.mark.parametrize("order", ["fixed", "free"])
def test_claims_hold_on_random_graphs(order: str) -> None:
    fused = duplicated = 0
    for seed in SEEDS:
        rng, graph = random.Random(seed), random_graph(seed, 12, buffers=seed % 3 == 0)
        limits = [None, None, 2, {"op1": 1, "op2": 2}][seed % 4]
        keep = ["t1"] if seed % 5 == 0 and "t1" in graph.tensor_index else []
        budget = None if seed % 2 else random_budget(graph, seed)
        problem = Problem(graph, budget, order, limits, keep)
        grouped = group(problem, extra=[0.0, 0.5, 4.0][seed % 3])
        fused += len(graph.ops) - len(grouped.members)
        duplicated += sum(map(len, grouped.members)) - len(graph.ops)
        assert grouped.problem.budget_bytes == problem.budget_bytes
        check(problem, grouped, some_sequence(grouped.problem, rng, seed % 4))
        back = grouped.contract(some_sequence(problem, rng, 2))
        given = Schedule.of_computes(grouped.problem.graph, back)
        assert validate(grouped.problem.graph, given, grouped.problem.rules).verdict is not Verdict.INVALID
    assert fused > len(SEEDS) / 4
    assert duplicated > 10


@pytest.mark.parametrize("name", ["resnet50", "mobilenet"])
@pytest.mark.parametrize("order", ["fixed", "free"])
def test_claims_hold_on_zoo_graphs(name: str, order: str) -> None:
    problem = Problem(ZOO[name](), "70%", order)
    grouped = group(problem, extra=0.2)
    assert len(grouped.members) < len(problem.graph.ops)
    check(problem, grouped, some_sequence(grouped.problem, random.Random(3), 2))


def test_nothing_else_fuses() -> None:
    for seed in range(40):
        grouped = group(Problem(random_graph(seed, 12), None, "free"))
        assert len(group(grouped.problem).members) == len(grouped.members)


def pair(**options: object) -> ComputeGraph:
    builder = GraphBuilder("pair")
    builder.op("a", size=4, cost=1, **options)  # type: ignore[arg-type]
    builder.op("b", inputs=["a"], size=6, cost=2)
    return builder.build()


def test_what_is_left_alone() -> None:
    assert len(group(Problem(pair(), 10)).members) == 1
    assert len(group(Problem(pair(), 9)).members) == 2
    assert len(group(Problem(pair(), 10, keep=["a"])).members) == 2
    assert len(group(Problem(pair(recomputable=False), 10)).members) == 2
    assert len(group(Problem(pair(), 10, max_computes={"a": 2})).members) == 2
    assert len(group(Problem(pair(), 10, max_computes=2)).members) == 1


def test_the_fixed_order_is_not_changed_by_fusing() -> None:
    builder = GraphBuilder("g")
    builder.op("a", size=4, cost=1)
    builder.op("x", size=1, cost=1)
    builder.op("b", inputs=["a", "x"], size=1, cost=1)
    graph = builder.build()
    assert group(Problem(graph)).expand([0]).tolist() == [0, 1, 2]
    assert group(Problem(graph.with_outputs(["x", "b"]), order="fixed")).members[0].tolist() == [0]
    assert group(Problem(graph.with_outputs(["x", "b"]), order="free")).members[-1].tolist() == [0, 2]


def test_groups_are_bounded() -> None:
    builder = GraphBuilder("long")
    last = builder.op("op0", size=1)
    for k in range(1, 1000):
        last = builder.op(f"op{k}", inputs=[last], size=1)
    grouped = group(Problem(builder.build()))
    assert max(map(len, grouped.members)) == MOST_MEMBERS
    assert len(grouped.members) == -(-1000 // MOST_MEMBERS)


def test_chains_with_a_backward_pass_and_layered_graphs() -> None:
    for graph in (unit_chain(50), layered(120, 0.1, 1)):
        for order in ("fixed", "free"):
            problem = Problem(graph, None, order)
            for extra in (0.0, 1.0):
                grouped = group(problem, extra=extra)
                check(problem, grouped, some_sequence(grouped.problem, random.Random(1), 1))
    assert np.array_equal(group(Problem(unit_chain(3))).expand([]), [])


def test_annealing_begins_on_groups() -> None:
    problem = Problem(ZOO["unet"](), "60%")
    found: list[Schedule] = []

    def hear(schedule: Schedule) -> bool:
        found.append(schedule)
        return False

    heuristic = Annealing(AnnealingOptions(moves=20_000, groups=0.4))
    schedule = heuristic.run(problem, HeuristicRun(SolveOptions(seed=1, threads=1), on_schedule=hear))
    assert schedule is not None
    assert found
    for one in (schedule, *found):
        assert judged(problem, one).accepted
    begun = begin(
        Annealing(AnnealingOptions(moves=20_000)), problem, HeuristicRun(SolveOptions(seed=1, threads=1)), 0.4
    )
    assert begun.start is not None
    cost = simulate(problem.graph, begun.start).cost
    assert simulate(problem.graph, schedule).cost <= cost
    told = begin(
        Annealing(AnnealingOptions(moves=20_000)),
        problem,
        HeuristicRun(SolveOptions(seed=1, threads=1), on_schedule=lambda _: True),
        0.4,
    )
    assert told.deadline.expired
    assert (
        begin(Annealing(AnnealingOptions(moves=1)), problem, HeuristicRun(ONE, start=schedule), 0.4).start is schedule
    )


def test_no_search_on_groups_where_hardly_anything_fuses() -> None:
    run = HeuristicRun(ONE)
    assert begin(Annealing(), Problem(layered(100, 0.3, 1), "80%"), run, 0.4) is run
