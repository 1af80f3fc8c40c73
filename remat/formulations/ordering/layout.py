"""Tables of the formulations of orders: the precedence relation, and the first and last ops of tensors."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from remat.graphs.arrays import Csr
from remat.modeling.rows import expand
from remat.problem import Problem
from remat.problem.op_sequence import standing_buffers
from remat.runtime.arrays import Bool, Int
from remat.runtime.deadline import Deadline


def rows_where(table: Csr, which: Bool) -> Csr:
    """Return the rows that a mask of shape (rows,) selects."""
    ends = np.concatenate([[0], np.cumsum(table.counts[which])])
    return Csr(ends, table.indices[which[table.rows]])


class OrderLayout:
    """Precedence relation of the ops, and tensors held from the first of some ops to the last of others.

    Raise OverdueError at the deadline.

    Attributes
    ----------
    earlier : bool array, shape (ops, ops)
        ``earlier[v, u]``: u is an ancestor of v, so that it comes before v in every order.
    arcs : int64 array, shape (2, arcs)
        Pairs (u, v) whose order implies that of all others: the transitive reduction.
    size : int64 array, shape (held,)
        Bytes. Tensors with the same first and last ops are merged. Graph inputs, which are always live, and tensors
        that are neither read nor kept are left out.
    first : Csr
        Writers of each tensor of which one comes first in any order; more than one only for accumulation buffers.
    last : Csr
        Readers of each tensor of which one comes last in any order. A tensor that is kept to the end has one of its
        first writers instead.
    kept : bool array, shape (held,)
    workspace : int64 array, shape (ops,)
        Bytes that each op holds during its own step only, including results that are neither read nor kept.
    """

    def __init__(self, problem: Problem, deadline: Deadline) -> None:
        arrays = problem.graph.arrays
        self.earlier, self.arcs = closure(arrays.op_predecessors, arrays.order, deadline)
        unread = ~arrays.is_input & (arrays.consumers.counts == 0) & ~problem.kept
        self.workspace = standing_buffers(problem)[1]
        alone = (unread & (arrays.producers.counts == 1))[arrays.op_outputs.indices]
        np.add.at(self.workspace, arrays.op_outputs.rows[alone], arrays.size[arrays.op_outputs.indices[alone]])
        held: dict[tuple[tuple[int, ...], tuple[int, ...]], int] = {}
        producers, consumers = arrays.producers.lists(), arrays.consumers.lists()
        for tensor in deadline.each(np.flatnonzero(~arrays.is_input & ~unread & (arrays.size > 0)).tolist(), 100):
            first = _extreme(producers[tensor], self.earlier.T)
            last = () if problem.kept[tensor] else _extreme(consumers[tensor], self.earlier)
            held[first, last] = held.get((first, last), 0) + int(arrays.size[tensor])
        self.size = np.array(list(held.values()), dtype=np.int64)
        self.first = _table([first for first, _ in held])
        self.last = _table([last or first[:1] for first, last in held])
        self.kept = np.array([not last for _, last in held], dtype=np.bool_)

    @property
    def soonest(self) -> Int:
        """First possible position of each op, from 1: after its ancestors; shape (ops,)."""
        return 1 + self.earlier.sum(axis=1)

    @property
    def latest(self) -> Int:
        """Last possible position of each op, from 1: before its descendants; shape (ops,)."""
        return len(self.workspace) - self.earlier.sum(axis=0)


def _table(rows: Collection[tuple[int, ...]]) -> Csr:
    """Return rows of ops as a table."""
    row, _ = expand([len(ops) for ops in rows])
    return Csr.from_pairs(row, np.array([op for ops in rows for op in ops], dtype=np.int64), len(rows))


def closure(predecessors: Csr, order: Int, deadline: Deadline) -> tuple[Bool, Int]:
    """Return the ancestors of every op, and the pairs (predecessor, op) that no longer path implies.

    ``earlier[v, u]`` is true if u is an ancestor of v; the pairs have shape (2, arcs).
    """
    before = predecessors.lists()
    earlier = np.zeros((len(order), len(order)), dtype=np.bool_)
    arcs: list[tuple[int, int]] = []
    for op in deadline.each(order.tolist(), 100):
        if not before[op]:
            continue
        beyond: Bool = np.logical_or.reduce(earlier[before[op]], axis=0)
        arcs += [(u, op) for u in before[op] if not beyond[u]]
        earlier[op] = beyond
        earlier[op, before[op]] = True
    return earlier, np.array(arcs, dtype=np.int64).reshape(-1, 2).T


def _extreme(ops: list[int], earlier: Bool) -> tuple[int, ...]:
    """Return those of `ops` that no other of them must follow; ``earlier[v, u]`` means that u comes before v."""
    if len(ops) == 1:
        return (ops[0],)
    followed = np.logical_or.reduce(earlier[np.ix_(ops, ops)], axis=0)
    return tuple(op for op, other in zip(ops, followed.tolist(), strict=True) if not other)
