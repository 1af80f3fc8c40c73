"""Records: families of constraints in arrays, never one object per row.

A *literal* is an integer: ``v >= 0`` states that Boolean variable ``v`` is true, ``~v`` (negative) that it is false.
:data:`ALWAYS` is the literal that is always true. Every record has a name for the printed table, a length (its number
of constraints) and the variables that it mentions.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field, fields, replace
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike

from remat.errors import ModelError
from remat.runtime.arrays import Bool, Float, Int

#: The literal that is always true.
ALWAYS = np.iinfo(np.int64).max


#: Metadata of record fields that hold variables, and of those that hold literals.
VARIABLE, LITERAL = {"role": "variable"}, {"role": "literal"}


def variables_of(literals: Int) -> Int:
    """Return the variables behind `literals`, without those that are :data:`ALWAYS`."""
    used = literals[literals != ALWAYS]
    return np.where(used < 0, ~used, used)


def decoded(literals: Int) -> tuple[Int, Bool, Bool]:
    """Return the variable of each literal (0 where constant), whether it is negated, and whether it is ALWAYS."""
    constant, negative = literals == ALWAYS, literals < 0
    return np.where(constant, 0, np.where(negative, ~literals, literals)), negative, constant


def truth(literals: Int, lower: Float, upper: Float) -> Int:
    """Return 1 for literals that the bounds of the variables make true, −1 for false, 0 for undecided ones."""
    variable, negative, constant = decoded(literals)
    if not len(lower):
        return np.ones(len(literals), dtype=np.int64)
    sign = np.where(lower[variable] > 0.5, 1, np.where(upper[variable] < 0.5, -1, 0))
    return np.where(constant, 1, np.where(negative, -sign, sign))


def _ints(values: ArrayLike) -> Int:
    return np.asarray(values, dtype=np.int64).ravel()


class Record(ABC):
    """A family of constraints: a frozen dataclass whose metadata mark the fields of variables and of literals."""

    name: str

    def __len__(self) -> int:
        """Return the number of constraints."""
        return 1

    def _with_role(self, role: dict[str, str]) -> Iterator[tuple[str, Any]]:
        """Yield names and values of the fields with a role, except None."""
        for item in fields(self):  # type: ignore[arg-type]
            if item.metadata == role and (value := getattr(self, item.name)) is not None:
                yield item.name, value

    def variables(self) -> Int:
        """Return the numbers of the variables mentioned, with repetitions."""
        parts = [_ints(value) for _, value in self._with_role(VARIABLE)]
        parts += [variables_of(value) for _, value in self._with_role(LITERAL)]
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def renumbered(self, number: Int) -> Self:
        """Return the record with variable ``v`` replaced by ``number[v]``.

        Examples
        --------
        >>> Clauses.pairs("either", [3], [~4]).renumbered(np.array([-1, -1, -1, 0, 1])).literals
        array([ 0, -2])
        """
        new: dict[str, Any] = {}
        for name, value in self._with_role(VARIABLE):
            new[name] = number[value] if isinstance(value, np.ndarray) else int(number[value])
        for name, value in self._with_role(LITERAL):
            variable, negative, constant = decoded(value)
            variable = number[variable] if len(number) else variable
            new[name] = np.where(constant, ALWAYS, np.where(negative, ~variable, variable))
        return replace(self, **new)  # type: ignore[type-var]

    @abstractmethod
    def detail(self) -> str:
        """Return a short description of the size, for the printed table."""


class GroupedRecord(Record):
    """Constraints over entries; entries ``indptr[i]:indptr[i + 1]`` belong to constraint ``i``."""

    indptr: Int

    def __len__(self) -> int:
        return len(self.indptr) - 1

    @property
    def owner(self) -> Int:
        """Constraint of each entry."""
        return np.repeat(np.arange(len(self), dtype=np.int64), np.diff(self.indptr))


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
    column: Int = field(metadata=VARIABLE)
    value: Float
    lower: Float
    upper: Float
    enforce: Int | None = field(default=None, metadata=LITERAL)

    @classmethod
    def rows(  # noqa: PLR0913 - the fields of the record
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
        """Build from coordinates; `value` and bounds are broadcast. `num_rows` defaults to the longest of them."""
        rows, columns = _ints(row), _ints(column)
        if num_rows is None:
            # A scalar bound fits any number of rows, including none.
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

    def detail(self) -> str:
        text = f"{len(self.value):,} non-zeros"
        return text if self.enforce is None else text + f", {int((self.enforce != ALWAYS).sum()):,} enforced"


@dataclass(frozen=True, eq=False)
class Clauses(GroupedRecord):
    """Clauses: at least one literal of each is true.

    Attributes
    ----------
    indptr : int64 array, shape (clauses + 1,)
    literals : int64 array
        Clause ``i`` is ``literals[indptr[i]:indptr[i + 1]]``.
    """

    name: str
    indptr: Int
    literals: Int = field(metadata=LITERAL)

    @classmethod
    def pairs(cls, name: str, first: ArrayLike, second: ArrayLike) -> Clauses:
        """Build clauses of two literals each."""
        both = np.stack([_ints(first), _ints(second)], axis=1)
        return cls(name, np.arange(0, both.size + 1, 2, dtype=np.int64), both.ravel())

    @classmethod
    def grouped(cls, name: str, group: ArrayLike, literal: ArrayLike, num_groups: int) -> Clauses:
        """Build one clause for each group, from (group, literal) pairs in any order."""
        groups, literals = _ints(group), _ints(literal)
        by_group = np.argsort(groups, kind="stable")
        indptr = np.zeros(num_groups + 1, dtype=np.int64)
        np.cumsum(np.bincount(groups, minlength=num_groups), out=indptr[1:])
        return cls(name, indptr, literals[by_group])

    def detail(self) -> str:
        return f"{len(self.literals):,} literals"


@dataclass(frozen=True, eq=False)
class Domain(GroupedRecord):
    """Each variable takes one of its listed values.

    Attributes
    ----------
    variable : int64 array, shape (variables,)
    indptr : int64 array, shape (variables + 1,)
    values : int64 array
        Ascending within each variable.
    """

    name: str
    variable: Int = field(metadata=VARIABLE)
    indptr: Int
    values: Int

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
        Integer variable that replaces `capacity`.
    """

    name: str
    start: Int = field(metadata=VARIABLE)
    end: Int = field(metadata=VARIABLE)
    demand: Int
    presence: Int = field(metadata=LITERAL)
    capacity: int = 0
    capacity_variable: int | None = field(default=None, metadata=VARIABLE)

    def detail(self) -> str:
        return f"{len(self.start):,} intervals"


