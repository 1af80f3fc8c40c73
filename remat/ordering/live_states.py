"""States of a search backward over the tensors that must be live, with an index of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from remat.ordering.live_sets import Sets
from remat.runtime.arrays import Bool, Int

Hashes = NDArray[np.uint64]

#: Bytes of a state with its place in the index.
STATE_BYTES = 120


class Batch(NamedTuple):
    """New states: needed tensors, stage, cost of the steps that follow, row of the state after, and op between them."""

    need: Sets
    stage: Int
    spent: Int
    parent: Int
    op: Int

    def at(self, rows: Int | Bool) -> Batch:
        """Return some of the states."""
        return Batch(self.need[:, rows], *(values[rows] for values in self[1:]))


@dataclass(eq=False)
class States:
    """All states, by row; an index of them; and the rows to expand."""

    words: int
    count: int = 0
    open: Int = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    _index: list[tuple[Hashes, Int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.need = np.zeros((self.words, 1024), dtype=np.uint64)
        self.stage, self.spent, self.total, self.parent = (np.zeros(1024, dtype=np.int64) for _ in range(4))
        self.op = np.zeros(1024, dtype=np.int16)
        self.closed = np.zeros(1024, dtype=np.bool_)
        """States that were expanded at their current cost."""

    def cheapest(self, most: int, limit: int) -> Int:
        """Remove and return the rows to expand with the least totals, all below `limit`."""
        total = self.total[self.open]
        below = np.flatnonzero(total < limit)
        if len(below) > most:
            below = below[np.argpartition(total[below], most)[:most]]
        rows, self.open = self.open[below], np.delete(self.open, below)
        self.closed[rows] = True
        return rows

    def find(self, need: Sets, stage: Int) -> Int:
        """Return the rows of states, and -1 where there is none."""
        hashes, rows = _hash(need, stage), np.full(len(stage), -1, dtype=np.int64)
        for known, row in self._index:
            at = np.searchsorted(known, hashes)
            at[at == len(known)] = 0
            hit = np.flatnonzero(known[at] == hashes)
            found = row[at[hit]]
            same = (self.stage[found] == stage[hit]) & (self.need[:, found] == need[:, hit]).all(axis=0)
            rows[hit[same]] = found[same]
        return rows

    def lowered(self, new: Batch) -> Batch:
        """Lower the costs of states that are stored already; return the other ones."""
        row = self.find(new.need, new.stage)
        known = row >= 0
        better = known.copy()
        better[known] = new.spent[known] < self.spent[row[known]]
        rows = row[better]
        self.total[rows] -= self.spent[rows] - new.spent[better]
        self.spent[rows], self.parent[rows], self.op[rows] = new.spent[better], new.parent[better], new.op[better]
        again = rows[self.closed[rows]]
        self.closed[again] = False
        self.open = np.concatenate([self.open, again])
        return new.at(~known)

    def add(self, new: Batch, total: Int) -> None:
        """Store different new states."""
        if not len(total):
            return
        end = self.count + len(total)
        while end > len(self.stage):
            self.need = np.concatenate([self.need, np.zeros_like(self.need)], axis=1)
            for name in ("stage", "spent", "total", "parent", "op", "closed"):
                values = getattr(self, name)
                setattr(self, name, np.concatenate([values, np.zeros_like(values)]))
        rows = np.arange(self.count, end)
        self.need[:, rows], self.stage[rows], self.spent[rows] = new.need, new.stage, new.spent
        self.parent[rows], self.op[rows], self.total[rows] = new.parent, new.op, total
        self.count, self.open = end, np.concatenate([self.open, rows])
        self._index.append(_sorted(_hash(new.need, new.stage), rows))
        while len(self._index) > 1 and 2 * len(self._index[-1][1]) >= len(self._index[-2][1]):
            (one, a), (other, b) = self._index.pop(), self._index.pop()
            self._index.append(_sorted(np.concatenate([other, one]), np.concatenate([b, a])))


def _sorted(hashes: Hashes, rows: Int) -> tuple[Hashes, Int]:
    order = np.argsort(hashes, kind="stable")
    return hashes[order], rows[order]


def _hash(need: Sets, stage: Int) -> Hashes:
    """Return hashes of states. Where two states share one, only the first is found, which costs time only."""
    mixed = stage.astype(np.uint64) * np.uint64(0xC2B2AE3D27D4EB4F)
    for word in need:
        mixed = (mixed ^ word) * np.uint64(0xFF51AFD7ED558CCD)
        mixed ^= mixed >> np.uint64(32)
    return mixed
