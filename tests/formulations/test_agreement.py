"""All formulations on all backends agree with exhaustive search, and with published closed forms."""

import math

import pytest
from helpers import solved, some_slow
from oracles import least_cost, revolve

from remat.backends.cp_sat import CpSat
from remat.backends.highs import Highs
from remat.formulations.checkmate import Checkmate
from remat.formulations.retention_intervals import RetentionIntervals, RetentionIntervalsOptions
from remat.graphs.families import unit_chain
from remat.problem import Problem
from remat.testing import random_budget, random_graph


def retention(problem, copies, **options):
    return RetentionIntervals(problem, RetentionIntervalsOptions(copies=copies, **options))


@pytest.mark.parametrize("seed", some_slow(range(200), 80))
def test_fixed_order(seed):
    """Brute force = Checkmate on both backends = retention intervals with enough copies."""
    graph = random_graph(seed, plain=seed % 2 == 0)
    problem = Problem(graph, random_budget(graph, seed), "fixed")
    expected = least_cost(problem)
    assert solved(Checkmate(problem), Highs()) == expected
    assert solved(Checkmate(problem), CpSat()) == expected
    assert solved(retention(problem, len(graph.ops)), CpSat()) == expected


@pytest.mark.parametrize("seed", some_slow(range(0, 200, 4), 25))
def test_limited_computes(seed):
    """Two computes per op, in both statements of the precedence."""
    graph = random_graph(seed, plain=seed % 8 == 0)
    problem = Problem(graph, random_budget(graph, seed), "fixed", max_computes=2)
    expected = least_cost(problem, 2)
    assert solved(Checkmate(problem), CpSat()) == expected
    assert solved(retention(problem, 5), CpSat()) == expected
    assert solved(retention(problem, 5, precedence="reservoir"), CpSat()) == expected


@pytest.mark.parametrize("seed", some_slow(range(0, 200, 2), 40))
def test_free_order(seed):
    """Free-order retention intervals = brute force over all orders with the same copies, never above fixed order."""
    graph = random_graph(seed, most_ops=5, plain=seed % 4 == 0)
    budget = random_budget(graph, seed)
    free, fixed = Problem(graph, budget, "free"), Problem(graph, budget, "fixed")
    expected = least_cost(free, 2)
    assert solved(retention(free, 2), CpSat()) == expected
    if seed % 4 == 0:
        assert solved(retention(free, 2, precedence="reservoir"), CpSat()) == expected
    ordered = least_cost(fixed, 2)
    assert expected is not None or ordered is None
    assert ordered is None or expected <= ordered


@pytest.mark.parametrize("seed", range(12))
def test_retention_intervals_through_bridges(seed):
    """Retention intervals reach HiGHS through bridges alone."""
    graph = random_graph(seed, most_ops=4)
    budget = random_budget(graph, seed)
    fixed, free = Problem(graph, budget, "fixed"), Problem(graph, budget, "free")
    expected = least_cost(fixed, 2)
    assert solved(retention(fixed, 2), Highs()) == expected
    assert solved(retention(fixed, 2, precedence="reservoir"), Highs()) == expected
    assert solved(retention(free, 2), Highs()) == least_cost(free, 2)


@pytest.mark.parametrize("seed", some_slow(range(60), 30))
def test_accumulation_buffers(seed):
    """Buffers filled once: brute force = both formulations, in both orders."""
    graph = random_graph(seed, most_ops=5, buffers=True)
    budget = random_budget(graph, seed)
    fixed, free = Problem(graph, budget, "fixed"), Problem(graph, budget, "free")
    expected = least_cost(fixed)
    assert solved(Checkmate(fixed), Highs()) == expected
    assert solved(retention(fixed, len(graph.ops)), CpSat()) == expected
    assert solved(retention(free, 2), CpSat()) == least_cost(free, 2)


@pytest.mark.parametrize(("n", "budget"), [(n, b) for n in range(1, 7) for b in range(2, n + 4)])
def test_unit_chain(n, budget):
    """Checkmate's unit linear training graph: OPT(n, B) = n + 1 + t(n + 1, B − 2), infeasible below 3."""
    problem = Problem(unit_chain(n), budget)
    expected = None if budget < 3 else n + 1 + revolve(n + 1, budget - 2)
    assert solved(Checkmate(problem), Highs()) == expected
    assert solved(retention(problem, 2 * n + 1), CpSat()) == expected


@pytest.mark.parametrize(("copies", "budget"), [(1, 3), (1, 5), (2, 3), (2, 4), (3, 3)])
def test_unit_chain_with_limited_copies(copies, budget):
    """At most C computes per op: feasible iff n <= binom(B + C − 2, C) − 1."""
    longest = math.comb(budget + copies - 2, copies) - 1
    for n, feasible in ((longest, True), (longest + 1, False)):
        answer = solved(retention(Problem(unit_chain(n), budget), copies), CpSat())
        assert (answer is not None) == feasible
