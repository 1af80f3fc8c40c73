"""Families of lower sets of the forward graph."""

from __future__ import annotations

import numpy as np

from remat.graphs.arrays import Csr, staircase
from remat.problem.op_sequence import allowed_computes
from remat.problem.training_step import TrainingStep
from remat.runtime.arrays import Bool
from remat.runtime.deadline import Deadline


class ForwardGraph:
    """Forward ops of a training step by position, with the edges among them and the bytes of their values.

    Attributes
    ----------
    num_ops : int
    producer, consumer : int64 arrays, shape (edges,)
    cost, size : int64 arrays, shape (num_ops,)
        Cost, and bytes of the outputs that have readers and are not kept to the end anyway.
    held : bool array, shape (num_ops,)
        True for ops that are not recomputed: limited to one compute, or one of several writers of a buffer.

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
        ops = arrays.order[: self.num_ops]
        self.cost = arrays.cost[ops]
        passing = np.where(problem.kept | (arrays.consumers.counts == 0), 0, arrays.size)
        self.size = arrays.op_outputs.sums(passing)[ops]
        self.held = allowed_computes(problem, 2)[ops] == 1

    def boundary(self, members: Bool) -> Bool:
        """Return the ops of a lower set that an op outside reads."""
        leaving = members[self.producer] & ~members[self.consumer]
        rim = np.zeros(self.num_ops, dtype=np.bool_)
        rim[self.producer[leaving]] = True
        return rim

    def beyond(self, members: Bool) -> int:
        """Return the bytes of the readers of a lower set outside it, and of all that these read outside it.

        Kusumoto et al.'s last two terms of the peak, M(δ⁺(L) - L) + M(δ⁻(δ⁺(L)) - L).
        """
        readers = np.zeros(self.num_ops, dtype=np.bool_)
        readers[self.consumer[members[self.producer]]] = True
        read = np.zeros(self.num_ops, dtype=np.bool_)
        read[self.producer[readers[self.consumer]]] = True
        return int(self.size[readers & ~members].sum() + self.size[read & ~members].sum())


def all_lower_sets(graph: ForwardGraph, most: int, deadline: Deadline) -> Bool | None:
    """Return all sets of forward ops closed under inputs, by size; shape (sets, ops). None: more than `most`.

    Raises
    ------
    OverdueError
        At the deadline.

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
    bytes are still to be read.

    Raises
    ------
    OverdueError
        At the deadline.
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
