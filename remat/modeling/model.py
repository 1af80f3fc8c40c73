"""Solver-neutral model: blocks of variables, records of constraints, linear objective."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from remat.errors import ModelError
from remat.modeling.records import Domain, Record
from remat.runtime.arrays import Float, Int


class Kind(Enum):
    """Kind of a variable; the value is its code in :attr:`Model.kind`."""

    CONTINUOUS = 0
    INTEGER = 1
    BOOLEAN = 2
    IMPLIED = 3
    """Continuous, but integral in some optimal solution. Linear solvers treat it as continuous, integer solvers as
    integer."""


@dataclass(frozen=True, eq=False)
class Vars:
    """A block of variables.

    Attributes
    ----------
    name : str
    index : int64 array of any shape
        Indices of the variables in the model; ``values[block.index]`` are their values, in the block's shape.
    kind : Kind
    """

    name: str
    index: Int
    kind: Kind

    def __getitem__(self, key: Any) -> Int:
        return self.index[key]

    def __len__(self) -> int:
        return len(self.index)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the block."""
        return self.index.shape


class Named:
    """Blocks of variables as attributes, by name."""

    def __init__(self, blocks: list[Vars]) -> None:
        vars(self).update((block.name, block) for block in blocks)

    def __getattr__(self, name: str) -> Vars:
        raise AttributeError(f"the model has no block {name!r}")


@dataclass(frozen=True, eq=False)
class Objective:
    """Objective to minimise: ``constant + sum(coefficient * values[index])``."""

    index: Int
    coefficient: Float
    constant: float = 0.0

    def value(self, values: NDArray) -> float:
        """Return the objective at `values`."""
        return float(self.constant + self.coefficient @ values[self.index])


