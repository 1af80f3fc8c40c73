"""Choice of bridges in lowering."""

import numpy as np
import pytest
from refusals import refused

from remat.modeling import (
    AllDifferent,
    Clauses,
    Cumulative,
    Linear,
    Model,
    PlainLinear,
    Record,
    lower,
    violations,
)


@pytest.fixture
def mixed():
    model = Model("mixed")
    b, x = model.booleans("b", 2).index, model.integers("x", 2, 0, 3).index
    model.add(
        Clauses.pairs("either", b[:1], b[1:]),
        Linear.rows("after", [0, 0], x, [-1, 1], lower=[1], enforce=b[:1]),
        AllDifferent("different", x),
    )
    return model


def test_native_records_are_kept(mixed):
    lowered = lower(mixed, {Linear, Clauses, AllDifferent})
    assert lowered.model is mixed
    values = np.arange(4.0)
    assert lowered.extend(values).tolist() == values.tolist()
    assert lowered.extend(values) is not values


def test_only_foreign_records_are_rewritten_in_a_copy(mixed):
    before = (str(mixed), list(mixed.records), mixed.num_vars)
    lowered = lower(mixed, {Linear, AllDifferent})
    assert [type(record) for record in lowered.model.records] == [Linear, Linear, AllDifferent]
    assert lowered.model.records[1] is mixed.records[1], "rows with literals are linear"
    assert lowered.model.num_vars == mixed.num_vars
    assert lower(mixed, {PlainLinear, Clauses, AllDifferent}).model.records[1].enforce is None
    lowered = lower(mixed, {PlainLinear})
    assert (str(mixed), list(mixed.records), mixed.num_vars) == before
    assert lowered.source is mixed
    assert lowered.model.num_vars > mixed.num_vars
    assert lowered.model.blocks[: len(mixed.blocks)] == mixed.blocks
    assert lowered.model.objective is mixed.objective


class Strange(Record):
    name = "strange"

    def variables(self):
        return np.zeros(0, dtype=np.int64)

    def detail(self):
        return ""


def test_missing_bridges(mixed):
    model = Model("m")
    model.add(Strange())
    with refused("model.no-bridge", culprit="strange"):
        lower(model, {PlainLinear})
    with refused("model.unknown-record", culprit="strange"):
        violations(model, [])
    with refused("model.no-bridge", culprit="either"):
        lower(mixed, {Cumulative})


def test_unbounded_rows_have_no_big_m():
    model = Model("m")
    b, u = model.booleans("b", 1)[0], model.continuous("u", 1)[0]
    model.add(Linear.rows("low", [0], [u], 1, lower=[2], enforce=b))
    assert lower(model, {PlainLinear}).model.num_constraints == 1  # u >= 0 bounds this side
    model.add(Linear.rows("high", [0], [u], 1, upper=[2], enforce=b))
    with refused("model.no-bridge", culprit="high"):
        lower(model, {PlainLinear})


def test_domains_too_wide_for_order_encoding():
    model = Model("m")
    x = model.integers("x", 2, 0, 10**12)
    model.add(AllDifferent("different", x.index))
    with refused("model.no-bridge", culprit="different"):
        lower(model, {PlainLinear})
