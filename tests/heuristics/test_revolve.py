"""REVOLVE: the dynamic programme, and optimal schedules of the unit chain."""

from functools import cache

import pytest
from helpers import RUN, judged, some_slow

from remat.graphs.families import unit_chain
from remat.heuristics.checkpointing.griewank import GriewankWalther
from remat.heuristics.checkpointing.revolve import advances, reversal
from remat.problem import Problem

# Optimal cost of the unit chain of n forward ops for budgets 3, 4, ...: proved by exhaustive search for n < 10.
OPTIMA = {
    1: (3,), 2: (6, 5), 3: (10, 8, 7), 4: (15, 11, 10, 9), 5: (21, 14, 13, 12, 11), 6: (28, 18, 16, 15, 14, 13),
    7: (36, 22, 19, 18, 17, 16, 15), 8: (45, 26, 22, 21, 20, 19, 18, 17), 9: (55, 30, 25, 24, 23, 22, 21, 20, 19),
    10: (66, 35, 29, 27, 26, 25, 24, 23, 22, 21),
}  # fmt: skip


@cache
def least_advances(length, slots):
    """By the dynamic programme."""
    if length == 1 or slots == 1:
        return length * (length - 1) // 2
    return min(k + least_advances(length - k, slots - 1) + least_advances(k, slots) for k in range(1, length))


def test_formula_is_the_dynamic_programme_and_schedules_attain_it():
    for length in range(1, 60):
        for slots in range(1, 9):
            assert advances(length, slots) == least_advances(length, slots)
            assert sum(what == "advance" for what, _ in reversal(length, slots)) == least_advances(length, slots)


def test_long_chains_are_no_recursion():
    assert sum(what == "advance" for what, _ in reversal(20_000, 12_000)) == advances(20_000, 12_000)


@pytest.mark.parametrize("n", [20, 39, *some_slow(range(1, 39), 11)])
def test_attains_the_optimum_of_the_unit_chain(n):
    """At every budget from 3 to n + 3; each schedule is made once, and judged at all budgets."""
    problem = Problem(unit_chain(n))
    found = [judged(problem, s) for s in GriewankWalther().candidates(problem)]
    assert all(certificate.accepted for certificate in found)
    for budget in range(3, n + 4):
        best = min(certificate.cost for certificate in found if certificate.peak <= budget)
        assert best == n + 1 + advances(n + 1, budget - 2)
        if n in OPTIMA:
            assert best == (OPTIMA[n] + (2 * n + 1,) * 3)[budget - 3]


def test_limits_of_computes_are_kept():
    problem = Problem(unit_chain(12), 5, max_computes=2)
    certificate = judged(problem, GriewankWalther().run(problem, RUN))
    assert certificate.verdict == "over budget"  # two computes per op allow n <= 9 at budget 5
    problem = Problem(unit_chain(12), 6, max_computes=2)
    assert judged(problem, GriewankWalther().run(problem, RUN)).accepted
