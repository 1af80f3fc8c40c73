"""Linear rows for the memory of steps, from literals of the ops done before each step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from remat.formulations.ordering.layout import OrderLayout
from remat.graphs.arrays import Csr
from remat.modeling import ALWAYS, Linear, Model, Vars
from remat.modeling.bridges.literals import NEVER, literal_differences, literal_rows, literal_values
from remat.modeling.rows import pieces
from remat.runtime.arrays import Float, Int
from remat.runtime.deadline import Deadline

#: Entries of memory rows, constants included, that are built between two checks of the deadline: about 0.1 s.
ENTRIES = 1_000_000


@dataclass(frozen=True)
class Liveness:
    """Variables that mark when tensors are held, each with the literals that bound it from below."""

    entry: Int
    """Variable of each pair of a variable and a literal; a variable is the largest of its literals."""
    literal: Int
    """Literal of each pair."""

    def fill(self, values: Float) -> None:
        """Set the values of these variables from those of all others."""
        np.maximum.at(values, self.entry, literal_values(self.literal, values))


class MemoryLimit(NamedTuple):
    """Right-hand side of the rows for memory."""

    capacity: int
    """Units."""
    unit: int
    """Bytes."""
    tau: Vars | None
    """The capacity, if it is a variable."""


def add_memory(
    model: Model, layout: OrderLayout, done: Int, before: Int, limit: MemoryLimit, *, number: str, deadline: Deadline
) -> Liveness:
    """Add the rows that keep the memory of every step within the capacity.

    A tensor is *begun* in a step if one of its first ops is done by the end of the step. It is *wanted* if one of its
    last ops is not done before the step. It is held if it is both. Since not begun implies wanted, its bytes count
    begun + wanted − 1 times. With a single first or last op, begun or wanted is a literal of that op, and no variable.

    `done` and `before`, of shape (ops, steps), are literals, or constants, that are true if an op is done by the end of
    a step, and before it. `number` is that of the constraints, for the names of the records.
    """
    capacity, unit, tau = limit
    steps = done.shape[1]
    begun, some_begun = _largest(model, "begun", number, layout.first, done, deadline=deadline)
    wanted, some_wanted = _largest(model, "wanted", number, layout.last, ~before, deadline=deadline)
    some_wanted[layout.kept] = ALWAYS
    size = layout.size // unit
    working = np.flatnonzero(layout.workspace > 0)
    workspace = layout.workspace[working] // unit
    terms = [(some_begun, size), (some_wanted, size), (done[working], workspace), (before[working], -workspace)]
    if tau is not None:
        terms.append((np.full((1, steps), tau.index[0]), np.full(1, -1)))
    most = float(size.sum()) + (capacity if tau is None else 0)
    weight = np.concatenate([amount for _, amount in terms])
    rows = []
    for part in deadline.each(np.array_split(np.arange(steps), 1 + steps * len(weight) // ENTRIES), 1):
        literal = np.concatenate([literal[:, part] for literal, _ in terms])
        row = np.broadcast_to(np.arange(len(part)), literal.shape)
        rows.append(
            literal_rows(f"{number} memory", row.ravel(), literal.ravel(), np.repeat(weight, len(part)),
                         upper=np.full(len(part), most))
        )  # fmt: skip
    begin = np.cumsum([0, *map(len, rows)])
    row = np.concatenate([each.row + at for each, at in zip(rows, begin[:-1], strict=True)])
    column, value, lower, upper = (
        np.concatenate([getattr(each, name) for each in rows]) for name in ("column", "value", "lower", "upper")
    )
    model.add(Linear(f"{number} memory", row, column, value, lower, upper))
    return Liveness(*(np.concatenate(both) for both in zip(begun, wanted, strict=True)))


def _largest(
    model: Model, name: str, number: str, groups: Csr, literals: Int, *, deadline: Deadline
) -> tuple[tuple[Int, Int], Int]:
    """Return a literal for each group and step that is at least those of all ops of the group, and add its rows.

    The results are the pairs (variable, literal) that the rows state, for literals that are new variables; and the
    literals, of shape (groups, steps).
    """
    if not len(groups):
        model.implied(name, 0, 0, 1)
        return (literals[:0, 0], literals[:0, 0]), literals[:0]
    largest = np.empty((len(groups), literals.shape[1]), dtype=np.int64)
    new = np.empty(largest.shape, dtype=np.bool_)
    parts = pieces(groups.counts * literals.shape[1], ENTRIES)
    for part in deadline.each(parts, 1):
        start = groups.indptr[part]
        entries = literals[groups.indices[start[0] : groups.indptr[part.stop]]]
        start = start - start[0]
        sure = np.logical_or.reduceat(entries == ALWAYS, start, axis=0)
        is_open = (entries != ALWAYS) & (entries != NEVER)
        count = np.add.reduceat(is_open.astype(np.int64), start, axis=0)
        only = np.add.reduceat(np.where(is_open, entries, 0), start, axis=0)
        largest[part] = np.where(sure, ALWAYS, np.where(count == 0, NEVER, only))
        new[part] = ~sure & (count > 1)
    block = model.implied(name, int(new.sum()), 0, 1)
    largest[new] = block.index
    found = []
    for part in deadline.each(parts, 1):
        mine = slice(groups.indptr[part.start], groups.indptr[part.stop])
        row, entries = groups.rows[mine], literals[groups.indices[mine]]
        which = (entries != ALWAYS) & (entries != NEVER) & new[row]
        found.append((largest[row][which], entries[which]))
        model.add(literal_differences(f"{number} {name}", *found[-1]))
    entry, literal = (np.concatenate(each) for each in zip(*found, strict=True))
    return (entry, literal), largest
