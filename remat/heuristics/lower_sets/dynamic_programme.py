"""Dynamic programme over chains of lower sets within a budget, for least or most recomputation."""

from __future__ import annotations

from bisect import bisect_left

import numpy as np
from numpy.typing import NDArray

from remat.heuristics.lower_sets.families import ForwardGraph
from remat.runtime.arrays import Bool, Float
from remat.runtime.deadline import Deadline

#: Rows of a matrix product between two checks of the clock.
ROWS = 64


#: Chain of lower sets, by the numbers of its sets; the last one has all ops.
Chain = tuple[int, ...]


class Programme:
    """Cost and memory of the transitions between lower sets, for all pairs, and the best chains for a budget.

    Parameters
    ----------
    graph : ForwardGraph
    sets : bool array, shape (sets, ops)
        By size, from the empty set to all ops.
    levels : int
        Number of distinct costs of recomputation: costs are rounded to units of the total cost divided by it, and
        exact if the units are whole.

    Raises
    ------
    OverdueError
        At the deadline.

    Notes
    -----
    Kusumoto, Inoue, Watanabe, Akiba and Koyama, *A Graph Theoretic Framework of Recomputation Algorithms for
    Memory-Efficient Backpropagation* (NeurIPS 2019), section 4. State (L, t) with the least M(U); from L to L', with
    V' = L' - L: t grows by T(V' - ∂L'), M(U) by M(∂L' - L), and while V' is run backward the peak is M(U) + 2 M(V') +
    M(δ⁺(L') - L') + M(δ⁻(δ⁺(L')) - L'). The last segment is still held when the backward pass begins, so t does not
    grow with it. Held ops (:class:`.ForwardGraph`) are in every boundary.
    """

    def __init__(self, graph: ForwardGraph, sets: Bool, levels: int, deadline: Deadline) -> None:
        self.graph, self.sets, self.deadline = graph, sets, deadline
        self.rims: Bool = np.array([graph.boundary(row) | (graph.held & row) for row in deadline.each(sets, 16)])
        self.beyond = np.array([graph.beyond(row) for row in deadline.each(sets, 16)], dtype=np.float64)
        members, rims = sets.astype(np.float64), self.rims.astype(np.float64)
        size, cost = graph.size.astype(np.float64), graph.cost.astype(np.float64)
        count = sets.sum(axis=1)
        self.below = (self._product(members, members) == count[:, None]) & (count[:, None] < count)
        bytes_of, cost_of = members @ size, members @ cost
        self.inside = 2.0 * (bytes_of - bytes_of[:, None]) + self.beyond
        # the part of a rim in the smaller set is already counted
        self.added = rims @ size - self._product(members, rims * size)
        recomputed = cost_of - cost_of[:, None] - (rims @ cost - self._product(members, rims * cost))
        recomputed[:, -1] = 0.0
        whole = int(graph.cost.sum())
        divisor = int(np.gcd.reduce(graph.cost)) or 1
        self.unit = max(divisor, whole / levels) if whole else 1.0
        self.steps = np.rint(recomputed / self.unit).astype(np.int64)
        self.steps[~self.below] = 0
        self.levels = int(whole / self.unit) + len(sets) // 2 + 2 if whole else 1  # rounding errors may accumulate

    def _product(self, left: Float, right: Float) -> Float:
        """Return ``left @ right.T``, computed some rows at a time."""
        parts = [left[k : k + ROWS] @ right.T for k in self.deadline.each(range(0, len(left), ROWS), 1)]
        return np.concatenate(parts)

    @property
    def most(self) -> int:
        """Peak with one segment, which recomputes nothing."""
        return int(self.inside[0, -1])

    def least(self) -> int:
        """Return the least budget that some chain fits, by bisection."""
        return bisect_left(range(self.most), True, key=self._feasible)

    def _feasible(self, budget: int) -> bool:
        """Return whether a chain fits the budget, at any cost."""
        memory = np.full(len(self.sets), np.inf)
        memory[0] = 0.0
        for row in self.deadline.each(range(1, len(self.sets)), 16):
            fits = self.below[:, row] & (memory + self.inside[:, row] <= budget)
            memory[row] = np.min((memory + self.added[:, row])[fits], initial=np.inf)
        return bool(np.isfinite(memory[-1]))

    def chains(self, budget: int, number: int = 2) -> tuple[Chain, ...]:
        """Return chains within a budget, from the one that recomputes least to the one that recomputes most, if any.

        The first is called time-centric, the last memory-centric: chains that recompute most store little, and need
        less memory once frees are pruned. Of `number` costs between, evenly spaced, each gives the chain that stores
        least.
        """
        num_sets = len(self.sets)
        table = np.full((num_sets, self.levels), np.inf)
        table[0, 0] = 0.0
        parent = np.full((num_sets, self.levels), -1, dtype=np.int32)
        for row in self.deadline.each(range(1, num_sets), 4):
            before = np.flatnonzero(self.below[:, row])
            room = budget - self.inside[before, row]
            use = np.flatnonzero(table[before].min(axis=1) <= room)
            before, room = before[use], room[use]
            if not len(before):
                continue
            came = np.arange(self.levels) - self.steps[before, row][:, None]
            memory = np.where(came >= 0, table[before[:, None], np.maximum(came, 0)], np.inf)
            memory = np.where(memory <= room[:, None], memory + self.added[before, row][:, None], np.inf)
            best = memory.argmin(axis=0)
            table[row] = memory[best, np.arange(self.levels)]
            parent[row] = np.where(np.isfinite(table[row]), before[best], -1)
        reached = np.flatnonzero(np.isfinite(table[-1]))
        spaced = np.linspace(0, len(reached) - 1, min(number, len(reached))).astype(np.int64)
        return tuple(self._back(parent, int(time)) for time in np.unique(reached[spaced]))

    def _back(self, parent: NDArray[np.int32], time: int) -> Chain:
        """Return the chain that ends with all ops at cost `time`."""
        row, at = len(self.sets) - 1, time
        chain = [row]
        while (row := int(parent[chain[-1], at])) > 0:
            at -= int(self.steps[row, chain[-1]])
            chain.append(row)
        return tuple(reversed(chain))
