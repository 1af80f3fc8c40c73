"""Bounds on the peak with limits of computes, and the exhaustive search of minimize()."""

from dataclasses import replace

import pytest
from small_graphs import FIXED_ORDER_TREE, KNOWN, LIBERIS_LANE, SMALLEST_GAIN

from remat.bounds import cut_bound, structural_bound
from remat.bounds.peak_bounds import held_bound
from remat.graphs import ComputeGraph, GraphBuilder, layered
from remat.graphs.families import unit_chain
from remat.ordering.best_first import Aim, explore
from remat.problem import Problem
from remat.problem.scope import Scope
from remat.schedule import OrderRule, validate
from remat.testing.exhaustive import optimum
from remat.testing.graphs import random_graph

#: Above any peak or cost in these tests.
LIMIT = 10**9


def least_peak(problem: Problem) -> int:
    found = explore(problem, Aim.PEAK, limit=LIMIT)
    assert found is not None
    assert found.schedule is not None
    certificate = validate(problem.graph, found.schedule, replace(problem, budget=found.bound).rules)
    assert certificate.accepted, certificate.first
    assert certificate.peak == found.bound
    return found.bound


@pytest.mark.parametrize("order", OrderRule)
@pytest.mark.parametrize("limit", [None, 1, 2])
def test_least_peak_and_cost_equal_an_independent_search(order: OrderRule, limit: int | None) -> None:
    """All kinds of graphs; no code is shared with the search of the kit."""
    scope = Scope(order, staged=False)
    for seed in range(200, 209):
        graph = random_graph(seed, plain=seed % 3 == 0, buffers=seed % 3 == 1, most_ops=5)
        problem = Problem(graph, order=order, max_computes=limit)
        peak = least_peak(problem)
        assert held_bound(problem).value <= peak
        assert optimum(replace(problem, budget=peak - 1), scope) is None, seed
        best = optimum(replace(problem, budget=peak), scope)
        cheapest = explore(problem, Aim.COST, limit=LIMIT, peak=peak)
        assert best is not None, seed
        assert cheapest.bound == best.cost, seed
        assert validate(graph, cheapest.schedule, replace(problem, budget=peak).rules).cost == best.cost


@pytest.mark.parametrize("known", KNOWN, ids=lambda known: known.graph.name)
def test_known_graphs(known) -> None:
    """Least peaks without recomputation, and least feasible budgets."""
    assert least_peak(Problem(known.graph, order="free", max_computes=1)) == known.least_peak
    peak = least_peak(Problem(known.graph, order="free"))
    assert all((peak <= budget) == (costs[0] is not None) for budget, costs in known.optima.items())
    for budget, (free, twice, fixed, _) in known.optima.items():
        for order, limit, cost in (("free", None, free), ("free", 2, twice)):
            found = explore(Problem(known.graph, order=order, max_computes=limit), Aim.COST, limit=LIMIT, peak=budget)
            assert (found.schedule is None) == (cost is None)
            assert found.bound == (LIMIT if cost is None else cost)
        staged = explore(Problem(known.graph), Aim.COST, limit=LIMIT, peak=budget)
        assert staged.bound <= (LIMIT if fixed is None else fixed)  # staged schedules are a subset of the fixed order


@pytest.mark.parametrize(
    ("graph", "order", "limit", "least"),
    [
        (SMALLEST_GAIN, "free", None, 3),
        (SMALLEST_GAIN, "free", 1, 4),
        (FIXED_ORDER_TREE, "free", 1, 7),
        (LIBERIS_LANE, "free", 1, 4960),
        (LIBERIS_LANE, "fixed", 1, 5216),
        *((unit_chain(n), "fixed", None, 3) for n in (3, 5)),
        (layered(12, 0.3, 0), "free", None, 12_360),  # the structural bound is 9,990
        (layered(12, 0.3, 0), "free", 1, 13_340),  # this and the next two by an independent search over orders
        (layered(30, 0.3, 1), "free", 1, 15_890),
        (layered(60, 0.35, 2), "free", 1, 25_340),
        *((graph, "fixed", 1, graph.reference_peak) for graph in (layered(30, 0.3, 1), layered(60, 0.35, 2))),
    ],
)
def test_known_least_peaks(graph: ComputeGraph, order: str, limit: int | None, least: int) -> None:
    assert least_peak(Problem(graph, order=order, max_computes=limit)) == least


def test_interrupted_search_gives_a_bound() -> None:
    problem = Problem(layered(12, 0.3, 0), order="free")
    bounds = []
    for states in (1, 30, 1000, 3000):
        found = explore(problem, Aim.PEAK, limit=LIMIT, floor=9_990, most_states=states)
        assert found.schedule is None
        bounds.append(found.bound)
    assert bounds == sorted(bounds)
    assert 9_990 <= bounds[0] < bounds[-1] <= 12_360
    below = explore(problem, Aim.PEAK, limit=12_360)
    assert (below.schedule, below.bound) == (None, 12_360)


def test_ops_with_many_inputs_are_not_searched() -> None:
    builder = GraphBuilder("wide")
    names = [builder.op(f"a{k}", size=1) for k in range(12)]
    builder.op("sum", inputs=names, size=1)
    graph = builder.build()
    assert explore(Problem(graph), Aim.PEAK, limit=99) is None
    assert explore(Problem(graph, max_computes=1), Aim.PEAK, limit=99).bound == 13  # a single order up to symmetry


@pytest.mark.parametrize("order", OrderRule)
def test_bounds_with_limited_recomputation(order: OrderRule) -> None:
    """Without recomputation: the reference peak or the cut bound; with some limits: between."""
    above = 0
    for seed in range(40):
        graph = random_graph(seed, plain=False, buffers=seed % 2 == 1, most_ops=7)
        once, free = Problem(graph, order=order, max_computes=1), Problem(graph, order=order)
        some = Problem(graph, order=order, max_computes={op.name: 1 for op in graph.ops[::2]})
        least, middle, most = (held_bound(problem) for problem in (free, some, once))
        assert structural_bound(free).value <= least.value <= middle.value <= most.value
        assert middle.value <= least_peak(some)
        assert least.value <= least_peak(free)
        if order is OrderRule.FIXED:
            assert most.value == graph.reference_peak
            assert str(most.scope) in {"fixed order, at most 1 compute per op", "any order, any number of computes"}
        else:
            assert most.value == cut_bound(free).value  # for any limits of computes
        above += least.value < middle.value < most.value
    assert above >= 1


def test_kept_tensors_and_constant_memory() -> None:
    builder = GraphBuilder("kept", constant_memory=100)
    builder.op("a", size=4)
    builder.op("b", inputs=["a"], size=2)
    builder.op("c", inputs=["b"], size=1)
    graph = builder.build()
    plain = Problem(graph, max_computes=1)
    kept = replace(plain, keep=("a",), count_constant_memory=True)
    assert (held_bound(plain).value, least_peak(plain)) == (6, 6)
    assert (held_bound(kept).value, least_peak(kept)) == (107, 107)
    assert held_bound(kept).infeasible is False
    assert held_bound(replace(kept, budget=106)).infeasible is True
