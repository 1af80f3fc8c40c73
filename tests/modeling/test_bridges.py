"""Every bridge against the definition of its record, for all assignments of tiny random models."""

import itertools

import numpy as np
import pytest
from helpers import some_slow

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
from remat.testing.raw_models import KINDS

highspy = pytest.importorskip("highspy")


def linear_solver(model):
    """Return HiGHS with a lowered model, independent of the backend under test."""
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
    """True when the model is feasible with the first variables fixed to `values`."""
    index = np.arange(len(values), dtype=np.int32)
    solver.changeColsBounds(len(values), index, values, values)
    solver.run()
    status = solver.getModelStatus()
    assert status in {highspy.HighsModelStatus.kOptimal, highspy.HighsModelStatus.kInfeasible}
    return status == highspy.HighsModelStatus.kOptimal


def assert_equivalent(model):
    """Assert that an assignment satisfies `model` if and only if it extends to the lowered rows, also by `extend`.

    Return the number of solutions.
    """
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


def random_model(kind, seed):
    """Return a random model with a record of a kind, fixed and narrowed variables, and some listed values."""
    rng, model = np.random.default_rng(seed), Model(kind)
    fixed = np.where(rng.random(3) < 0.25, rng.integers(0, 2, 3), -1)
    model.booleans("b", 3, fixed == 1, fixed != 0)
    low = rng.integers(-1, 2, 3)
    integers = model.integers("x", 3, low, low + rng.integers(0, 3, 3)).index
    record = KINDS[kind](rng)
    model.add(record)
    if kind != "domain" and seed % 3 == 0:
        add_domain(rng, model, integers)
    return model


def add_domain(rng, model, variables):
    """Restrict some variables to listed values with gaps."""
    chosen = variables[rng.random(len(variables)) < 0.5]
    values = []
    for variable in chosen:
        span = np.arange(model.lower[variable] - 1, model.upper[variable] + 2)
        kept = span[rng.random(len(span)) < 0.6]
        values.append(kept if len(kept) else span[:1])
    if len(chosen):
        indptr = np.cumsum([0, *map(len, values)])
        model.add(Domain("domain", chosen, indptr, np.concatenate(values).astype(np.int64)))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seeds", [(3, 6, 8, 10, 11), pytest.param(range(20), marks=pytest.mark.slow)], ids=len)
def test_solutions_match_the_records(kind, seeds):
    assert sum(assert_equivalent(random_model(kind, seed)) > 0 for seed in seeds) >= 2


@pytest.mark.parametrize("seed", some_slow(range(5), 1))
def test_records_share_one_encoding(seed):
    """Integers, some with listed values, and Booleans, which encode themselves."""
    rng, model = np.random.default_rng(seed), Model("mixed")
    x, b = model.integers("x", 3, 0, 3).index, model.booleans("b", 2).index
    add_domain(rng, model, np.append(x, b[:1]))
    model.add(
        AllDifferent("different", np.append(x[:2], b[0])),
        Cumulative("use", x[:2], x[1:], np.array([1, 2]), b, 2),
        Reservoir("level", np.array([0, 2]), x[:2], np.array([0, 1]), np.array([1, -1]), np.array([ALWAYS, b[0]])),
        Linear.rows("rows", [0, 0, 1, 1], [x[0], b[0], x[1], b[1]], [2, 1, 1, -1], lower=[1, 0], enforce=[~b[1], b[0]]),
    )
    assert_equivalent(model)
    orders = [block for block in lower(model, {PlainLinear}).model.blocks if block.name == "order"]
    assert sum(block.index.size for block in orders) <= 9


CONTRADICTIONS = [
    Clauses.grouped("no literals", [], [], 1),
    AllDifferent("one variable twice", np.array([0, 0])),
    Cumulative("negative capacity", np.array([0]), np.array([1]), np.array([0]), np.array([ALWAYS]), -1),
    Domain("no value", np.array([0]), np.array([0, 1]), np.array([7])),
]


@pytest.mark.parametrize("record", CONTRADICTIONS, ids=lambda record: record.name)
def test_contradictions_stay_infeasible(record):
    model = Model("infeasible")
    model.integers("x", 2, 0, 2)
    model.add(record)
    assert assert_equivalent(model) == 0


def test_big_m_is_minimal_and_redundant_rows_are_omitted():
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
    assert lowered.num_vars == model.num_vars + 3  # the fourth interval is disjoint in time
    assert [type(record) for record in lowered.records] == [Linear]


def test_extend_keeps_unknown_values_unknown():
    model = Model("hints")
    x = model.integers("x", 2, 0, 2).index
    model.add(AllDifferent("different", x))
    lowered = lower(model, {PlainLinear})
    extended = lowered.extend(np.array([1.0, np.nan]))
    assert extended[:1].tolist() == [1]
    assert np.isnan(extended).tolist() == [False, True, False, False, True, True]
