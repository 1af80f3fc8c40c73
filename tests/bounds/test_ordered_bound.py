"""Bounds from several first computes, in every order the graph allows."""

import random

import pytest
from helpers import some_slow
from test_bounds_exhaustive import MOST_OPS, problem_of

from remat import Problem, layered
from remat.backends.highs import Highs
from remat.bounds import bounds, joint_bound, ordered_bound
from remat.bounds.base import cost_unit
from remat.bounds.ordered_programme import OrderedProgramme
from remat.graphs import ComputeGraph, GraphBuilder
from remat.graphs.arrays import first_computes
from remat.problem.op_sequence import op_sequence
from remat.problem.scope import Scope
from remat.runtime.solve_options import SolveOptions, Status
from remat.testing import optimum


def two_peaks() -> ComputeGraph:
    """Return a graph of two blocks, each of which must compute `x` again within 7 bytes."""
    graph = GraphBuilder("two peaks")
    graph.op("start", size=1, cost=1)
    last = "start"
    for block in "12":
        graph.op(f"x{block}", inputs=[last], size=2, cost=1)
        graph.op(f"narrow{block}", inputs=[f"x{block}"], size=1, cost=1)
        graph.op(f"peak{block}", inputs=[f"narrow{block}"], size=1, cost=1, workspace=4)
        last = f"end{block}"
        graph.op(last, inputs=[f"x{block}", f"peak{block}"], size=1, cost=1)
    return graph.build()


def test_two_events_count_the_recomputations_of_both():
    problem = Problem(two_peaks(), 7, order="free")
    best = optimum(problem, Scope(problem.order, staged=False))
    assert best is not None
    assert best.cost == problem.graph.base_cost + 2
    assert joint_bound(problem, threads=1).value == problem.graph.base_cost + 1
    assert ordered_bound(problem, threads=1).value == best.cost
    assert any(bound.kind == "the ordered bound" and bound.value == best.cost for bound in bounds(problem, threads=1))


@pytest.mark.parametrize("seed", some_slow(range(120), 8))
def test_ordered_programmes_and_their_bound_never_exceed_the_optimum(seed):
    problem = problem_of(seed, "free")
    if len(problem.graph.ops) > MOST_OPS:
        return
    best = optimum(problem, Scope(problem.order, staged=False))
    found = ordered_bound(problem, threads=1)
    if best is None:
        return
    assert problem.graph.base_cost <= found.value <= best.cost
    assert ordered_bound(problem, enough=best.cost, threads=1).value <= best.cost
    plain, _ = problem.relaxed
    sequence = op_sequence(problem, best.schedule)
    order, rng = sequence[first_computes(sequence)].tolist(), random.Random(seed)
    for _ in range(3):
        chosen = sorted(rng.sample(range(len(order)), rng.randint(1, len(order))))
        model = OrderedProgramme(plain, [order[place] for place in chosen]).model
        result = Highs().solve(model, SolveOptions(threads=1))
        assert result.status is Status.OPTIMAL
        assert cost_unit(plain) * result.bound <= best.cost * (1 + 1e-6)


def test_ordered_bound_exceeds_the_joint_bound_on_a_layered_graph():
    problem = Problem(layered(60, 0.35, 2), "60%", order="free")
    joint, ordered = joint_bound(problem, threads=1).value, ordered_bound(problem, deadline=20, threads=1).value
    assert joint is not None
    assert ordered is not None
    assert ordered - joint > 0.03 * problem.graph.base_cost


def test_ordered_bound_without_time_is_the_base_cost():
    problem = Problem(layered(40, seed=0), "60%", order="free")
    assert ordered_bound(problem, deadline=0.0, threads=1).value == problem.graph.base_cost
