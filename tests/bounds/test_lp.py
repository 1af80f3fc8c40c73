"""Linear relaxation: comparison with optima and published values, and safe bounds from any duals."""

import numpy as np
import pytest

from remat.backends.highs import Highs
from remat.backends.highs.relaxation import safe_bound
from remat.bounds.base import Bound
from remat.bounds.lp import lp_relaxation
from remat.errors import BackendError, RematError
from remat.formulations.checkmate import Checkmate
from remat.formulations.retention_intervals import RetentionIntervalsOptions
from remat.graphs.families import unit_chain
from remat.graphs.zoo import ZOO
from remat.modeling import Linear, Model
from remat.modeling.matrix import to_matrix
from remat.problem import Problem
from remat.runtime.deadline import Deadline
from remat.runtime.interruption import interrupts, request
from remat.runtime.solve_options import SolveOptions, StopReason
from remat.schedule import OrderRule
from remat.testing.exhaustive import optimum
from remat.testing.graphs import random_budget, random_graph

ALGORITHMS = ["simplex", "ipm", "pdlp"]


@pytest.mark.parametrize("seed", range(60))
def test_relaxation_never_exceeds_the_optimum(seed):
    graph = random_graph(seed, plain=seed % 2 == 0)
    problem = Problem(graph, random_budget(graph, seed))
    bound = lp_relaxation(problem, algorithm=ALGORITHMS[seed % 3], deadline=20, threads=1)
    assert bound.scope == Checkmate(problem).scope()
    best = optimum(problem, bound.scope)
    if best is None:
        assert bound.infeasible == (bound.value is None)
    else:
        assert not bound.infeasible
        assert graph.base_cost <= bound.value <= best.cost
        assert bound.relaxed <= best.cost


@pytest.mark.parametrize("seed", range(12))
def test_relaxation_of_retention_intervals(seed):
    graph = random_graph(seed, most_ops=4)
    problem = Problem(graph, random_budget(graph, seed))
    bound = lp_relaxation(problem, "retention-intervals", options=RetentionIntervalsOptions(copies=2), threads=1)
    assert bound.scope.max_computes == 2
    best = optimum(problem, bound.scope)
    assert best is None or graph.base_cost <= bound.value <= best.cost


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize(("budget", "value"), [(3, 23), (4, 22), (5, 21), (6, 20), (7, 19), (8, 18.11), (9, 17.44)])
def test_relaxation_of_the_unit_chain(budget, value, algorithm):
    """Test points of Checkmate: at budget 4 the ratio to the optimum 26 is 1.18."""
    bound = lp_relaxation(Problem(unit_chain(8), budget), algorithm=algorithm, threads=1)
    assert bound.relaxed == pytest.approx(value, abs=0.01)
    assert bound.value == int(np.ceil(value))


@pytest.mark.parametrize(
    ("share", "overhead"), [pytest.param("90%", 0.0, marks=pytest.mark.slow), ("80%", 0.0004), ("70%", 0.056)]
)
def test_relaxation_of_fcn8(share, overhead):
    """Static costs (CM1)."""
    bound = lp_relaxation(Problem(ZOO["fcn8"](), share), deadline=60, threads=1)
    assert bound.overhead == pytest.approx(overhead, abs=6e-5 if overhead < 0.01 else 6e-4)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_infeasible_relaxation(algorithm):
    model = Model("full")
    x = model.booleans("x", 3)
    model.add(Linear.rows("many", [0, 0, 0], x.index, 1, lower=[2]), Linear.rows("few", [0, 0], x[:2], 1, upper=[0.5]))
    model.minimize(x.index, 1)
    found = Highs().relax(model, SolveOptions(), algorithm)
    assert found.infeasible
    assert found.bound is found.objective is None
    assert found.stop is StopReason.FINISHED


