"""Families of lower sets of the forward graph, and the dynamic programme over chains of them within a budget."""

from __future__ import annotations

from bisect import bisect_left

import numpy as np
from numpy.typing import NDArray

from remat.graphs.arrays import Csr, staircase
from remat.problem.op_sequence import allowed_computes
from remat.problem.training_step import TrainingStep
from remat.runtime.arrays import Bool, Float
from remat.runtime.deadline import Deadline


class ForwardGraph:
    """Forward ops of a training step by position, with the edges among them and the bytes of their values.

    Examples
    --------
    >>> from remat.graphs.families import unit_chain
    >>> from remat.problem import Problem
    >>> graph = ForwardGraph(TrainingStep.of(Problem(unit_chain(3))))
    >>> graph.producer.tolist(), graph.consumer.tolist(), graph.size.tolist()
    ([0, 1], [1, 2], [1, 1, 1])
    """

    def __init__(self, step: TrainingStep) -> None:
        problem, arrays = step.problem, step.problem.graph.arrays
        self.num_ops = step.num_forward
        inside = step.edges[1] < self.num_ops
        pairs = np.unique(np.stack([edge[inside] for edge in step.edges]), axis=1)
        self.producer, self.consumer = pairs
        """`producer` and `consumer`: shape (edges,)."""
        ops = arrays.order[: self.num_ops]
        self.cost = arrays.cost[ops]
        passing = np.where(problem.kept | (arrays.consumers.counts == 0), 0, arrays.size)
        self.size = arrays.op_outputs.sums(passing)[ops]
        """`cost` and `size`: cost, and bytes of the outputs that have readers and are not kept to the end anyway. Shape
        (num_ops,)."""
        self.held = allowed_computes(problem, 2)[ops] == 1
        """True for ops that are not recomputed: limited to one compute, or one of several writers of a buffer. Shape
        (num_ops,)."""

    def boundary(self, members: Bool) -> Bool:
        """Return the ops of a lower set that an op outside reads."""
        leaving = members[self.producer] & ~members[self.consumer]
        rim = np.zeros(self.num_ops, dtype=np.bool_)
        rim[self.producer[leaving]] = True
        return rim

    def beyond(self, members: Bool) -> int:
        """Return the bytes of the ops outside a lower set that read it, and of all ops outside it that those read.

        Kusumoto et al.'s last two terms of the peak, M(δ⁺(L) - L) + M(δ⁻(δ⁺(L)) - L).
        """
        readers = np.zeros(self.num_ops, dtype=np.bool_)
        readers[self.consumer[members[self.producer]]] = True
        read = np.zeros(self.num_ops, dtype=np.bool_)
        read[self.producer[readers[self.consumer]]] = True
        return int(self.size[readers & ~members].sum() + self.size[read & ~members].sum())


def all_lower_sets(graph: ForwardGraph, most: int, deadline: Deadline) -> Bool | None:
    """Return all sets of forward ops closed under inputs, by size; shape (sets, ops). None: more than `most`.

    Raise OverdueError at the deadline.

    Examples
    --------
    >>> from remat.graphs.families import unit_chain
    >>> from remat.problem import Problem
    >>> all_lower_sets(ForwardGraph(TrainingStep.of(Problem(unit_chain(2)))), 10, Deadline()).astype(int).tolist()
    [[0, 0], [1, 0], [1, 1]]
    """
    needs = [0] * graph.num_ops
    for u, v in zip(graph.producer.tolist(), graph.consumer.tolist(), strict=True):
        needs[v] |= 1 << u
    found = {0}
    level = [0]
    while level:
        following: set[int] = set()
        for members in deadline.each(level, 16):
            for op, need in enumerate(needs):
                if not members >> op & 1 and need & members == need:
                    following.add(members | 1 << op)
            if len(found) + len(following) > most:
                return None
        found |= following
        level = list(following)
    sets = np.array([[members >> op & 1 for op in range(graph.num_ops)] for members in found], dtype=np.bool_)
    return sets[np.lexsort((*sets.T, sets.sum(axis=1)))]


def ancestor_closures(graph: ForwardGraph, most: int, deadline: Deadline) -> Bool:
    """Return the closure of each op under inputs, the empty set and all ops, by size; at most `most` sets.

    With more ops, the reference order is cut into that many runs, and each contributes the op after which the fewest
    bytes are still to be read. Raise OverdueError at the deadline.
    """
    last = np.arange(graph.num_ops)
    np.maximum.at(last, graph.producer, graph.consumer)
    crossing = staircase(np.arange(graph.num_ops), last, graph.size, graph.num_ops)
    runs = np.array_split(np.arange(graph.num_ops), min(graph.num_ops, max(1, most - 2)))
    chosen = [int(run[crossing[run].argmin()]) for run in runs]
    inputs = Csr.from_pairs(graph.consumer, graph.producer, graph.num_ops)
    sets = np.zeros((len(chosen) + 2, graph.num_ops), dtype=np.bool_)
    sets[-1] = True
    for row, op in enumerate(deadline.each(chosen, 1), 1):
        sets[row, op] = sets[row, inputs.reachable(op)] = True
    sets = np.unique(sets, axis=0)
    return sets[np.argsort(sets.sum(axis=1), kind="stable")]


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
        remain exact if the units are integers.

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
        """Return True if a chain fits the budget, at any cost."""
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
