"""Messages and tolerances of the checker; bridges and backends test the records' meaning."""

import numpy as np
import pytest
from refusals import refused

from remat.modeling import Domain, Linear, Model, violations


def test_messages_name_record_row_and_number_of_others():
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
    model.implied("v", 1, 0, 3)
    assert violations(model, [3, 0.25, 0.5]) == []


def test_tolerance_is_relative_to_large_bounds_only():
    model = Model("m")
    model.continuous("u", 1)
    model.add(Linear.rows("large", [0], [0], 1, upper=[1e9]))
    assert violations(model, [1e9 + 100]) == []
    assert violations(model, [1e9 + 10_000]) != []
    assert violations(model, [-1e-5]) != []


def test_second_domain_of_a_variable_is_refused():
    model = Model("m")
    x = model.integers("x", 3, 0, 9).index
    model.add(Domain("first", x[:2], np.array([0, 1, 2]), np.array([1, 2])))
    model.add(Domain("other", x[2:], np.array([0, 1]), np.array([3])))
    with refused("model.second-domain", culprit="late"):
        model.add(Domain("late", x[1:2], np.array([0, 1]), np.array([2])))
    with refused("model.second-domain", culprit="twice"):
        Model("n", num_vars=2).add(Domain("twice", np.array([1, 1]), np.array([0, 1, 2]), np.array([1, 2])))
