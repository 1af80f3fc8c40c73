"""Minimum cuts over closed sets of ops, in exact integers.

The network speaks of a set ``D`` of ops on the source side that holds, with an op, all it depends on, and charges for
the tensors on the boundary of ``D``: those that some op in ``D`` writes and that are read outside ``D`` or kept.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from remat.compiled import KernelSet
from remat.deadline import Deadline, OverdueError
from remat.graphs.arrays import Csr
from remat.problem import Problem

Int = NDArray[np.int64]
#: A capacity that no cut reaches: the sum of all others must stay below it.
UNLIMITED = 2**62
#: Looks at arcs between two looks at the clock: some hundredths of a second.
STEPS = 5_000_000


def _example() -> None:
    pair = np.array([0, 1])
    _maximum_flow(np.array([1, 0]), np.array([1, 0]), pair, np.array([0, 1, 2]), 0, 1, Deadline())
    _reached(Csr.from_pairs(pair[:1], pair[1:], 2), 0)


#: The compiled flow.
KERNELS = KernelSet("flow", __name__, _example)


@dataclass(eq=False)
class BoundaryNetwork:
    """The network of a problem, made once; capacities and terminals are set for each cut.

    Nodes: each op ``u`` (in ``D`` if on the source side), its payment ``y(u)``, each tensor ``x(t)`` (on the sink side
    if somebody still needs it) and, for accumulation buffers, ``b(t)``. Arcs: ``u -> y(u)`` with the price of giving
    up all outputs of ``u``; ``y(u) -> x(t)`` (by way of ``b(t)`` where there are several writers) with the price of
    holding ``t``; ``x(t) -> w`` for each reader and ``w -> u`` for each dependence, unlimited; ``x(t)`` to the sink,
    unlimited, for tensors to be kept.

    When `deadline` is over, a cut ends with the flow so far, which no cut is below; that is 0 where there was no time
    for the network itself.
    """

    problem: Problem
    deadline: Deadline = field(default_factory=Deadline)
    _tail: Int = field(init=False)
    _head: Int = field(init=False)
    _capacity: Int = field(init=False)
    _complete: bool = field(init=False, default=False)

    def __post_init__(self) -> None:
        with contextlib.suppress(OverdueError):
            self._build()
            self._complete = True

    def _build(self) -> None:
        self.deadline.check()
        arrays = self.problem.graph.arrays
        ops, tensors = np.arange(len(arrays.cost)), np.arange(len(arrays.size))
        n, m = len(ops), len(tensors)
        pay, held, joint = n + ops, 2 * n + tensors, 2 * n + m + tensors
        self.source, self.sink = 2 * n + 2 * m, 2 * n + 2 * m + 1
        self.num_nodes = self.sink + 1
        writers, readers, before = arrays.producers, arrays.consumers, arrays.op_predecessors
        self.deadline.check()
        shared = writers.counts > 1
        self._single = np.flatnonzero(writers.counts == 1)
        self._shared = np.flatnonzero(shared)
        of_buffer = shared[writers.rows]
        kept = np.flatnonzero(self.problem.kept & ~arrays.is_input)
        read = ~arrays.is_input[readers.rows]
        parts: list[tuple[Int, Int, int]] = [
            (ops, pay, 0),
            (pay[writers.indices[writers.indptr[self._single]]], held[self._single], 0),
            (joint[self._shared], held[self._shared], 0),
            (np.full(n, self.source), ops, 0),
            (ops, np.full(n, self.sink), 0),
            (pay[writers.indices[of_buffer]], joint[writers.rows[of_buffer]], UNLIMITED),
            (held[readers.rows[read]], readers.indices[read], UNLIMITED),
            (before.rows, before.indices, UNLIMITED),
            (held[kept], np.full(len(kept), self.sink), UNLIMITED),
        ]
        tail, head = np.concatenate([a for a, _, _ in parts]), np.concatenate([b for _, b, _ in parts])
        self._capacity = np.concatenate([np.full(len(a), c, dtype=np.int64) for a, _, c in parts])
        self.deadline.check()
        # Arc 2i and its reverse 2i + 1, grouped by tail.
        count = 2 * len(tail)
        tails, self._head = np.empty(count, dtype=np.int64), np.empty(count, dtype=np.int64)
        tails[::2], tails[1::2] = tail, head
        self._head[::2], self._head[1::2] = head, tail
        self.deadline.check()
        keys = tails * count
        keys += np.arange(count)
        keys.sort()  # one key for node and arc: far faster than the order of an argsort
        self.deadline.check()
        self._arcs = keys % max(1, count)
        self._first = np.zeros(self.num_nodes + 1, dtype=np.int64)
        np.cumsum(np.bincount(tails, minlength=self.num_nodes), out=self._first[1:])

    def _related(self, op: int) -> tuple[Int, Int]:
        """The ops that `op` depends on, and those that depend on it."""
        arrays = self.problem.graph.arrays
        return _reached(arrays.op_predecessors, op), _reached(arrays.op_successors, op)

    def cut(self, op: int, hold: Int, give_up: Int | None = None) -> int:
        """The price of the cheapest boundary of a closed set without `op` that holds all that `op` depends on.

        Parameters
        ----------
        op : int
        hold : int64 array, shape (tensors,)
            Price of holding each tensor; those that `op` reads or writes cost nothing.
        give_up : int64 array, shape (ops,), optional
            Price of giving up any number of an op's outputs; None: that may not be. The sum of all prices must stay
            below :data:`UNLIMITED`.

        Returns
        -------
        int
            A lower bound on it, where the deadline came before.
        """
        if not self._complete or not KERNELS.ready(self.deadline):
            return 0
        arrays = self.problem.graph.arrays
        n = len(arrays.cost)
        price = hold.copy()
        price[arrays.op_inputs[op]] = 0
        price[arrays.op_outputs[op]] = 0
        before, after = self._related(op)
        capacity = self._capacity.copy()
        ends = np.cumsum([n, len(self._single), len(self._shared), n, n])
        capacity[: ends[0]] = UNLIMITED if give_up is None else give_up
        capacity[ends[0] : ends[1]] = price[self._single]
        capacity[ends[1] : ends[2]] = price[self._shared]
        capacity[ends[2] : ends[3]][before] = UNLIMITED
        capacity[ends[3] : ends[4]][after] = UNLIMITED
        capacity[ends[3] + op] = UNLIMITED
        both = np.zeros(2 * len(capacity), dtype=np.int64)
        both[::2] = capacity
        return _maximum_flow(self._head, both, self._arcs, self._first, self.source, self.sink, self.deadline)


def _reached(table: Csr, start: int) -> Int:
    """All that can be reached from `start`, without itself."""
    from remat.bounds.flow_kernel import reached

    queue = np.zeros(len(table), dtype=np.int64)
    count = reached(table.indptr, table.indices, start, np.zeros(len(table), dtype=np.bool_), queue)
    return queue[1:count]


def _maximum_flow(  # noqa: PLR0917
    head: Int, capacity: Int, arcs: Int, first: Int, source: int, sink: int, deadline: Deadline
) -> int:
    """Value of a maximum flow, or of the flow at the deadline; `capacity` becomes the residual one."""
    from remat.bounds.flow_kernel import TOTAL, FlowTables, increase_flow

    level, queue, here, path = (np.zeros(len(first) - 1, dtype=np.int64) for _ in range(4))
    number = np.zeros(4, dtype=np.int64)
    tables = FlowTables(head, capacity, arcs, first, level, queue, here, path, number)
    while not increase_flow(tables, source, sink, STEPS) and not deadline.expired:
        pass
    return int(number[TOTAL])
