"""Bounds never exceed exact optima of their scope, on random graphs of every kind."""

import math
import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from helpers import some_slow
from oracles import counted_least_peak
from small_graphs import KNOWN

from remat.backends.highs import Highs
from remat.bounds import Bound, bounds, cut_bound, joint_bound, stage_bound, structural_bound
from remat.bounds.live_set_bound import LiveSetSearch
from remat.bounds.path_cuts import tightened
from remat.bounds.reduced_costs import cheaper_than
from remat.bounds.selection import best_bound
from remat.bounds.stage_relaxation import StageRelaxation
from remat.bounds.stage_sums import stage_sums
from remat.bounds.sum_branching import SumBranching
from remat.graphs import ComputeGraph, Op
from remat.modeling import Model, lower
from remat.modeling.matrix import to_matrix
from remat.problem import Problem
from remat.problem.scope import Scope
from remat.runtime.deadline import Deadline
from remat.runtime.solve_options import SolveOptions, Status
from remat.testing import least_peak, optimum, random_budget, random_graph

#: Limit of ops for exhaustive search, which is exponential.
MOST_OPS = 7


def graph_of(seed: int) -> ComputeGraph:
    return random_graph(seed, 6, plain=seed % 4 == 0, buffers=seed % 4 in {1, 2})


def problem_of(seed: int, order: str) -> Problem:
    """Return a random problem of a plain graph, or one with buffers, workspaces, limits of computes or kept tensors."""
    rng = random.Random(seed)
    graph = graph_of(seed)
    names = list(graph.op_names)
    limits = rng.choice([None, None, None, 2, 3, {rng.choice(names): 1}, {rng.choice(names): 2}])
    keep = rng.sample(graph.tensor_names, 1) if rng.random() < 0.25 else []
    budget = random_budget(graph, seed)
    if order == "free":  # free orders need less memory
        budget = max(graph.structural_bound.peak, int(0.95 * budget))
    return Problem(graph, budget, order, limits, keep)


def check_against_optimum(seed: int, order: str) -> None:
    problem = problem_of(seed, order)
    if len(problem.graph.ops) > MOST_OPS:
        return
    best = optimum(problem, Scope(problem.order, staged=False))
    found = [joint_bound(problem, threads=1)]
    if order == "fixed":
        found.append(stage_bound(problem, threads=1))
    for bound in found:
        assert not bound.scope.staged
        assert bound.infeasible == (bound.value is None)
        if best is not None:
            assert not bound.infeasible, bound
            assert problem.graph.base_cost <= bound.value <= best.cost, bound
            assert bound.relaxed is None or bound.relaxed <= best.cost
    if order == "fixed":
        assert at_most(*found)
    assert best is None or structural_bound(problem).value <= problem.budget_bytes


def check_random_events(seed: int) -> None:
    """Check the stage relaxation of random events, alone and restricted to solutions below a cost."""
    problem = problem_of(seed, "fixed")
    rng = random.Random(seed)
    count = len(problem.graph.ops)
    best = optimum(problem, Scope(problem.order, staged=False)) if count <= MOST_OPS else None
    if best is None:
        return
    relaxation = StageRelaxation(problem, rng.sample(range(count), rng.randint(1, count)))
    model, call = relaxation.build(), SolveOptions(threads=1)
    extra = (best.cost - problem.graph.base_cost) // relaxation.unit
    linear, whole = Highs().relax(model, call), Highs().solve(model, call)
    assert linear.bound <= whole.bound + 1e-6 <= extra + 2e-6
    found = round(whole.bound)
    for most in (found, found + 2):  # the optimum remains feasible
        assert Highs().solve(cheaper_than(model, linear, most), call).bound == pytest.approx(found)
    assert Highs().solve(cheaper_than(model, linear, found - 1), call).status is Status.INFEASIBLE
    if seed % 5 == 0:
        assert stage_bound(problem, integer=False, threads=1).value <= best.cost
    for known in (best.cost, best.cost + 5 * relaxation.unit):
        assert stage_bound(problem, enough=known, threads=1).value <= best.cost
    for slim in (False, True):
        check_path_cuts(StageRelaxation(problem, relaxation.events, slim, rng.choice(relaxation.events)), call, extra)


def check_path_cuts(relaxation: StageRelaxation, call: SolveOptions, extra: int) -> None:
    """Check that path cuts leave the programme a bound, and the same one below its optimum."""
    cut = tightened(relaxation, relaxation.build(), call)
    least = Highs().solve(cut.full, call).bound
    assert cut.linear.bound <= least + 1e-6 <= extra + 2e-6
    below = cheaper_than(cut.full, cut.linear, round(least), cut.lean)
    assert Highs().solve(below, call).bound <= least + 1e-6
    if cut.lean.num_vars:
        check_sum_branching(relaxation, cut.lean, round(least))


def check_sum_branching(relaxation: StageRelaxation, model: Model, least: int) -> None:
    """Check that branching on sums finds the optimum of a model, and nothing below it."""
    matrix = to_matrix(lower(model, Highs.native).model)
    sums = stage_sums(relaxation, matrix.shape[1])
    for most in (least - 1, least, least + 3):
        branched = SumBranching(matrix, sums, most, SolveOptions(threads=1)).run()
        if most < least:
            assert branched == (math.inf, None)
        else:
            assert branched.bound == pytest.approx(least)
            assert model.objective.value(np.rint(branched.values[: model.num_vars])) == least


@pytest.mark.parametrize(
    "block", [0, *(pytest.param(block, marks=pytest.mark.slow) for block in (1, *range(375, 500)))]
)
def test_stage_relaxation_of_random_events_is_a_bound(block):
    for seed in range(8 * block, 8 * block + 8):
        check_random_events(seed)


