"""Linear rows in bulk, built from terms, each of which is an array of coordinates.

A constraint such as "R[k,j] ≤ R[k,i] + S[k,i] for every edge (i, j) and stage k" is one call: number its rows, and give
row, column and coefficient of each term.
"""

from __future__ import annotations

import itertools
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from remat.modeling.model import Model, Vars
from remat.modeling.records import Linear
from remat.runtime.arrays import Bool, Float, Int

#: Special columns: a variable that does not exist (always 0), and one that is always 1.
NONE, ONE = -1, -2
#: Rows, columns and coefficients.
Term = tuple[ArrayLike, ArrayLike, ArrayLike]


def rows_from(
    name: str,
    *terms: Term,
    num_rows: int,
    lower: ArrayLike = -np.inf,
    upper: ArrayLike = np.inf,
    enforce: ArrayLike | None = None,
) -> Linear:
    """Return the rows ``lower <= sum of coefficient * variable <= upper``, built from terms.

    Raise ModelError if rows are out of range.

    Parameters
    ----------
    name : str
        Name of the record.
    *terms : (row, column, coefficient)
        Integer arrays of one shape, and a number or an array; scalars are broadcast. A row may have several entries
        of one term, or none. A column may be :data:`NONE` (the entry is omitted) or :data:`ONE` (its coefficient
        is subtracted from the bounds).
    num_rows : int
        Includes rows without entries.
    lower, upper : float, or float array of shape (rows,)
    enforce : int array, shape (rows,), optional
        Literals; a row is required only if its literal is true.

    Examples
    --------
    ``x[i] + 2 y[i] <= 4`` for three i, where ``y[2]`` is always 1:

    >>> model = Model("example")
    >>> x, y = model.integers("x", 3, 0, 9), model.integers("y", 2, 0, 9)
    >>> row = np.arange(3)
    >>> record = rows_from("few", (row, x.index, 1), (row, [y[0], y[1], ONE], 2), num_rows=3, upper=4)
    >>> record.row, record.column, record.value, record.upper
    (array([0, 1, 2, 0, 1]), array([0, 1, 2, 3, 4]), array([1., 1., 1., 2., 2.]), array([4., 4., 2.]))
    """
    rows, columns, values = [np.zeros(0, dtype=np.int64)], [np.zeros(0, dtype=np.int64)], [np.zeros(0)]
    sure = np.zeros(num_rows)
    for term in terms:
        arrays = (np.asarray(part, dtype=kind) for part, kind in zip(term, (np.int64, np.int64, float), strict=True))
        row, column, value = (part.ravel() for part in np.broadcast_arrays(*arrays))
        there, always = column >= 0, column == ONE
        if always.any():
            np.add.at(sure, row[always], value[always])
        rows.append(row[there])
        columns.append(column[there])
        values.append(value[there])
    low = np.broadcast_to(np.asarray(lower, dtype=np.float64), (num_rows,)) - sure
    high = np.broadcast_to(np.asarray(upper, dtype=np.float64), (num_rows,)) - sure
    return Linear.rows(
        name, np.concatenate(rows), np.concatenate(columns), np.concatenate(values),
        lower=low, upper=high, num_rows=num_rows, enforce=enforce,
    )  # fmt: skip


def column(block: Vars, number: Int) -> Int:
    """Return the columns of a block by number within it; :data:`NONE` and :data:`ONE` are kept."""
    return np.where(number >= 0, block.index[0] + number, number) if len(block) else number


def sum_rows(name: str, left: Int, *right: Int) -> Linear:
    """Return rows ``left <= sum of right``, one for each element; columns may be :data:`NONE` or :data:`ONE`.

    Examples
    --------
    >>> record = sum_rows("carry", np.array([3, ONE]), np.array([0, 1]), np.array([NONE, 2]))
    >>> record.column, record.value, record.upper
    (array([3, 0, 1, 2]), array([ 1., -1., -1., -1.]), array([ 0., -1.]))
    """
    row = np.arange(len(left), dtype=np.int64)
    return rows_from(name, (row, left, 1), *((row, each, -1) for each in right), num_rows=len(row), upper=0)


def difference_rows(
    name: str,
    greater: Int,
    smaller: Int,
    distance: ArrayLike = 0,
    enforce: ArrayLike | None = None,
    *,
    exact: bool = False,
) -> Linear:
    """Return rows ``greater − smaller >= distance`` (or ``==``), one for each element.

    `greater`, `smaller` and `distance` have an entry per row, `enforce` a literal without which the row is not
    required. With `exact`, the rows are equalities.
    """
    row, upper = np.arange(len(greater), dtype=np.int64), distance if exact else np.inf
    terms = ((row, greater, 1), (row, smaller, -1))
    return rows_from(name, *terms, num_rows=len(row), lower=distance, upper=upper, enforce=enforce)


