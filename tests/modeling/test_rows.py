"""Rows built in bulk."""

import numpy as np
import pytest
from refusals import refused

from remat.modeling import Model, violations
from remat.modeling.rows import NONE, ONE, rows_from


@pytest.mark.parametrize("seed", range(20))
def test_rows_equal_the_sums_of_their_terms(seed):
    """Compared with a loop; columns NONE and ONE, coefficients as numbers and arrays."""
    rng = np.random.default_rng(seed)
    model = Model("rows")
    x = model.integers("x", 5, 0, 3)
    terms = [
        (rng.integers(0, 4, 6), rng.choice([NONE, ONE, *x.index], 6), value)
        for value in (1, -2.5, rng.integers(-3, 4, 6))
    ]
    lower, upper = rng.integers(-9, 0, 4), rng.integers(0, 9, 4)
    model.add(rows_from("sums", *terms, num_rows=4, lower=lower, upper=upper))
    for values in rng.integers(0, 4, (40, 5)).astype(float):
        sums = np.zeros(4)
        for rows, columns, coefficients in terms:
            for row, column, coefficient in zip(rows, columns, np.broadcast_to(coefficients, 6), strict=True):
                sums[row] += coefficient * (1 if column == ONE else 0 if column == NONE else values[column])
        assert bool(violations(model, values)) == bool(((sums < lower) | (sums > upper)).any())


def test_rows_out_of_range_are_refused():
    with refused("model.coordinates"):
        rows_from("few", ([0, 2], [0, 1], 1), num_rows=2, upper=1)
    with pytest.raises(ValueError, match="broadcast"):
        rows_from("few", ([0, 1], [0, 1, 2], 1), num_rows=2, upper=1)


def test_rows_without_terms_and_with_literals():
    record = rows_from("none", num_rows=3, lower=[0, 1, 2], enforce=[0, 1, 2])
    assert len(record) == 3
    assert record.enforce.tolist() == [0, 1, 2]
    assert rows_from("none", num_rows=0).lower.shape == (0,)