@dataclass(frozen=True, eq=False)
class Reservoir(GroupedRecord):
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
    time: Int = field(metadata=VARIABLE)
    offset: Int
    change: Int
    active: Int = field(metadata=LITERAL)

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
    variable: Int = field(metadata=VARIABLE)

    def detail(self) -> str:
        return f"{len(self.variable):,} variables"


@dataclass(frozen=True, eq=False)
class NoOverlap(GroupedRecord):
    """Of any two present intervals of a group, one ends before the other starts, or at that time.

    That also holds for intervals of no length, which are therefore not strictly inside others. A present interval also
    has ``start <= end``.

    Attributes
    ----------
    indptr : int64 array, shape (groups + 1,)
        Intervals ``indptr[i]:indptr[i + 1]`` belong to group ``i``.
    start, end : int64 arrays, shape (intervals,)
        Integer variables.
    presence : int64 array, shape (intervals,)
        Literals.
    """

    name: str
    indptr: Int
    start: Int = field(metadata=VARIABLE)
    end: Int = field(metadata=VARIABLE)
    presence: Int = field(metadata=LITERAL)

    def detail(self) -> str:
        return f"{len(self.start):,} intervals"


@dataclass(frozen=True, eq=False)
class NoOverlap2D(Record):
    """No two present rectangles ``[first, first + width) x [second, second + height)`` share a point.

    A rectangle without width or height has no points.

    Attributes
    ----------
    first, second : int64 arrays, shape (rectangles,)
        Integer variables: lower left corner.
    width, height : int64 arrays, shape (rectangles,)
        Non-negative.
    presence : int64 array, shape (rectangles,)
        Literals.
    """

    name: str
    first: Int = field(metadata=VARIABLE)
    second: Int = field(metadata=VARIABLE)
    width: Int
    height: Int
    presence: Int = field(metadata=LITERAL)

    def detail(self) -> str:
        return f"{len(self.first):,} rectangles"
