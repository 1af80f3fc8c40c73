"""Order search of ``auto``: rules, limits, repair, bounds of parts."""

import numpy as np
import pytest

from remat import Problem, solve
from remat.graphs import ComputeGraph, layered
from remat.graphs.families import unit_chain
from remat.ordering.instance import OrderInstance
from remat.ordering.lifetimes import Lifetimes
from remat.ordering.limit_search import Answer, LimitSearch
from remat.ordering.valley import Climb, Portfolio, ValleySearch, repaired
from remat.runtime.deadline import Deadline
from remat.testing.graphs import random_graph

ENOUGH = 10**8


def once(graph: ComputeGraph) -> OrderInstance:
    return OrderInstance.of(Problem(graph, order="free", max_computes=1))


def test_windows_of_ops_bound_every_order() -> None:
    """Contiguous and random sets of ops."""
    rng = np.random.default_rng(0)
    sharp = 0
    for seed in range(24):
        graph = layered(12 + seed % 9, 0.4, seed) if seed % 2 else random_graph(seed, 14, plain=False, buffers=True)
        instance = once(graph)
        least = ValleySearch().search(instance)
        assert least.proved
        for k in range(4):
            if k % 2:
                start = int(rng.integers(instance.num_ops - 1))
                ops = np.sort(least.order[start : start + 8])
            else:
                ops = np.flatnonzero(rng.random(instance.num_ops) < 0.6)
            if not len(ops):
                continue
            window = Lifetimes.of(instance).window(ops)
            for way in (window, window.mirrored):
                search = LimitSearch(way)
                assert search.go(least.peak, ENOUGH) is Answer.FOUND, (seed, ops)
                sharp += search.go(least.peak - 1, ENOUGH) is Answer.REFUTED
        everything = Lifetimes.of(instance).window(np.arange(instance.num_ops))
        assert LimitSearch(everything).go(least.peak - 1, ENOUGH) is Answer.REFUTED
    assert sharp > 40


def test_repair_of_an_order() -> None:
    """Repair reorders only ranges above the limit."""
    instance = once(layered(400, 0.3, 5))
    order = instance.reference
    peak = instance.peak_of(order)
    limit = peak - peak // 50
    found = repaired(instance, order, limit, 1_000_000, Deadline())
    assert found is not None
    assert instance.peak_of(found) <= limit
    assert (found != order).sum() < instance.num_ops
    assert repaired(instance, order, instance.structural_bound - 1, 10_000, Deadline()) is None
    assert repaired(instance, order, limit, 1_000_000, Deadline.after(0.0)) is None
    small = once(unit_chain(4))  # one stretch is the whole order
    assert repaired(small, small.reference, small.structural_bound - 1, 1_000, Deadline()) is None


@pytest.mark.parametrize("seed", range(3))
def test_portfolio_at_least_as_good_as_the_best_rule(seed: int) -> None:
    instance = once(layered(200, 0.4, seed))
    rules = [rule().search(instance).peak for rule in Portfolio.rules]
    found = Portfolio().search(instance, deadline=Deadline.after(0.5))
    assert found.bound <= found.peak <= min(rules)
    only_rules = Portfolio().search(instance, deadline=Deadline.after(0.02))
    assert only_rules.peak <= instance.peak_of(instance.reference)


def test_rounds_narrow_the_interval() -> None:
    instance = once(layered(200, 0.5, 3))
    climb = Climb(instance, instance.structural_bound, instance.peak_of(instance.reference) + 1)
    climb.see(instance.reference)
    climb.start()
    clock = Deadline.after(20)
    climb.cut(clock)
    for _ in range(2):
        low, high = climb.low, climb.high
        climb.round(clock)
        assert low <= climb.low <= climb.high <= high
        assert instance.peak_of(climb.order) == climb.high


def test_auto_uses_the_order_portfolio() -> None:
    graph = layered(150, 0.3, 4)
    result = solve(Problem(graph, order="free", max_computes=1, objective="least-peak"), backend=None, stop=20)
    assert (result.proved, result.cost, result.bound_kind) == (True, graph.base_cost, "order-portfolio")
    assert result.peak == ValleySearch().search(once(graph)).peak
    assert result.states > 0
    again = solve(Problem(graph, order="free", objective="least-peak"), backend=None, stop=1)
    assert again.peak <= result.peak
    assert again.bound <= result.bound
