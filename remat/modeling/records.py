"""Records: families of constraints in arrays, never one object per row.

A *literal* is an integer: ``v >= 0`` says that Boolean variable ``v`` is true, ``~v`` (negative) that it is false.
:data:`ALWAYS` is the literal that is always true. Every record has a name for the printed table, a length (the number
of constraints it stands for) and knows the variables it mentions.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from remat.errors import ModelError

Int = NDArray[np.int64]
Float = NDArray[np.float64]

#: The literal that is always true.
ALWAYS = np.iinfo(np.int64).max


def variables_of(literals: Int) -> Int:
    """The variables behind `literals` (without those that are :data:`ALWAYS`)."""
    used = literals[literals != ALWAYS]
    return np.where(used < 0, ~used, used)


def _ints(values: ArrayLike) -> Int:
    return np.asarray(values, dtype=np.int64).ravel()


class Record(ABC):
    """A family of constraints."""

    name: str
    word: ClassVar[str]

    @abstractmethod
    def __len__(self) -> int:
        """Number of constraints."""

    @abstractmethod
    def variables(self) -> Int:
        """Numbers of the variables mentioned, with repetitions."""

    @abstractmethod
    def detail(self) -> str:
        """A few words on size, for the printed table."""


@dataclass(frozen=True, eq=False)
class Linear(Record):
    """Rows ``lower <= sum(value * x[column]) <= upper``, each required only where its literal `enforce` is true.

    Attributes
    ----------
    row, column : int64 arrays, shape (non-zeros,)
        Coordinates; a pair may repeat (its values add up). `row` need not be sorted.
    value : float64 array, shape (non-zeros,)
    lower, upper : float64 arrays, shape (rows,)
        May be infinite.
    enforce : int64 array, shape (rows,), or None
        Literals; None: all rows always hold.
    """

    name: str
    row: Int
    column: Int
    value: Float
    lower: Float
    upper: Float
    enforce: Int | None = None

    @classmethod
    def rows(
        cls,
        name: str,
        row: ArrayLike,
        column: ArrayLike,
        value: ArrayLike,
        *,
        lower: ArrayLike = -np.inf,
        upper: ArrayLike = np.inf,
        num_rows: int | None = None,
        enforce: ArrayLike | None = None,
    ) -> Linear:
        """From coordinates; `value`, `lower` and `upper` are broadcast. `num_rows` defaults to the longest of them."""
        rows, columns = _ints(row), _ints(column)
        if num_rows is None:
            # a scalar bound fits any number of rows, also none
            num_rows = max(
                *(np.size(bound) if np.ndim(bound) else 0 for bound in (lower, upper)), rows.max(initial=-1) + 1
            )
        values = np.broadcast_to(np.asarray(value, dtype=np.float64).ravel(), rows.shape)
        low = np.broadcast_to(np.asarray(lower, dtype=np.float64), (num_rows,))
        high = np.broadcast_to(np.asarray(upper, dtype=np.float64), (num_rows,))
        literals = None if enforce is None else np.broadcast_to(np.asarray(enforce, dtype=np.int64), (num_rows,))
        if len(rows) != len(columns) or (len(rows) and (rows.min() < 0 or rows.max() >= num_rows)):
            raise ModelError(f"record {name!r} has coordinates that do not fit its {num_rows} rows", "coordinates")
        return cls(name, rows, columns, values, low, high, literals)

    def __len__(self) -> int:
        return len(self.lower)

    def variables(self) -> Int:
        if self.enforce is None:
            return self.column
        return np.concatenate([self.column, variables_of(self.enforce)])

    def detail(self) -> str:
        text = f"{len(self.value):,} non-zeros"
        return text if self.enforce is None else text + f", {int((self.enforce != ALWAYS).sum()):,} enforced"


@dataclass(frozen=True, eq=False)
class Clauses(Record):
    """Each clause: at least one of its literals is true.

    Attributes
    ----------
    indptr : int64 array, shape (clauses + 1,)
    literals : int64 array
        Clause ``i`` is ``literals[indptr[i]:indptr[i + 1]]``.
    """

    name: str
    indptr: Int
    literals: Int

    @classmethod
    def pairs(cls, name: str, first: ArrayLike, second: ArrayLike) -> Clauses:
        """Clauses of two literals each."""
        both = np.stack([_ints(first), _ints(second)], axis=1)
        return cls(name, np.arange(0, both.size + 1, 2, dtype=np.int64), both.ravel())

    @classmethod
    def grouped(cls, name: str, group: ArrayLike, literal: ArrayLike, num_groups: int) -> Clauses:
        """One clause for each group, from (group, literal) pairs in any order."""
        groups, literals = _ints(group), _ints(literal)
        by_group = np.argsort(groups, kind="stable")
        indptr = np.zeros(num_groups + 1, dtype=np.int64)
        np.cumsum(np.bincount(groups, minlength=num_groups), out=indptr[1:])
        return cls(name, indptr, literals[by_group])

    def __len__(self) -> int:
        return len(self.indptr) - 1

    def variables(self) -> Int:
        return variables_of(self.literals)

    def detail(self) -> str:
        return f"{len(self.literals):,} literals"


@dataclass(frozen=True, eq=False)
class Domain(Record):
    """Each variable takes one of its listed values.

    Attributes
    ----------
    variable : int64 array, shape (variables,)
    indptr : int64 array, shape (variables + 1,)
    values : int64 array
        Ascending within each variable.
    """

    name: str
    variable: Int
    indptr: Int
    values: Int

    def __len__(self) -> int:
        return len(self.variable)

    def variables(self) -> Int:
        return self.variable

    def detail(self) -> str:
        return f"{len(self.values):,} values"


@dataclass(frozen=True, eq=False)
class Cumulative(Record):
    """At every time, the demands of the present intervals ``[start, end)`` that cover it sum to at most the capacity.

    A present interval also has ``start <= end``.

    Attributes
    ----------
    start, end : int64 arrays, shape (intervals,)
        Integer variables.
    demand : int64 array, shape (intervals,)
        Non-negative.
    presence : int64 array, shape (intervals,)
        Literals.
    capacity : int
    capacity_variable : int or None
        An integer variable to be used instead of `capacity`.
    """

    name: str
    start: Int
    end: Int
    demand: Int
    presence: Int
    capacity: int = 0
    capacity_variable: int | None = None

    def __len__(self) -> int:
        return 1

    def variables(self) -> Int:
        extra = [] if self.capacity_variable is None else [self.capacity_variable]
        return np.concatenate([self.start, self.end, variables_of(self.presence), np.array(extra, dtype=np.int64)])

    def detail(self) -> str:
        return f"{len(self.start):,} intervals"


@dataclass(frozen=True, eq=False)
class Reservoir(Record):
    """Reservoirs, each with a level that starts at 0, is changed by active events, and never falls below 0.

    All events at the same time act together.

    Attributes
    ----------
    indptr : int64 array, shape (reservoirs + 1,)
        Events ``indptr[i]:indptr[i + 1]`` belong to reservoir ``i``.
    time : int64 array, shape (events,)
        Integer variables.
    offset : int64 array, shape (events,)
        Added to the time variable.
    change : int64 array, shape (events,)
    active : int64 array, shape (events,)
        Literals.
    """

    name: str
    indptr: Int
    time: Int
    offset: Int
    change: Int
    active: Int

    def __len__(self) -> int:
        return len(self.indptr) - 1

    def variables(self) -> Int:
        return np.concatenate([self.time, variables_of(self.active)])

    def detail(self) -> str:
        return f"{len(self.time):,} events"


@dataclass(frozen=True, eq=False)
class AllDifferent(Record):
    """The variables take pairwise different values.

    Attributes
    ----------
    variable : int64 array, shape (variables,)
        Integer variables.
    """

    name: str
    variable: Int

    def __len__(self) -> int:
        return 1

    def variables(self) -> Int:
        return self.variable

    def detail(self) -> str:
        return f"{len(self.variable):,} variables"


@dataclass(frozen=True, eq=False)
class NoOverlap2D(Record):
    """No two present rectangles ``[first, first + width) x [second, second + height)`` share a point.

    A rectangle without width or height has no points.

    Attributes
    ----------
    first, second : int64 arrays, shape (rectangles,)
        Integer variables: where each begins.
    width, height : int64 arrays, shape (rectangles,)
        Non-negative.
    presence : int64 array, shape (rectangles,)
        Literals.
    """

    name: str
    first: Int
    second: Int
    width: Int
    height: Int
    presence: Int

    def __len__(self) -> int:
        return 1

    def variables(self) -> Int:
        return np.concatenate([self.first, self.second, variables_of(self.presence)])

    def detail(self) -> str:
        return f"{len(self.first):,} rectangles"
