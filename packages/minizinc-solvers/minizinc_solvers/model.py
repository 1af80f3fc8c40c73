"""FlatZinc model: variables, constraints, outputs and the objective."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, TypeAlias


class VarKind(Enum):
    """Kind of a FlatZinc variable."""

    BOOL = "bool"
    INT = "int"
    FLOAT = "float"


@dataclass(frozen=True, slots=True)
class IntSet:
    """Set of integers as ascending, disjoint, closed ranges.

    Examples
    --------
    >>> IntSet.of([5, 1, 2])
    IntSet(ranges=((1, 2), (5, 5)))
    """

    ranges: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, values: Sequence[int]) -> IntSet:
        """Return the set of `values`."""
        ranges: list[tuple[int, int]] = []
        for value in sorted(set(values)):
            if ranges and value == ranges[-1][1] + 1:
                ranges[-1] = (ranges[-1][0], value)
            else:
                ranges.append((value, value))
        return cls(tuple(ranges))

    @classmethod
    def between(cls, low: int, high: int) -> IntSet:
        """Return ``low..high``, empty if `low` is greater."""
        return cls(((low, high),) if low <= high else ())


@dataclass(slots=True, eq=False)
class Variable:
    """A variable.

    Attributes
    ----------
    name : str
    kind : VarKind
    index : int
        Number in the model.
    domain : IntSet, pair of float, or None
        None: unbounded (or Boolean).
    """

    name: str
    kind: VarKind
    index: int
    domain: IntSet | tuple[float, float] | None = None


Scalar: TypeAlias = "bool | int | float | IntSet | Variable"
Argument: TypeAlias = "Scalar | list[Any]"


@dataclass(slots=True, eq=False)
class Constraint:
    """Constraint ``name(arguments)`` of `line`."""

    name: str
    arguments: list[Argument]
    line: int


@dataclass(frozen=True, slots=True)
class Output:
    """Printed part of a solution: ``name = value``.

    Attributes
    ----------
    shape : tuple of (int, int), or None
        Index ranges of an array; None for a single value.
    """

    name: str
    values: tuple[Any, ...]
    shape: tuple[tuple[int, int], ...] | None = None


@dataclass(eq=False)
class FlatZinc:
    """A FlatZinc model.

    Attributes
    ----------
    goal : str
        ``"satisfy"``, ``"minimize"`` or ``"maximize"``.
    objective : Variable, number or None
    """

    variables: list[Variable] = field(default_factory=list)
    constraints: list[Constraint] = field(default_factory=list)
    outputs: list[Output] = field(default_factory=list)
    goal: str = "satisfy"
    objective: Any = None