@dataclass(eq=False)
class Model:
    """Variables, records and an objective to minimise; independent of graphs and solvers.

    Examples
    --------
    >>> from remat.modeling import Linear, Model
    >>> m = Model("knapsack")
    >>> take = m.booleans("take", 3)
    >>> m.add(Linear.rows("weight", [0, 0, 0], take.index, [4, 3, 2], upper=[6]))
    >>> m.minimize(take.index, [-5, -4, -3])
    >>> print(m)
    model knapsack: 3 variables, 1 constraint
      take      boolean  3   (3,)
      weight    linear   1   3 non-zeros
      minimise  3 terms
    """

    name: str
    blocks: list[Vars] = field(default_factory=list)
    records: list[Record] = field(default_factory=list)
    objective: Objective = field(
        default_factory=lambda: Objective(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.float64))
    )
    _lower: list[Float] = field(default_factory=list)
    _upper: list[Float] = field(default_factory=list)
    _kind: list[NDArray[np.int8]] = field(default_factory=list)
    num_vars: int = 0
    overrides: dict[str, Callable[[], Any]] = field(default_factory=dict)
    """Alternatives to the records, by family of backends; see :mod:`remat.modeling.alternatives`.

    Built on demand; a copy of the model has none."""

    def add_vars(
        self, name: str, shape: int | tuple[int, ...], kind: Kind, lower: ArrayLike = 0, upper: ArrayLike = 1
    ) -> Vars:
        """Add a block of variables; bounds are broadcast to `shape`, and those of continuous variables may be infinite.

        Raises
        ------
        ModelError
            If a bound is NaN, a lower bound exceeds its upper bound, or an integer variable is unbounded.
        """
        shape = (shape,) if isinstance(shape, int) else tuple(shape)
        size = int(np.prod(shape, dtype=np.int64))
        low = np.broadcast_to(np.asarray(lower, dtype=np.float64), shape).ravel()
        high = np.broadcast_to(np.asarray(upper, dtype=np.float64), shape).ravel()
        if np.isnan(low).any() or np.isnan(high).any() or (low > high).any():
            raise ModelError(f"block {name!r} has a lower bound above its upper bound, or a bound that is not a number")
        if kind is not Kind.CONTINUOUS and not (np.isfinite(low).all() and np.isfinite(high).all()):
            raise ModelError(f"{kind.name.lower()} block {name!r} needs finite bounds")
        index = np.arange(self.num_vars, self.num_vars + size, dtype=np.int64).reshape(shape)
        index.flags.writeable = False
        block = Vars(name, index, kind)
        self.blocks.append(block)
        self._lower.append(low)
        self._upper.append(high)
        self._kind.append(np.full(size, kind.value, dtype=np.int8))
        self.num_vars += size
        return block

    def booleans(self, name: str, shape: int | tuple[int, ...], lower: ArrayLike = 0, upper: ArrayLike = 1) -> Vars:
        """Add a block of 0/1 variables."""
        return self.add_vars(name, shape, Kind.BOOLEAN, lower, upper)

    def integers(self, name: str, shape: int | tuple[int, ...], lower: ArrayLike, upper: ArrayLike) -> Vars:
        """Add a block of bounded integers."""
        return self.add_vars(name, shape, Kind.INTEGER, lower, upper)

    def continuous(
        self, name: str, shape: int | tuple[int, ...], lower: ArrayLike = 0, upper: ArrayLike = np.inf
    ) -> Vars:
        """Add a block of real variables."""
        return self.add_vars(name, shape, Kind.CONTINUOUS, lower, upper)

    def implied(self, name: str, shape: int | tuple[int, ...], lower: ArrayLike, upper: ArrayLike) -> Vars:
        """Add a block of bounded variables that are integral whenever the integer ones are (:attr:`Kind.IMPLIED`)."""
        return self.add_vars(name, shape, Kind.IMPLIED, lower, upper)

    @property
    def lower(self) -> Float:
        """Lower bounds of all variables; shape (num_vars,)."""
        return self._gather(self._lower, np.float64)

    @property
    def upper(self) -> Float:
        """Upper bounds of all variables; shape (num_vars,)."""
        return self._gather(self._upper, np.float64)

    @property
    def kind(self) -> NDArray[np.int8]:
        """:class:`Kind` codes of all variables; shape (num_vars,)."""
        return self._gather(self._kind, np.int8)

    @staticmethod
    def _gather(parts: list, dtype: type) -> NDArray:
        if len(parts) > 1:  # concatenated once; later calls return the same array
            parts[:] = [np.concatenate(parts)]
        return parts[0] if parts else np.zeros(0, dtype=dtype)

    def add(self, *records: Record) -> None:
        """Add records; empty ones are dropped.

        Raises
        ------
        ModelError
            If a record names a variable that the model does not have, or is a second :class:`Domain` of a variable.
        """
        for record in records:
            if isinstance(record, Domain):
                self._check_listed(record)
            used = record.variables()
            if len(used) and (used.min() < 0 or used.max() >= self.num_vars):
                raise ModelError(f"record {record.name!r} names a variable that model {self.name!r} does not have")
            if len(record):
                self.records.append(record)

    def _check_listed(self, record: Domain) -> None:
        """Refuse a second :class:`Domain` of a variable."""
        listed = [r.variable for r in self.records if isinstance(r, Domain)]
        variables, counts = np.unique(np.concatenate([record.variable, *listed]), return_counts=True)
        if (counts > 1).any():
            raise ModelError(
                f"record {record.name!r} lists the values of variable {variables[counts.argmax()]} a second time",
                "second-domain",
                record.name,
            )

    def minimize(self, index: ArrayLike, coefficient: ArrayLike, constant: float = 0.0) -> None:
        """Set the objective; `coefficient` is broadcast to the shape of `index`."""
        where = np.asarray(index, dtype=np.int64)
        weights = np.broadcast_to(np.asarray(coefficient, dtype=np.float64), where.shape).ravel()
        self.objective = Objective(where.ravel(), weights, constant)

    def copy(self, name: str) -> Model:
        """Return an independent copy, sharing arrays, to which blocks and records can be added."""
        return Model(
            name, list(self.blocks), list(self.records), self.objective, list(self._lower), list(self._upper),
            list(self._kind), self.num_vars,
        )  # fmt: skip

    @property
    def named(self) -> Named:
        """Blocks added so far, as attributes.

        Examples
        --------
        >>> m = Model("knapsack")
        >>> take = m.booleans("take", 3)
        >>> m.named.take.index
        array([0, 1, 2])
        """
        return Named(self.blocks)

    @property
    def num_constraints(self) -> int:
        """Number of constraints in all records."""
        return sum(len(record) for record in self.records)

    def __str__(self) -> str:
        rows: list[tuple[str, str, str, str]] = [
            (b.name, b.kind.name.lower(), f"{b.index.size:,}", str(b.shape)) for b in self.blocks
        ]
        rows += [(r.name, type(r).__name__.lower(), f"{len(r):,}", r.detail()) for r in self.records]
        constraints = self.num_constraints
        head = (
            f"model {self.name}: {self.num_vars:,} variable{'s' * (self.num_vars != 1)}, "
            f"{constraints:,} constraint{'s' * (constraints != 1)}"
        )
        widths = [max([len(row[i]) for row in rows] + [8 if i == 0 else 0]) for i in range(3)]
        lines = [f"  {a:<{widths[0]}}  {b:<{widths[1]}}  {c:>{widths[2]}}   {d}".rstrip() for a, b, c, d in rows]
        lines.append(f"  {'minimise':<{widths[0]}}  {len(self.objective.index):,} terms")
        return "\n".join([head, *lines])
