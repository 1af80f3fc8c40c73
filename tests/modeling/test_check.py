"""The checker against a second, naive reading of the records' definitions, one constraint and one time at a time."""

import numpy as np
import pytest
from refusals import refused

from remat.modeling import (
    ALWAYS,
    AllDifferent,
    Clauses,
    Cumulative,
    Domain,
    Linear,
    Model,
    NoOverlap2D,
    Reservoir,
    violations,
)
from remat.testing.raw_models import BOOLEANS, INTEGERS, KINDS


def truth(literal, values):
    if literal == ALWAYS:
        return True
    return bool(values[literal]) if literal >= 0 else not values[~literal]


def naive(record, values):
    """Whether `values` satisfy `record`, read word by word."""
    x = [int(v) for v in values]
    if isinstance(record, Cumulative):
        capacity = record.capacity if record.capacity_variable is None else x[record.capacity_variable]
        present = [i for i in range(len(record.start)) if truth(record.presence[i], x)]
        if any(x[record.start[i]] > x[record.end[i]] for i in present):
            return False
        return all(
            sum(record.demand[i] for i in present if x[record.start[i]] <= t < x[record.end[i]]) <= capacity
            for t in range(-20, 20)
        )
    if isinstance(record, Reservoir):
        return all(
            sum(
                record.change[e]
                for e in range(record.indptr[r], record.indptr[r + 1])
                if truth(record.active[e], x) and x[record.time[e]] + record.offset[e] <= t
            )
            >= 0
            for r in range(len(record))
            for t in range(-20, 20)
        )
    if isinstance(record, AllDifferent):
        return len({x[v] for v in record.variable}) == len(record.variable)
    if isinstance(record, NoOverlap2D):
        points = [
            (u, v)
            for i in range(len(record.first))
            if truth(record.presence[i], x)
            for u in range(x[record.first[i]], x[record.first[i]] + record.width[i])
            for v in range(x[record.second[i]], x[record.second[i]] + record.height[i])
        ]
        return len(points) == len(set(points))
    if isinstance(record, Domain):
        return all(
            x[record.variable[i]] in record.values[record.indptr[i] : record.indptr[i + 1]] for i in range(len(record))
        )
    if isinstance(record, Clauses):
        return all(
            any(truth(literal, x) for literal in record.literals[record.indptr[i] : record.indptr[i + 1]])
            for i in range(len(record))
        )
    assert isinstance(record, Linear)
    for i in range(len(record)):
        left = sum(v * x[c] for r, c, v in zip(record.row, record.column, record.value, strict=True) if r == i)
        enforced = record.enforce is None or truth(record.enforce[i], x)
        if enforced and not record.lower[i] <= left <= record.upper[i]:
            return False
    return True


@pytest.mark.parametrize("seed", range(50))
def test_agrees_with_the_definitions(seed):
    rng = np.random.default_rng(seed)
    model = Model("random")
    model.booleans("b", len(BOOLEANS)), model.integers("x", len(INTEGERS), -2, 4)
    for make in KINDS.values():
        alone, record = model.copy("alone"), make(rng)
        alone.add(record)
        for _ in range(12):
            values = np.concatenate([rng.integers(0, 2, 3), rng.integers(-2, 5, 3)]).astype(float)
            assert (violations(alone, values) == []) == naive(record, values), (record, values)


def test_names_the_record_the_row_and_the_number_of_others():
    model = Model("m")
    x = model.integers("x", 20, 0, 1)
    model.add(Linear.rows("each", np.arange(20), x.index, 1, lower=1))
    found = violations(model, np.zeros(20))
    assert found[0] == "record 'each' row 0: 0 is not in [1, inf]"
    assert found[-1] == "record 'each': 10 more"
    assert len(found) == 11


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([0.5, 0.5], "variable x[0] = 0.5 is not an integer in [0, 3]"),
        ([4, 0], "variable x[0] = 4 is not an integer in [0, 3]"),
        ([np.nan, 0], "variable x[0] = nan is not an integer in [0, 3]"),
        ([0, -1], "variable u[0] = -1 is not a number in [0, inf]"),
        ([0], "(1,) values for 2 variables"),
    ],
)
def test_bounds_and_integrality(values, message):
    model = Model("m")
    model.integers("x", 1, 0, 3)
    model.continuous("u", 1)
    assert violations(model, values) == [message]
    assert violations(model, [3, 0.25]) == []


def test_implied_variables_may_be_fractional():
    model = Model("m")
    model.implied("u", 1, 0, 3)
    assert violations(model, [0.5]) == []


def test_tolerance_is_relative_to_large_bounds_only():
    model = Model("m")
    model.continuous("u", 1)
    model.add(Linear.rows("large", [0], [0], 1, upper=[1e9]))
    assert violations(model, [1e9 + 100]) == []
    assert violations(model, [1e9 + 10_000]) != []
    assert violations(model, [-1e-5]) != []


def test_a_second_domain_of_a_variable_is_refused():
    model = Model("m")
    x = model.integers("x", 3, 0, 9).index
    model.add(Domain("first", x[:2], np.array([0, 1, 2]), np.array([1, 2])))
    model.add(Domain("other", x[2:], np.array([0, 1]), np.array([3])))
    with refused("model.second-domain", culprit="late"):
        model.add(Domain("late", x[1:2], np.array([0, 1]), np.array([2])))
    with refused("model.second-domain", culprit="twice"):
        Model("n", num_vars=2).add(Domain("twice", np.array([1, 1]), np.array([0, 1, 2]), np.array([1, 2])))
