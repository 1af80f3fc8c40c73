"""CP-SAT: every record kind against enumeration; hints, limits, refusals."""

import itertools

import numpy as np
import pytest
from refusals import refused

from remat.backends.base import SolveOptions, Status, StopReason
from remat.backends.cp_sat import CpSat
from remat.deadline import Deadline
from remat.modeling import (
    ALWAYS,
    AllDifferent,
    Clauses,
    Cumulative,
    Domain,
    Linear,
    Model,
    Reservoir,
    violations,
)


def options(seconds=30.0, **other):
    return SolveOptions(deadline=Deadline.after(seconds), threads=1, **other)


def random_record(rng, x, b):
    """One record of a random kind over integers `x` and Booleans `b`."""
    literals = np.concatenate([b, ~b, [ALWAYS]])
    kind = rng.integers(0, 6)
    if kind == 0:
        rows = rng.integers(0, 2, 4)
        enforce = rng.choice(literals, 2) if rng.random() < 0.6 else None
        low = rng.integers(-3, 3, 2).astype(float)
        low[rng.random(2) < 0.3] = -np.inf
        high = np.where(np.isinf(low), 2, low + rng.integers(0, 4))
        used = rng.choice(np.concatenate([x, b]), 4)
        return Linear.rows(
            "linear", rows, used, rng.integers(-2, 3, 4), lower=low, upper=high, num_rows=2, enforce=enforce
        )
    if kind == 1:
        return Clauses.grouped("clauses", rng.integers(0, 2, 4), rng.choice(literals, 4), 2)
    if kind == 2:
        values = [np.sort(rng.choice(np.arange(-1, 6), rng.integers(1, 4), replace=False)) for _ in x]
        indptr = np.concatenate([[0], np.cumsum([len(v) for v in values])])
        return Domain("domain", x, indptr, np.concatenate(values))
    if kind == 3:
        pairs = rng.choice(x, (2, 2))
        return Cumulative("cumulative", pairs[:, 0], pairs[:, 1], rng.integers(0, 3, 2), rng.choice(literals, 2),
                          int(rng.integers(0, 4)), int(rng.choice(x)) if rng.random() < 0.3 else None)  # fmt: skip
    if kind == 4:
        count = int(rng.integers(1, 5))
        return Reservoir("reservoir", np.array([0, count]), rng.choice(x, count), rng.integers(-1, 2, count),
                         rng.integers(-2, 3, count), rng.choice(literals, count))  # fmt: skip
    return AllDifferent("different", x)


@pytest.mark.parametrize("seed", [*range(60), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(60, 120))])
def test_random_models_against_enumeration(seed):
    rng = np.random.default_rng(seed)
    model = Model("random")
    x = model.integers("x", 3, -1, [4, 3, 5]).index
    b = model.booleans("b", 2).index
    model.add(random_record(rng, x, b))
    second = random_record(rng, x, b)
    if not (isinstance(second, Domain) and isinstance(model.records[0], Domain)):
        model.add(second)
    weights = rng.integers(-3, 4, 5)
    model.minimize(np.concatenate([x, b]), weights, constant=float(rng.integers(-5, 5)))
    boxes = [range(-1, 5), range(-1, 4), range(-1, 6), (0, 1), (0, 1)]
    feasible = [
        np.array(p, dtype=float) for p in itertools.product(*boxes) if not violations(model, np.array(p, float))
    ]
    raw = CpSat().solve(model, options())
    if not feasible:
        assert raw.status is Status.INFEASIBLE
        assert raw.values is None
        return
    assert raw.status is Status.OPTIMAL
    assert violations(model, raw.values) == []
    assert raw.objective == raw.bound == min(model.objective.value(p) for p in feasible)


def knapsack(size=120, rows=80, seed=0):
    rng = np.random.default_rng(seed)
    weight = rng.integers(0, 100, (rows, size))
    model = Model("hard")
    take = model.booleans("take", size)
    row, column = np.indices(weight.shape)
    model.add(Linear.rows("weight", row, column, weight.ravel(), upper=weight.sum(axis=1) // 3))
    model.minimize(take.index, -rng.integers(50, 150, size), constant=1e6)
    return model


def test_relative_gap_stops_early():
    raw = CpSat().solve(knapsack(), options(relative_gap=0.5))
    assert (raw.status, raw.stop) == (Status.FEASIBLE, StopReason.GAP)
    assert raw.bound < raw.objective


def test_same_seed_same_answer():
    first, second = (CpSat().solve(knapsack(20, 5), options(seed=3)) for _ in range(2))
    assert np.array_equal(first.values, second.values)
    assert first.bound == second.bound


def test_complete_hint_is_taken():
    model = knapsack(20, 5)
    lines = []
    hint = np.zeros(model.num_vars)
    raw = CpSat().solve(model, options(log=lines.append), hint=hint)
    assert raw.status is Status.OPTIMAL
    assert any("The solution hint is complete and is feasible" in line for line in lines)


def test_refusals():
    model = Model("m")
    x = model.continuous("flow", 1, 0, 1)
    with refused("model.continuous", culprit="flow"):
        CpSat().solve(model, options())
    model = Model("m")
    x = model.integers("x", 1, 0, 5)
    model.add(Linear.rows("half", [0], x.index, 0.5, upper=1))
    with refused("model.not-whole", culprit="half"):
        CpSat().solve(model, options())
    with refused("backend.no-option", culprit="nonsense"):
        CpSat().solve(knapsack(), options(solver={"nonsense": 1}))
    with refused("backend.no-variants", culprit="cp-sat:other"):
        CpSat("other")


def test_solver_parameters_reach_the_solver():
    raw = CpSat().solve(knapsack(), options(solver={"stop_after_first_solution": True}))
    assert (raw.status, raw.stop) == (Status.FEASIBLE, StopReason.OTHER)


def test_empty_domain_is_infeasible():
    model = Model("m")
    x = model.integers("x", 1, 0, 5)
    model.add(Domain("nothing left", x.index, np.array([0, 1]), np.array([9])))
    assert CpSat().solve(model, options()).status is Status.INFEASIBLE
