"""Every bridge against the definition of its record: all assignments of tiny random models."""

import itertools
from functools import partial

import numpy as np
import pytest

from remat.modeling import (
    ALWAYS,
    AllDifferent,
    Clauses,
    Cumulative,
    Domain,
    Linear,
    Model,
    NoOverlap2D,
    PlainLinear,
    Reservoir,
    lower,
    violations,
)
from remat.modeling.bridges import kind_of
from remat.modeling.matrix import to_matrix

highspy = pytest.importorskip("highspy")


def linear_solver(model):
    """HiGHS on a lowered model, used here without the backend under test."""
    matrix = to_matrix(model)
    solver = highspy.Highs()
    solver.setOptionValue("output_flag", False)
    solver.setOptionValue("threads", 1)
    rows, columns = matrix.shape
    solver.passModel(
        columns, rows, len(matrix.values), int(highspy.MatrixFormat.kRowwise), int(highspy.ObjSense.kMinimize), 0.0,
        matrix.cost, matrix.lower, matrix.upper, matrix.row_lower, matrix.row_upper,
        matrix.indptr, matrix.indices, matrix.values, matrix.integral,
    )  # fmt: skip
    return solver


def feasible_with(solver, values):
    """Whether the first variables can be fixed to `values`."""
    index = np.arange(len(values), dtype=np.int32)
    solver.changeColsBounds(len(values), index, values, values)
    solver.run()
    status = solver.getModelStatus()
    assert status in {highspy.HighsModelStatus.kOptimal, highspy.HighsModelStatus.kInfeasible}
    return status == highspy.HighsModelStatus.kOptimal


def assert_equivalent(model):
    """Each assignment satisfies `model` exactly when the lowered rows can be satisfied, and then `extend` does it."""
    lowered, with_literals = lower(model, {PlainLinear}), lower(model, {Linear, Clauses})
    assert {kind_of(record) for record in lowered.model.records} <= {PlainLinear}
    solver = linear_solver(lowered.model)
    boxes = [np.arange(a, b + 1) for a, b in zip(model.lower, model.upper, strict=True)]
    good = 0
    for assignment in itertools.product(*boxes):
        values = np.array(assignment)
        wanted = violations(model, values) == []
        good += wanted
        assert feasible_with(solver, values) == wanted, f"{values} {violations(model, values)}\n{model}"
        for each in (lowered, with_literals):
            assert (violations(each.model, each.extend(values)) == []) == wanted
    return good


def random_literals(rng, booleans, count, always=0.2):
    literals = rng.choice(booleans, count)
    literals = np.where(rng.random(count) < 0.4, ~literals, literals)
    return np.where(rng.random(count) < always, ALWAYS, literals)


def some_booleans(rng, model, count):
    """Booleans, now and then one that is fixed."""
    lower = (rng.random(count) < 0.15).astype(int)
    upper = np.maximum(lower, (rng.random(count) < 0.85).astype(int))
    return model.booleans("b", count, lower, upper).index


def some_integers(rng, model, count, width=3):
    lower = rng.integers(-2, 2, count)
    return model.integers("x", count, lower, lower + rng.integers(0, width + 1, count)).index


def thin(rng, model, variables):
    """A domain with gaps for some variables."""
    chosen = variables[rng.random(len(variables)) < 0.5]
    values = []
    for variable in chosen:
        span = np.arange(model.lower[variable] - 1, model.upper[variable] + 2)
        kept = span[rng.random(len(span)) < 0.6]
        values.append(kept if len(kept) else span[:1])
    indptr = np.cumsum([0, *map(len, values)])
    if len(chosen):
        model.add(Domain("domain", chosen, indptr, np.concatenate(values).astype(np.int64)))


def clauses(rng, model, seed):
    booleans = some_booleans(rng, model, 4)
    return [Clauses.grouped("clauses", rng.integers(0, 4, 9), random_literals(rng, booleans, 9, 0.1), 4)]


def enforced(rng, model, seed):
    booleans, integers = some_booleans(rng, model, 2), some_integers(rng, model, 2)
    rows = 4
    row, column = rng.integers(0, rows, 10), rng.choice(np.concatenate([booleans, integers]), 10)
    low = np.where(rng.random(rows) < 0.3, -np.inf, rng.integers(-6, 3, rows))
    high = np.where(rng.random(rows) < 0.3, np.inf, np.where(np.isinf(low), 0, low) + rng.integers(0, 4, rows))
    literals = random_literals(rng, booleans, rows)
    return [Linear.rows("rows", row, column, rng.integers(-3, 4, 10), lower=low, upper=high, enforce=literals)]


def domains(rng, model, seed):
    integers = some_integers(rng, model, 3, width=5)
    thin(rng, model, np.concatenate([integers, model.booleans("b", 1).index]))
    return []


def all_different(rng, model, seed):
    integers = some_integers(rng, model, 4)
    thin(rng, model, integers)
    return [AllDifferent("different", np.concatenate([integers, model.booleans("b", 1).index]))]


def cumulative(rng, model, seed, variable=None):
    start, end = some_integers(rng, model, 2), some_integers(rng, model, 2)
    booleans, capacity = some_booleans(rng, model, 2), int(rng.integers(0, 5))
    if variable is not None:
        variable = int(model.integers("capacity", 1, capacity - 1, capacity)[0])
    if seed % 3 == 0:
        thin(rng, model, np.concatenate([start, end]))
    presence, demand = random_literals(rng, booleans, 2, 0.4), rng.integers(0, 5, 2)
    return [Cumulative("use", start, end, demand, presence, capacity, variable)]