def at_most(weak: Bound, strong: Bound) -> bool:
    return strong.infeasible or (not weak.infeasible and weak.value <= strong.value)


@pytest.mark.parametrize("order", ["fixed", "free"])
@pytest.mark.parametrize("block", some_slow(range(93), 1))
def test_bounds_never_exceed_the_optimum(block, order):
    for seed in range(12 * block, 12 * block + 12):
        check_against_optimum(seed, order)


def test_random_problems_include_tight_and_infeasible_bounds():
    tight = dict.fromkeys(["plain", "full", "buffers"], 0)
    infeasible = 0
    for seed in (5, 11, 16, 21, 24):
        problem = problem_of(seed, "fixed")
        if len(problem.graph.ops) > MOST_OPS:
            continue
        bound = stage_bound(problem, threads=1)
        infeasible += bound.infeasible
        if bound.value is not None and bound.value > bound.base_cost:
            kind = ("plain", "buffers", "buffers", "full")[seed % 4]
            tight[kind] += optimum(problem, Scope(problem.order, staged=False)).cost == bound.value
    assert infeasible
    assert all(tight.values())


@pytest.mark.parametrize("block", some_slow(range(8), 3))
def test_cut_bound_never_exceeds_the_least_peak(block):
    tight = 0
    for seed in range(40 * block, 40 * block + 40):
        graph = random_graph(seed, 7, plain=seed % 3 == 0, buffers=seed % 3 == 1)
        bound, least = cut_bound(Problem(graph)), counted_least_peak(graph)
        assert structural_bound(Problem(graph)).value <= bound.value <= least
        assert bound.scope.max_computes == 1
        tight += bound.value == least
    assert tight > 30


@pytest.mark.parametrize("seeds", [(*range(100), 345), pytest.param(range(4000), marks=pytest.mark.slow)])
def test_live_set_bound_is_the_least_peak(seeds: Sequence[int]) -> None:
    """It is exact if every op may run again, also with accumulation buffers; then schedules have that peak."""
    raised = {True: 0, False: 0}
    for seed in seeds:
        graph = random_graph(seed, 6, plain=seed % 4 == 0, buffers=seed % 2 == 1)
        problem = Problem(graph, order="fixed" if seed % 3 else "free")
        search, structural = LiveSetSearch(problem), structural_bound(problem)
        search.run(Deadline())
        bound, schedules = search.bound(), [*search.schedules(1 << 62, Deadline())]
        again = all(op.recomputable for op in graph.ops)
        assert bool(schedules) == again, seed
        found = [problem.validate(schedule) for schedule in schedules]
        assert all(each.accepted for each in found), seed
        assert all(each.peak == bound.value for each in found[-1:]), seed
        if seed % 20 and bound.value == structural.value:
            continue
        least = least_peak(problem, Scope(problem.order, staged=False))
        assert structural.value <= bound.value <= least.peak, seed
        if again:
            assert bound.value == least.peak, seed
            assert [LiveSetSearch(problem).decide(least.peak - less, Deadline()) for less in (0, 1)] == [True, False]
            raised[seed % 2 == 1] += bound.value > structural.value
    assert min(raised.values()) > len(seeds) / 200


@pytest.mark.parametrize("known", KNOWN, ids=lambda known: known.graph.name)
def test_bounds_of_known_graphs(known):
    """Bounds lie between a relaxation and exhaustive optima of an independent implementation."""
    for budget, (free, _, staged, relaxation) in known.optima.items():
        stage = stage_bound(Problem(known.graph, budget), threads=1)
        assert stage.infeasible or relaxation <= stage.value
        assert staged is None or stage.value <= staged
        joint = joint_bound(Problem(known.graph, budget, "free"), threads=1)
        assert joint.infeasible or free is None or joint.value <= free


@pytest.mark.parametrize("seed", range(0, 60, 3))
@pytest.mark.parametrize("order", ["fixed", "free"])
def test_bounds_increase_as_the_budget_decreases(seed, order):
    graph = graph_of(seed)
    budgets = np.linspace(graph.structural_bound.peak - 1, graph.reference_peak + 1, 6).astype(int)
    found = [best_bound(Problem(graph, int(budget), order), threads=1) for budget in budgets]
    assert found[0].infeasible  # below the structural bound
    assert found[-1].value == graph.base_cost  # the reference order is one of the schedules
    for less, more in pairwise(found):
        assert at_most(more, less)


@pytest.mark.parametrize("seed", [0, 1, 2, 3, 7, 11, 22])
def test_bounds_scale_with_units_of_bytes_and_cost(seed):
    graph = graph_of(seed)
    problem = Problem(graph, random_budget(graph, seed))
    bytes_, cost = 2**40 + 7, 10**9 + 7

    large = ComputeGraph(
        graph.name,
        [replace(tensor, size=tensor.size * bytes_) for tensor in graph.tensors],
        [
            Op(op.name, op.inputs, op.outputs, op.cost * cost, op.workspace * bytes_, recomputable=op.recomputable)
            for op in graph.ops
        ],
        inputs=graph.inputs,
        outputs=graph.outputs,
        order=graph.order,
    )
    scaled = bounds(Problem(large, problem.budget_bytes * bytes_), threads=1)
    for small, big in zip(bounds(problem, threads=1), scaled, strict=True):
        factor = bytes_ if small.measure == "peak" else cost
        assert big.infeasible == small.infeasible
        assert big.value == (None if small.value is None else small.value * factor)