def test_duals_by_record():
    model = Model("diet")
    x = model.continuous("x", 2)
    model.add(
        Linear.rows("first", [0, 0], x.index, [1, 2], lower=[4]),
        Linear.rows("second", [0, 0], x.index, [3, 1], lower=[6]),
        Linear.rows("slack", [0], x[:1], 1, upper=[100]),
    )
    model.minimize(x.index, [2, 3], 7.0)
    found = Highs().relax(model, SolveOptions())
    # at the optimum (1.6, 1.2) both first rows are tight: y1 + 3 y2 = 2, 2 y1 + y2 = 3
    assert found.objective == pytest.approx(13.8)
    assert found.bound == pytest.approx(13.8)
    assert found.bound <= 13.8
    assert list(found.duals) == ["first", "second", "slack"]
    assert np.concatenate(list(found.duals.values())) == pytest.approx([1.4, 0.2, 0])


@pytest.mark.parametrize("seed", range(30))
def test_any_duals_give_a_bound(seed):
    """Random duals never give more than the exact optimum of the relaxation."""
    rng = np.random.default_rng(seed)
    model = Model("random")
    x = model.continuous("x", 6, -3, rng.integers(0, 9, 6))
    low = rng.integers(-9, 3, 4).astype(float)
    model.add(
        Linear.rows(
            "rows", np.repeat(np.arange(4), 6), np.tile(x.index, 4), rng.integers(-4, 5, 24), lower=low, upper=low + 6
        )
    )
    model.minimize(x.index, rng.integers(-5, 6, 6), 3.0)
    found = Highs().relax(model, SolveOptions())
    matrix = to_matrix(model)
    for scale in (0, 1e-3, 1, 1e6):
        bound = safe_bound(matrix, scale * rng.normal(size=4))
        if not found.infeasible:
            assert bound <= found.objective + 1e-7
    if not found.infeasible:
        assert found.bound == pytest.approx(found.objective, abs=1e-9)


def test_safe_bound_subtracts_rounding_errors():
    """In binary, 0.1 + 0.2 exceeds 0.3."""
    model = Model("tenths")
    x = model.continuous("x", 3, 1, 1)
    model.minimize(x.index, [0.1, 0.2, -0.3])
    assert safe_bound(to_matrix(model), np.zeros(0)) < 2.7e-17  # the exact sum of the three doubles


def test_unbounded_column_of_negative_reduced_cost():
    model = Model("open")
    x = model.continuous("x", 1)
    model.add(Linear.rows("row", [0], x.index, 1, lower=[2]))
    model.minimize(x.index, 1)
    matrix = to_matrix(model)
    assert safe_bound(matrix, np.array([2.0])) == -np.inf
    assert safe_bound(matrix, np.array([0.5])) == pytest.approx(1)


def test_expired_deadline_gives_a_bound():
    problem = Problem(ZOO["fcn8"](), "70%")
    for seconds in (0.0, 0.3):
        bound = lp_relaxation(problem, algorithm="pdlp", deadline=Deadline.after(seconds), threads=1)
        assert bound.seconds < seconds + 2
        assert bound.value >= bound.base_cost
        assert not bound.infeasible


@pytest.mark.parametrize("formulation", ["checkmate", "stages", "h-ilp", "retention-intervals"])
def test_interruption_gives_a_bound(formulation):
    problem = Problem(unit_chain(8), 4)
    with interrupts():
        request()
        bound = lp_relaxation(problem, formulation)
    assert (bound.value, bound.infeasible) == (problem.graph.base_cost, False)


def test_unknown_names():
    problem = Problem(unit_chain(3), 4)
    with pytest.raises(BackendError, match="no algorithm 'magic' for relaxations; known are simplex, ipm, pdlp"):
        lp_relaxation(problem, algorithm="magic")
    with pytest.raises(RematError, match="no formulation 'chekmate'; known are checkmate"):
        lp_relaxation(problem, "chekmate")


def test_text_of_a_bound():
    bound = lp_relaxation(Problem(unit_chain(8), 4))
    assert str(bound) == (
        "cost ≥ 22 (overhead 29.41 %) for fixed order, staged recomputation, any number of computes; "
        "by the linear relaxation of checkmate (simplex)"
    )
    assert bound.scope.order is OrderRule.FIXED
    assert str(Bound(None, "b", bound.scope, 17)).startswith("nothing is known for fixed order")
    assert str(Bound(None, "b", bound.scope, 17, infeasible=True)).startswith("no schedule exists for fixed order")
