"""Checkmate with and without frontier-advancing stages."""

import pytest
from helpers import solved
from refusals import refused

from remat import GraphBuilder, Problem, Schedule
from remat.backends.cp_sat import CpSat
from remat.backends.highs import Highs
from remat.bounds import lp_relaxation
from remat.formulations.checkmate import Checkmate, CheckmateOptions
from remat.formulations.stages import StagesOptions
from remat.graphs.families import unit_chain
from remat.modeling import violations
from remat.problem.scope import AtMost, Limit, Scope
from remat.schedule import OrderRule
from remat.testing import optimum, random_budget, random_graph


def free(problem, stages=None):
    return Checkmate(problem, CheckmateOptions(frontier=False, stages=stages))


def test_integrality_gaps_of_appendix_a():
    """8 layers, 17 ops, budget 4, optimum 26: gap 1.18 with frontier-advancing stages, 21.56 without."""
    graph, optimal = unit_chain(8), 26
    advancing = lp_relaxation(Problem(graph, 4), "checkmate").relaxed
    unpartitioned = lp_relaxation(Problem(graph, 4, "free"), "checkmate", options=CheckmateOptions(frontier=False))
    assert round(optimal / advancing, 2) == 1.18
    assert round(optimal / unpartitioned.relaxed, 2) == 21.56
    assert unpartitioned.scope == Scope(OrderRule.FREE, False, None, (AtMost(Limit.STAGES, 17),))


@pytest.mark.parametrize("seed", range(16))
def test_optimum_of_free_stages_lies_between_free_order_and_fixed_stages(seed):
    graph = random_graph(seed, 4, plain=seed % 2 == 0)
    budget = random_budget(graph, seed)
    least = optimum(Problem(graph, budget, "free"), Scope(OrderRule.FREE, staged=False))
    staged = optimum(Problem(graph, budget), Scope(OrderRule.FIXED, staged=True))
    found = solved(free(Problem(graph, budget, "free")), Highs())
    if seed % 4 == 0:
        assert solved(free(Problem(graph, budget, "free")), CpSat()) == found
    assert (found is None) <= (staged is None)
    assert least is not None or found is None
    if found is not None:
        assert least.cost <= found
        assert staged is None or found <= staged.cost


@pytest.fixture
def wide():
    """Two ops of size 9; the reference order holds both at once, another order does not."""
    b = GraphBuilder("wide")
    for name in ("a", "b"):
        b.op(name, size=9, cost=5)
    for name in ("a", "b"):
        b.op(name + "1", inputs=[name], size=1, cost=1)
    b.op("end", inputs=["a1", "b1"], size=1, cost=1)
    return b.build()


def test_free_stages_reorder_ops(wide):
    assert solved(Checkmate(Problem(wide, 11)), Highs()) == 13 + 10
    costs = [solved(free(Problem(wide, 11, "free"), stages), Highs()) for stages in (1, 2, 3, None)]
    assert costs == [None, 13, 13, 13]
    assert solved(free(Problem(wide, "100%", "free"), 1), Highs()) == 13


def test_schedule_with_too_many_stages_is_refused(wide):
    schedule = Schedule.from_steps([("compute", op) for op in ("b", "b1", "a", "a1", "end")])
    two = free(Problem(wide, 11, "free"), 2)
    assert violations(two.build(), two.encode(schedule)) == []
    with refused("problem.too-many-stages"):
        free(Problem(wide, 20, "free"), 1).encode(schedule)


def test_limits_of_computes_hold_in_free_stages():
    problem = Problem(unit_chain(2), 3, "free", max_computes=2)
    assert solved(free(problem), Highs()) == optimum(problem, Scope(OrderRule.FREE, False, 2)).cost


INVALID = [
    (CheckmateOptions, {"frontier": 1}), (CheckmateOptions, {"stages": 3}),
    (CheckmateOptions, {"frontier": False, "stages": 0}), (CheckmateOptions, {"frontier": False, "stages": 2.0}),
    (StagesOptions, {"cost_limit": -1}), (StagesOptions, {"cost_limit": 2.5}), (StagesOptions, {"ahead": 1}),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "options"), INVALID)
def test_invalid_options(kind, options):
    with refused("problem.option"):
        kind(**options)


def test_unsupported_problems_are_refused():
    graph = unit_chain(2)
    with refused("problem.order-rule"):
        Checkmate(Problem(graph, 4, "free"))
    with refused("problem.order-rule", culprit="free"):
        free(Problem(graph, 4))
    buffers = random_graph(3, buffers=True)
    assert (buffers.arrays.producers.counts > 1).any()
    with refused("problem.buffer"):
        free(Problem(buffers, "100%", "free"))
