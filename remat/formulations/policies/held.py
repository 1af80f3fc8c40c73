"""Memory over the slots of a policy: a sure part, and columns that hold a tensor from one slot to another."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from remat.formulations.policies.lives import NEVER, Life
from remat.modeling.records import Linear
from remat.modeling.rows import rows_from
from remat.runtime.arrays import Int


@dataclass(frozen=True)
class Columns:
    """Columns of the choices.

    Attributes
    ----------
    replayed, plain : mapping of int to int
        x of each op of a region, and q of its region.
    region_of : mapping of int to int
    first_held : int
        First column of N and L.
    """

    replayed: Mapping[int, int]
    plain: Mapping[int, int]
    region_of: Mapping[int, int]
    first_held: int


class HeldMemory:
    """Memory over the slots, in bytes."""

    def __init__(self, count: int) -> None:
        self.sure = np.zeros(count + 1, dtype=np.int64)
        """Change of the sure memory before each slot."""
        self.pieces: list[tuple[int, int, int, int]] = []
        """(column, bytes, first slot, last slot): before these slots the column holds bytes."""
        self.own: list[list[tuple[int | None, int]]] = [[] for _ in range(count)]
        """Bytes that a slot needs for itself, with the column on which that depends (None: always)."""

    def hold(self, column: int | None, size: int, after: int, until: int) -> None:
        """Hold `size` bytes times a column (None: 1) after one slot and up to another."""
        until = min(until, len(self.own) - 1)
        if after >= until:
            return
        if column is None:
            self.sure[after + 1] += size
            self.sure[until + 1] -= size
        else:
            self.pieces.append((column, size, after + 1, until))

    @property
    def most(self) -> Int:
        """Bytes at each slot if every column is 1; shape (slots,)."""
        change = self.sure.copy()
        for _, size, first, last in self.pieces:
            change[first] += size
            change[last + 1] -= size
        held: Int = np.cumsum(change)[:-1]
        return held + np.array([sum(size for _, size in own) for own in self.own], dtype=np.int64)

    def changes(self) -> tuple[Int, Int, Int]:
        """Slot, column and bytes of each change of what columns hold."""
        entries = [
            entry
            for column, size, first, last in self.pieces
            for entry in ((first, column, size), (last + 1, column, -size))
            if entry[0] < len(self.own)
        ]
        slot, column, size = np.array(entries, dtype=np.int64).reshape(-1, 3).T
        return slot, column, size


class _Least(NamedTuple):
    """Row ``target >= constant + sum of coefficient * column``."""

    target: int
    entries: tuple[tuple[int, int], ...]
    constant: int = 0


class Held:
    """Columns N and L with their rows, made from the lives of tensors."""

    def __init__(self, columns: Columns, memory: HeldMemory) -> None:
        self.columns, self.memory, self.count = columns, memory, 0
        self._rows: list[_Least] = []

    def _column(self) -> int:
        self.count += 1
        return self.columns.first_held + self.count - 1

    def add(self, life: Life) -> None:
        """Add the memory of one tensor."""
        size, memory = life.size, self.memory
        memory.own[life.first].append((None, size))
        memory.hold(None, size, life.first, life.early)
        if life.again == NEVER:
            self._tail(size, life.early, life.early_tail)
            return
        needed = self._needed(life)
        self._tail(size, life.early, life.early_tail, needed)
        memory.hold(needed, size, max([life.early, *(slot for slot, _ in life.early_tail)]), life.again)
        memory.own[life.again].append((self.columns.replayed[life.writer], size))
        memory.hold(None, size, life.again, life.late)
        self._tail(size, max(life.again, life.late), life.late_tail)

    def _needed(self, life: Life) -> int:
        """Add N, with the rows (3)."""
        at, column = self.columns, self._column()
        x, q = at.replayed[life.writer], at.plain[life.writer]
        if life.late != NEVER:
            self._rows.append(_Least(column, ((x, -1),), 1))
            return column
        self._rows.append(_Least(column, ((x, -1), (q, -1)), 1))
        region = at.region_of[life.writer]
        self._rows += [
            _Least(column, ((at.replayed[op], 1), (x, -1))) for _, op in life.late_tail if at.region_of[op] != region
        ]
        return column

    def _tail(self, size: int, start: int, reads: list[tuple[int, int]], onward: int | None = None) -> None:
        """Add L of possible reads after slot `start`, with the rows (4); `onward` holds the tensor after them."""
        own = [self._column() for _ in reads]
        for column, (_, op) in zip(reversed(own), reversed(reads), strict=True):
            self._rows.append(_Least(column, ((self.columns.replayed[op], 1),)))
            if onward is not None:
                self._rows.append(_Least(column, ((onward, 1),)))
            onward = column
        for column, (slot, _) in zip(own, reads, strict=True):
            self.memory.hold(column, size, start, slot)
            start = slot

    def rows(self, name: str) -> Linear:
        """Return the rows (3) and (4); each begins with its own N or L, and reads only those of earlier rows."""
        entries = [
            entry
            for number, row in enumerate(self._rows)
            for entry in ((number, row.target, 1), *((number, column, -value) for column, value in row.entries))
        ]
        number, column, value = np.array(entries, dtype=np.int64).reshape(-1, 3).T
        lower = [row.constant for row in self._rows]
        return rows_from(name, (number, column, value), num_rows=len(self._rows), lower=lower)
