"""Optima of the kit against a second exhaustive search, with buffers dropped and refilled."""

import pytest
from composite_search import CompositeSearch
from helpers import some_slow
from hierarchies import RandomHierarchy

from remat.graphs import GraphBuilder
from remat.problem import Problem
from remat.problem.scope import Scope
from remat.schedule import OrderRule, validate
from remat.testing import least_peak, optimum, random_budget, random_graph
from remat.testing.exhaustive import FILLED_ONCE


def second_least_cost(problem, limit=None, *, staged=False, refill=True):
    """Return the least cost by the search over composite schedules, without groups."""
    search = CompositeSearch(RandomHierarchy(problem.graph, ()), problem, refill=refill, copies=limit, staged=staged)
    return search.cheapest(most_states=10**6)


def agrees(graph, budget, order, limit=None, *, staged=False, refill=True):
    """True when both searches find the same cost; assert that the schedule is valid."""
    problem = Problem(graph, budget, order, limit)
    best = optimum(problem, Scope(OrderRule(order), staged, notes=() if refill else (FILLED_ONCE,)))
    if best is not None:
        certificate = validate(graph, best.schedule, problem.rules)
        assert certificate.accepted, certificate.first
        assert certificate.cost == best.cost
        assert certificate.peak <= best.peak <= budget
    return (best and best.cost) == second_least_cost(problem, limit, staged=staged, refill=refill)


def refilled():
    """`both` writes the buffer and `early`; the buffer does not fit between its two uses."""
    b = GraphBuilder("refilled")
    b.tensor("early", 1), b.tensor("sum", 6)
    b.op("both", outputs=["early", "sum"], cost=2)
    b.op("wide", inputs=["early"], size=9, cost=3)
    b.op("narrow", inputs=["wide"], size=1, cost=1)
    b.op("other", outputs=["sum"], cost=4)
    b.op("last", inputs=["narrow", "sum"], size=1, cost=1)
    return b.build()


@pytest.mark.parametrize("order", ["fixed", "free"])
def test_buffer_is_dropped_and_refilled(order):
    """Within 10 to 15 bytes `both` runs again after `wide`, at a cost of 2."""
    graph, scope = refilled(), Scope(OrderRule(order), staged=False)
    found = [optimum(Problem(graph, budget, order), scope) for budget in (9, 10, 15, 16)]
    assert [best and best.cost for best in found] == [None, 13, 13, 11]
    assert optimum(Problem(graph, 15, order), Scope(OrderRule(order), staged=False, notes=(FILLED_ONCE,))) is None


@pytest.mark.parametrize("seed", [142, *some_slow(range(0, 120, 2), 3)])
def test_both_searches_agree_on_graphs_with_buffers(seed):
    graph = random_graph(seed, 5, buffers=True)
    budget = random_budget(graph, seed)
    if len(graph.ops) <= 6:
        for order, limit in (("free", None), ("fixed", None), ("free", 2)):
            assert agrees(graph, budget, order, limit), (order, limit)
        assert agrees(graph, budget, "fixed", staged=True, refill=False)
        assert agrees(graph, budget, "free", 2, refill=False)


@pytest.mark.parametrize("seed", some_slow(range(100), 20))
def test_both_searches_agree_on_other_graphs(seed):
    graph = random_graph(seed, 4)
    budget = random_budget(graph, seed)
    assert agrees(graph, budget, ("free", "fixed")[seed % 2], (None, 2)[seed % 3 == 0])
    assert agrees(graph, budget, "fixed", staged=True)


@pytest.mark.parametrize("seed", some_slow(range(40), 12))
def test_least_peaks_agree(seed):
    graph = random_graph(seed, 4, buffers=seed % 2 == 0)
    order = ("free", "fixed")[seed % 3 == 0]
    best = least_peak(Problem(graph, order=order), Scope(OrderRule(order), staged=False))
    assert second_least_cost(Problem(graph, best.peak - 1, order)) is None
    assert second_least_cost(Problem(graph, best.peak, order)) == best.cost
    assert validate(graph, best.schedule, Problem(graph, best.peak, order).rules).accepted
