"""Formulations on each backend agree with exhaustive search and with published closed forms."""

import math
from functools import partial

import pytest
from helpers import KINDS, few, solved
from oracles import least_cost, revolve

from remat.backends.cp_sat import CpSat
from remat.backends.highs import Highs
from remat.formulations.checkmate import Checkmate
from remat.formulations.retention_intervals import RetentionIntervals, RetentionIntervalsOptions
from remat.formulations.stages import Stages
from remat.graphs.families import unit_chain
from remat.problem import Problem
from remat.testing import random_budget, random_graph


def retention(problem, copies, **options):
    return RetentionIntervals(problem, RetentionIntervalsOptions(copies=copies, **options))


class Bridged(RetentionIntervals):
    """Retention intervals whose records are rewritten by bridges only."""

    def _offer_forms(self, model, highest_peak=None):
        pass


def bridged(problem, **options):
    return Bridged(problem, RetentionIntervalsOptions(copies=2, **options))


def every_copy(problem):
    return retention(problem, len(problem.graph.ops))


two_copies, two_reservoirs = partial(retention, copies=2), partial(retention, copies=2, precedence="reservoir")

#: Order, limit of computes, copies in the exhaustive search, most ops, and formulations with backends.
COMPARISONS = {
    "fixed": ("fixed", None, None, 6, [(Checkmate, Highs), (Checkmate, CpSat), (Stages, Highs), (every_copy, CpSat)]),
    "twice": ("fixed", 2, 2, 6, [(Checkmate, CpSat), (Stages, CpSat), (partial(retention, copies=5), CpSat),
                                 (partial(retention, copies=5, precedence="reservoir"), CpSat)]),
    "free": ("free", None, 2, 5, [(two_copies, CpSat), (two_reservoirs, CpSat)]),
    "linear form": ("fixed", None, 2, 6, [(two_copies, Highs), (two_copies, CpSat)]),
    "bridges": ("fixed", None, 2, 4, [(bridged, Highs), (partial(bridged, precedence="reservoir"), Highs)]),
    "free bridges": ("free", None, 2, 4, [(two_copies, Highs)]),
}  # fmt: skip
#: Numbers of graphs in the quick and in the slow run.
SEEDS = {
    "fixed": (24, 300),
    "twice": (9, 60),
    "free": (15, 120),
    "linear form": (12, 300),
    "bridges": (6, 20),
    "free bridges": (6, 20),
}


CASES = [pytest.param(comparison, seed, marks=[pytest.mark.slow] * (seed >= quick))
         for comparison, (quick, most) in SEEDS.items() for seed in range(most)]  # fmt: skip


@pytest.mark.parametrize(("comparison", "seed"), CASES)
def test_optimum_agrees_with_exhaustive_search(comparison, seed):
    """Plain and full graphs, and graphs with buffers, which are filled once."""
    order, limit, copies, most_ops, statements = COMPARISONS[comparison]
    graph = random_graph(seed, most_ops - (seed % 3 == 2), **KINDS[list(KINDS)[seed % 3]])
    problem = Problem(graph, random_budget(graph, seed), order, limit)
    expected = least_cost(problem, copies)
    for make, backend in statements:
        assert solved(make(problem), backend()) == expected


@pytest.mark.parametrize(("n", "budget"), few([(n, b) for n in range(1, 6) for b in range(2, n + 4)], 9))
def test_optimum_of_the_unit_chain(n, budget):
    """Checkmate's unit linear training graph: OPT(n, B) = n + 1 + t(n + 1, B − 2), infeasible below 3."""
    problem = Problem(unit_chain(n), budget)
    expected = None if budget < 3 else n + 1 + revolve(n + 1, budget - 2)
    assert solved(Checkmate(problem), Highs()) == expected
    assert solved(retention(problem, 2 * n + 1), CpSat()) == expected


@pytest.mark.parametrize(("copies", "budget"), [(1, 3), (1, 5), (2, 3), (2, 4), (3, 3)])
def test_feasibility_of_the_unit_chain_with_limited_copies(copies, budget):
    """At most C computes per op: feasible iff n <= binom(B + C − 2, C) − 1."""
    longest = math.comb(budget + copies - 2, copies) - 1
    for n, feasible in ((longest, True), (longest + 1, False)):
        answer = solved(retention(Problem(unit_chain(n), budget), copies), CpSat())
        assert (answer is not None) == feasible
