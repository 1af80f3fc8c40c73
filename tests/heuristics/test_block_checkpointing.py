"""Block checkpointing: measured plans against the validator, frontier, sources of blocks."""

import random
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from generators import training_graph
from helpers import RUN
from refusals import refused

from remat.graphs.families import unit_chain
from remat.graphs.zoo import ZOO
from remat.graphs.zoo.transformers import gpt
from remat.heuristics import HeuristicRun
from remat.heuristics.blocks import BlockCheckpointing, BlockOptions
from remat.heuristics.blocks.heuristic import Measure
from remat.heuristics.blocks.plans import FAMILIES, Plan
from remat.heuristics.forward_blocks import all_cuts
from remat.problem import Problem
from remat.problem.training_step import TrainingStep
from remat.schedule import Schedule, Verdict, validate

WIDE = 10_000


def all_plans(num_blocks):
    return [plan for family in FAMILIES.values() for plan in family(num_blocks)]


@pytest.mark.parametrize("seed", range(6))
def test_measured_plans_equal_certificates(seed):
    """Peak and cost of each plan, for random blocks; limits of computes hold."""
    graph = training_graph(seed, 14, full=True)
    recomputed = 0
    for limit in (None, 2):
        problem = Problem(graph, WIDE, max_computes=limit, keep=["f3"])
        step = TrainingStep.of(problem)
        measure = Measure(step)
        for count in (3, 6):
            inside = random.Random(count).sample(range(1, step.num_forward), count)
            ends = np.array([*sorted(inside), step.num_forward])
            for plan in all_plans(len(ends)):
                cost, peak, sequence = measure.of(plan, ends)
                found = validate(graph, Schedule.of_computes(graph, sequence), problem.rules)
                assert (found.verdict, found.cost, found.peak) == (Verdict.VALID, cost, peak), plan
                assert found.redundant == 0
                recomputed += found.recomputations
    assert recomputed > 100


def test_dropping_more_segments_trades_time_for_memory():
    measure, ends = Measure(TrainingStep.of(Problem(unit_chain(12)))), np.arange(1, 13)
    few, many, nested = (measure.of(plan, ends) for plan in (Plan(6, 6), Plan(6, 12), Plan(6, 12, inner=2)))
    assert few[0] < many[0] < nested[0]
    assert many[1] > nested[1]
    assert np.bincount(nested[2]).max() == 3


def test_every_layer_of_a_transformer_is_recomputed():
    """Each forward op of a layer runs twice, except those whose outputs are stored."""
    graph = gpt(layers=4)
    option = BlockOptions(blocks="modules", which="every", k=1)
    schedule = BlockCheckpointing(option).run(Problem(graph, "70%"), RUN)
    times = {name: schedule.computes().count(name) for name in graph.op_names}
    assert times["layers.0.attn.softmax"] == times["layers.3.mlp.up"] == 2
    assert times["layers.1.residual2"] == times["layers.1.mlp.down"] == 1


def test_frontier_is_pareto_optimal_and_answers_every_budget():
    graph = gpt(layers=4)
    heuristic = BlockCheckpointing()
    frontier = heuristic.frontier(Problem(graph))
    assert len(frontier) > 10
    assert all(a.peak < b.peak and a.cost > b.cost for a, b in pairwise(frontier))
    for budget in (frontier[0].peak, frontier[5].peak + 1, frontier[-1].peak):
        reported = []
        schedule = heuristic.run(Problem(graph, budget), HeuristicRun(on_schedule=reported.append))
        found = validate(graph, schedule, Problem(graph, budget).rules)
        assert reported == [schedule]
        assert found.accepted
        assert found.cost == min(one.cost for one in frontier if one.peak <= budget)
    below = heuristic.run(Problem(graph, frontier[0].peak - 1), RUN)
    assert validate(graph, below).peak == frontier[0].peak


def test_drops_improve_plans():
    """Above the least budget, drops start from a plan over the budget; at it, from the plan within it."""
    graph = gpt(layers=4)
    least = BlockCheckpointing().frontier(Problem(graph))[0].peak
    for budget in (least, "80%"):
        problem = Problem(graph, budget)
        by_hand = validate(graph, BlockCheckpointing().run(problem, RUN), problem.rules)
        polished = validate(graph, BlockCheckpointing(BlockOptions(drops=True)).run(problem, RUN), problem.rules)
        assert by_hand.accepted and polished.accepted
        assert polished.cost < by_hand.cost


def test_sources_of_blocks():
    """Modules, names and valleys of traffic all find the two layers."""
    step = TrainingStep.of(Problem(gpt(layers=2)))
    names = [step.problem.graph.op_names[op] for op in step.problem.graph.arrays.order]
    for source in ("modules", "names"):
        starts = next(starts for starts in all_cuts(step, source) if len(starts) == 4)
        ends = [names[start - 1] for start in starts[1:]]
        assert ends == ["embedding.dropout", "layers.0.residual2", "layers.1.residual2"]
    residuals = {k + 1 for k, name in enumerate(names[: step.num_forward]) if "residual" in name}
    for source in ("valleys", "articulation", "ops"):
        assert residuals <= {start for starts in all_cuts(step, source) for start in starts}


def test_number_of_plans_for_many_blocks_is_limited():
    assert len(all_plans(5_000)) < 1_000
    plan = Plan(4, 10, offset=1)
    assert plan.segments(12) == [(0, 1), (1, 5), (5, 9), (9, 10)]


@pytest.mark.parametrize("graph", [unit_chain(9), replace(ZOO["unet"](), meta={"modules": "none"})])
def test_blocks_by_modules_require_paths(graph):
    with refused("problem.no-paths"):
        BlockCheckpointing(BlockOptions("modules")).run(Problem(graph, "80%"), RUN)