class Coefficients(NamedTuple):
    """Coefficients of rows, ascending by row and column; each pair occurs once, and no value is 0."""

    row: Int
    column: Int
    value: Float

    def of_rows(self, rows: Int) -> Coefficients:
        """Return the coefficients of some rows, ascending, which are numbered from 0."""
        number = np.searchsorted(rows, self.row)
        there = rows[np.minimum(number, len(rows) - 1)] == self.row
        return Coefficients(number[there], self.column[there], self.value[there])


def coefficients(record: Linear, columns: int) -> Coefficients:
    """Return the coefficients of a record in a model of `columns` variables; repeated pairs are added up.

    SciPy's sparse matrices would do, but importing them takes a fifth of the time of a small solve.

    Examples
    --------
    >>> coefficients(Linear.rows("sum", [1, 0, 1], [2, 3, 2], [5, 1, 2], num_rows=2), 4)
    Coefficients(row=array([0, 1]), column=array([3, 2]), value=array([1., 7.]))
    """
    pair, value = record.row * columns + record.column, record.value
    if (pair[1:] <= pair[:-1]).any():
        ascending = np.argsort(pair, kind="stable")
        pair, value = pair[ascending], value[ascending]
        first = np.flatnonzero(np.append(True, pair[1:] != pair[:-1]))
        if len(first) < len(pair):
            pair, value = pair[first], np.add.reduceat(value, first)
    if not value.all():
        pair, value = pair[value != 0], value[value != 0]
    return Coefficients(*np.divmod(pair, max(1, columns)), value)


def expand(counts: ArrayLike) -> tuple[Int, Int]:
    """Return, for every element of groups of the given sizes, its group and its rank within the group.

    Replaces two nested loops: "for each group, for each of its elements".

    Examples
    --------
    >>> expand([2, 0, 1])
    (array([0, 0, 2]), array([0, 1, 0]))
    """
    sizes = np.asarray(counts, dtype=np.int64)
    owner = np.repeat(np.arange(len(sizes), dtype=np.int64), sizes)
    first = np.cumsum(sizes) - sizes
    return owner, np.arange(len(owner), dtype=np.int64) - first[owner]


def pieces(counts: ArrayLike, most: int) -> list[slice]:
    """Return slices of consecutive groups of about `most` elements together, or of one larger group.

    Parameters
    ----------
    counts : int array, shape (groups,)

    Examples
    --------
    >>> pieces([2, 1, 3, 1], 3)
    [slice(0, 2, None), slice(2, 3, None), slice(3, 4, None)]
    """
    piece = (np.cumsum(counts, dtype=np.int64) - 1) // most
    ends = [*(np.flatnonzero(np.diff(piece)) + 1).tolist(), len(piece)]
    return [slice(begin, end) for begin, end in itertools.pairwise([0, *ends]) if begin < end]


def last_of(*keys: Int) -> Bool:
    """Mark the last element of each run of equal keys."""
    same = np.logical_and.reduce([key[1:] == key[:-1] for key in keys])
    return np.append(~same, True)[: len(keys[0])]


def first_of(last: Bool) -> Bool:
    """Mark the first element of each run, from the marks of :func:`last_of`."""
    return np.append(True, last[:-1])[: len(last)]


def largest_onward(values: Float, last: Bool) -> Float:
    """Return, for each element, the largest value from there to the end of its run; values are between 0 and 1."""
    group = np.cumsum(last[::-1])
    return (np.maximum.accumulate(values[::-1] + 2 * group) - 2 * group)[::-1]


def sums_without(model: Model, name: str, block: Vars, values: Float) -> tuple[Float, Float]:
    """Return the lower bounds of a record's rows, and the sums of their terms outside a block of variables.

    Encoders use them to derive the values of variables that follow from others. Without a `Linear` record of that name,
    both arrays are empty.

    Examples
    --------
    >>> model = Model("example")
    >>> x, u = model.integers("x", 2, 0, 9), model.integers("u", 2, 0, 99)
    >>> row = np.arange(2)
    >>> model.add(rows_from("carry", (row, u.index, 1), (row, x.index, -3), num_rows=2, lower=[0, 5]))
    >>> low, sums = sums_without(model, "carry", u, np.array([1.0, 2.0, 0.0, 0.0]))
    >>> low - sums
    array([ 3., 11.])
    """
    for record in model.records:
        if isinstance(record, Linear) and record.name == name:
            other = ~np.isin(record.column, block.index)
            terms = record.value[other] * values[record.column[other]]
            return record.lower, np.bincount(record.row[other], terms, len(record)).astype(np.float64)
    return np.zeros(0), np.zeros(0)


def running_values(model: Model, name: str, block: Vars, values: Float, group: Int) -> Float:
    """Return the values of a block whose rows state the difference to the previous value, from 0 in each group.

    As for :func:`sums_without`; the record has a row for each variable of the block. `group` is ascending.
    """
    lower, other = sums_without(model, name, block, values)
    total = np.cumsum(lower - other)
    first = np.searchsorted(group, group)
    return total - np.where(first > 0, total[first - 1], 0)
