"""Restricted models: same optimum as the original within the bounds."""

import itertools

import numpy as np
import pytest
from helpers import few
from refusals import refused

from remat.modeling import ALWAYS, AllDifferent, Clauses, Cumulative, Domain, Linear, Model, Reservoir, violations
from remat.modeling.restriction import restrict
from remat.testing.raw_models import BOOLEANS, INTEGERS, KINDS, enumerate_model


def within(model, lower, upper):
    """Return the least objective of `model` within bounds by enumeration; None if infeasible."""
    narrow = model.copy("within")
    narrow._lower, narrow._upper = [lower], [upper]
    return enumerate_model(narrow).optimum


def random_model(seed, *kinds):
    """Return a random model over three Booleans and three integers with a record of each kind, and its generator."""
    rng = np.random.default_rng(seed)
    model = Model(" and ".join(kinds))
    model.booleans("b", len(BOOLEANS))
    model.integers("x", len(INTEGERS), -1, 2)
    model.add(*(KINDS[kind](rng) for kind in kinds))
    model.minimize(np.arange(6), rng.choice([-5, -3, -2, -1, 1, 2, 3, 5], 6), float(rng.integers(-3, 4)))
    return model, rng


def random_bounds(model, rng, around=None):
    """Return bounds that fix some variables and narrow others, containing `around` if given."""
    lower, upper = model.lower.copy(), model.upper.copy()
    for variable in range(model.num_vars):
        a, b = np.sort(rng.integers(lower[variable], upper[variable] + 1, 2))
        if around is not None:
            a, b = min(a, around[variable]), max(b, around[variable])
        chance = rng.random()
        if chance < 0.4:
            lower[variable] = upper[variable] = a if around is None else around[variable]
        elif chance < 0.7:
            lower[variable], upper[variable] = a, b
    return lower, upper


def check_restriction(model, lower, upper):
    """Assert equal optima and equivalent solutions within the bounds; return the optimum."""
    wanted = within(model, lower, upper)
    small = restrict(model, lower, upper)
    found = enumerate_model(small.model)
    assert found.optimum == wanted
    if wanted is not None:
        whole = small.expand(found.values)
        assert not violations(model, whole)
        assert ((whole >= lower) & (whole <= upper)).all()
        assert model.objective.value(whole) == wanted
    for point in itertools.product(*(np.arange(a, b + 1) for a, b in zip(lower, upper, strict=True))):
        values = np.array(point, dtype=np.float64)
        if not violations(model, values):
            part = small.reduce(values)
            assert not violations(small.model, part)
            assert small.model.objective.value(part) == model.objective.value(values)
    return wanted


@pytest.mark.parametrize("kind", few(KINDS, 4))
def test_optimum_equals_that_of_the_original(kind):
    """Bounds around a solution if one exists, and random bounds."""
    solved = 0
    for seed in range(6):
        model, rng = random_model(seed, kind)
        solution = enumerate_model(model).values
        found = check_restriction(model, *random_bounds(model, rng, solution))
        assert (found is None) == (solution is None)
        solved += found is not None
        check_restriction(model, *random_bounds(model, rng))
    assert solved >= 1


@pytest.mark.parametrize("step", [3, pytest.param(1, marks=pytest.mark.slow)])
def test_pairs_of_records(step):
    answers = []
    for seed, (first, second) in [*enumerate(itertools.combinations(KINDS, 2))][::step]:
        model, rng = random_model(seed, first, second)
        answers.append(check_restriction(model, *random_bounds(model, rng)))
    assert 5 <= answers.count(None) <= len(answers) - 5


def test_fixed_variables_leave_an_empty_model():
    model = Model("all")
    b, x = model.booleans("b", 2).index, model.integers("x", 2, 0, 5).index
    model.add(
        Clauses.pairs("either", b[:1], ~b[1:]),
        Linear.rows("after", [0, 0], x, [-1, 1], lower=[1], enforce=b[:1]),
        AllDifferent("different", x),
        Domain("even", x[:1], np.array([0, 3]), np.array([0, 2, 4])),
        Cumulative("use", x[:1], x[1:], np.array([3]), b[:1], 3),
        Reservoir("level", np.array([0, 2]), x, np.array([0, 0]), np.array([2, -1]), np.array([ALWAYS, ALWAYS])),
    )
    model.minimize(x, [1, 10], 7)
    values = np.array([1.0, 0, 2, 3])
    assert not violations(model, values)
    small = restrict(model, values, values)
    assert (small.model.num_vars, small.model.num_constraints) == (0, 0)
    assert small.model.objective.value(small.reduce(values)) == model.objective.value(values)
    assert small.expand(np.zeros(0)).tolist() == values.tolist()


def test_irrelevant_fixed_intervals_are_dropped():
    """Of a hundred fixed intervals, the free one can meet the capacity in one place only."""
    model = Model("stairs")
    start, end = model.integers("start", 101, 0, 200).index, model.integers("end", 101, 0, 200).index
    demand = np.ones(101, dtype=np.int64)
    model.add(Cumulative("use", start, end, demand, np.full(101, ALWAYS), 4))
    model.minimize(start[100:], 1)
    low, high = model.lower.copy(), model.upper.copy()
    low[start[:100]] = high[start[:100]] = np.arange(100)
    low[end[:100]] = high[end[:100]] = np.arange(100) + 3
    low[end[:1]] = high[end[:1]] = 5  # four overlap from 3 to 5
    low[end[100]] = high[end[100]] = 60
    small = restrict(model, low, high)
    (use,) = small.model.records
    assert len(use.start) == 2, "the free interval and the only full step"
    whole = small.expand(enumerate_model(small.model).values)
    assert whole[start[100]] == 5


def test_empty_bounds_are_refused():
    model = Model("none")
    model.integers("x", 2, 0, 3)
    with refused("model.no-value-left", culprit="x"):
        restrict(model, np.array([0, 4]), np.array([3, 5]))
    with refused("model.bounds-mismatch"):
        restrict(model, np.zeros(3), np.ones(3))