def shared_ends(rng, model, seed):
    """One interval begins where the other ends: half-open intervals do not meet."""
    x = model.integers("x", 4, 0, [2, 3, 3, 3]).index
    presence = random_literals(rng, model.booleans("b", 2).index, 3, 0.5)
    return [Cumulative("use", x[:-1], x[1:], np.array([2, 3, 2]), presence, 3)]


def reservoir(rng, model, seed):
    times, booleans = some_integers(rng, model, 3), some_booleans(rng, model, 3)
    if seed % 3 == 0:
        thin(rng, model, times)
    events = 6
    cut = int(rng.integers(0, events + 1))
    return [
        Reservoir(
            "level", np.array([0, cut, events]), rng.choice(times, events), rng.integers(-2, 3, events),
            rng.integers(-2, 4, events), random_literals(rng, booleans, events, 0.4),
        )
    ]  # fmt: skip


def no_overlap(rng, model, seed):
    b = model.booleans("b", 1).index
    first = model.integers("step", 3, [0, 1, 1], [0, 1, 1]).index if seed % 2 else model.integers("x", 3, 0, 1).index
    second = model.integers("y", 3, 0, 2).index
    presence = np.array([ALWAYS, ALWAYS, rng.choice([ALWAYS, b[0], ~b[0]])])
    return [NoOverlap2D("apart", first, second, rng.integers(0, 3, 3), rng.integers(1, 3, 3), presence)]


def mixed(rng, model, seed):
    x, b = model.integers("x", 3, 0, 3).index, model.booleans("b", 2).index
    thin(rng, model, x)
    return [
        AllDifferent("different", x),
        Cumulative("use", x[:2], x[1:], np.array([1, 2]), b, 2),
        Reservoir("level", np.array([0, 2]), x[:2], np.array([0, 1]), np.array([1, -1]), np.array([ALWAYS, b[0]])),
    ]


#: Families of random models, and how many of each are tried.
FAMILIES = {
    clauses: 12, enforced: 25, domains: 25, all_different: 20, cumulative: 20, partial(cumulative, variable=True): 20,
    shared_ends: 6, reservoir: 30, no_overlap: 5, mixed: 8,
}  # fmt: skip


@pytest.mark.parametrize(
    ("family", "seed"), [(family, seed) for family, count in FAMILIES.items() for seed in range(count)]
)
def test_solutions_are_those_of_the_records(family, seed):
    rng, model = np.random.default_rng(seed), Model("random")
    model.add(*family(rng, model, seed))
    good = assert_equivalent(model)
    assert good or family is not shared_ends
    orders = [block for block in lower(model, {PlainLinear}).model.blocks if block.name == "order"]
    assert family is not mixed or sum(block.index.size for block in orders) <= 9  # records share one encoding


def without_literals(model):
    model.booleans("b", 1)
    return Clauses.grouped("clauses", [], [], 1)


def one_variable_twice(model):
    return AllDifferent("different", np.repeat(model.integers("x", 1, 0, 2).index, 2))


def negative_capacity(model):
    x = model.integers("x", 2, 0, 1).index
    return Cumulative("use", x[:1], x[1:], np.array([0]), np.array([ALWAYS]), -1)


@pytest.mark.parametrize("record", [without_literals, one_variable_twice, negative_capacity])
def test_what_cannot_be_stays_infeasible(record):
    model = Model("infeasible")
    model.add(record(model))
    assert assert_equivalent(model) == 0


def test_big_m_is_the_smallest_and_rows_that_cannot_fail_are_left_out():
    model = Model("big-M")
    b, x = model.booleans("b", 1)[0], model.integers("x", 1, 0, 5)[0]
    model.add(Linear.rows("rows", [0, 1, 1], [x, x, x], [1, 2, -1], lower=[2, -1], upper=[np.inf, 5], enforce=[b, ~b]))
    (row,) = lower(model, {PlainLinear}).model.records
    assert row.column.tolist() == [x, b]
    assert row.value.tolist() == [1, -2]  # x - 2 b >= 0
    assert row.lower.tolist() == [0]
    assert np.isinf(row.upper).all()


def test_fixed_steps_need_one_boolean_for_each_pair():
    model = Model("buffers")
    step = model.integers("step", 4, [0, 1, 2, 9], [0, 1, 2, 9]).index
    offset = model.integers("offset", 4, 0, 6).index
    everywhere = np.full(4, ALWAYS)
    model.add(NoOverlap2D("apart", step, offset, np.array([3, 3, 3, 1]), np.array([2, 3, 1, 5]), everywhere))
    lowered = lower(model, {Linear, Clauses}).model
    assert lowered.num_vars == model.num_vars + 3  # the fourth lives later
    assert [type(record) for record in lowered.records] == [Linear]


def test_extend_leaves_the_unknown_unknown():
    model = Model("hints")
    x = model.integers("x", 2, 0, 2).index
    model.add(AllDifferent("different", x))
    lowered = lower(model, {PlainLinear})
    extended = lowered.extend(np.array([1.0, np.nan]))
    assert extended[:1].tolist() == [1]
    assert np.isnan(extended).tolist() == [False, True, False, False, True, True]
