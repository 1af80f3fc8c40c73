"""Matrices of several records."""

import numpy as np
import pytest
from refusals import refused
from scipy import sparse

from remat.modeling import ALWAYS, Clauses, Linear, Model
from remat.modeling.matrix import to_matrix


def test_records_are_stacked_and_repeated_entries_summed():
    rng = np.random.default_rng(3)
    model = Model("m")
    model.integers("x", 5, -1, [1, 2, 3, 4, 5])
    model.continuous("u", 2)
    model.implied("v", 1, 0, 9)
    model.booleans("b", 2)
    dense = []
    for name, rows in (("first", 4), ("second", 3)):
        row, column, value = rng.integers(0, rows, 30), rng.integers(0, 10, 30), rng.integers(-2, 3, 30)
        block = np.zeros((rows, 10))
        np.add.at(block, (row, column), value)
        dense.append(block)
        model.add(Linear.rows(name, row, column, value, lower=-np.arange(rows), upper=np.arange(rows) + 0.5))
    model.minimize([0, 3, 0], [1, 2.5, 4], 7)
    matrix = to_matrix(model)
    found = sparse.csr_array((matrix.values, matrix.indices, matrix.indptr), shape=matrix.shape)
    assert (found.toarray() == np.concatenate(dense)).all()
    assert found.has_canonical_format
    assert (matrix.values != 0).all()
    assert matrix.row_lower.tolist() == [0, -1, -2, -3, 0, -1, -2]
    assert matrix.row_upper.tolist() == [0.5, 1.5, 2.5, 3.5, 0.5, 1.5, 2.5]
    assert matrix.cost.tolist() == [5, 0, 0, 2.5, 0, 0, 0, 0, 0, 0]
    assert matrix.offset == 7
    assert matrix.integral.tolist() == [1, 1, 1, 1, 1, 0, 0, 0, 1, 1]
    assert matrix.upper.tolist() == [1, 2, 3, 4, 5, np.inf, np.inf, 9, 1, 1]
    assert matrix.indptr.dtype == matrix.indices.dtype == matrix.integral.dtype == np.int32


def test_always_enforced_rows_are_plain():
    model = Model("m")
    x = model.booleans("x", 1)
    model.add(Linear.rows("row", [0], x.index, 1, lower=[1], enforce=ALWAYS))
    assert to_matrix(model).row_lower.tolist() == [1]


@pytest.mark.parametrize(
    "record",
    [Clauses.pairs("other", [0], [1]), Linear.rows("other", [0], [0], 1, lower=[1], enforce=1)],
)
def test_nonlinear_records_are_refused(record):
    model = Model("m")
    model.booleans("x", 2)
    model.add(record)
    with refused("model.not-linear", culprit="other"):
        to_matrix(model)
