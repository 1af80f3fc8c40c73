"""The dynamic programme over signatures: level by level, one state for each set of ops that are ready."""

from __future__ import annotations

import time
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from remat.compiled import KernelSet
from remat.deadline import Deadline
from remat.graphs.arrays import Csr
from remat.ordering.instance import Int, OrderInstance

#: More than any peak.
ENDLESS = 2**62
#: Most states that are expanded between two looks at the clock, and seconds that this should take at most.
MOST_PIECE, LOOK = 8192, 0.03
#: States for which there is room in a level at first.
ROOM = 1024

Words = NDArray[np.uint64]


class Ending(StrEnum):
    """How a run of the dynamic programme ended."""

    SOLUTION = "solution"
    """With an order, which is the best there is."""
    NO_SOLUTION = "no solution"
    """Every order has a peak above the budget."""
    TIMEOUT = "timeout"
    """A level took longer than allowed."""
    MEMORY = "memory"
    """Its states did not fit into memory."""
    DEADLINE = "deadline"
    """No time was left, or somebody interrupted it."""


@dataclass(frozen=True)
class Run:
    """What one run of the dynamic programme found out.

    Attributes
    ----------
    ending : Ending
    order : int64 array or None
        The best order, with a solution.
    bound : int
        Bytes: no order has a lower peak. With a solution it is the peak of the order.
    states : int
        How many were stored.
    """

    ending: Ending
    order: Int | None
    bound: int
    states: int


class Level:
    """States with as many ops done, in arrays with room for more."""

    def __init__(self, room: int, words: int) -> None:
        self.count = 0
        self.done: Words = np.zeros((room, words), dtype=np.uint64)
        self.ready: Words = np.zeros((room, words), dtype=np.uint64)
        self.live = np.zeros(room, dtype=np.int64)
        self.peak = np.zeros(room, dtype=np.int64)
        self.parent = np.zeros(room, dtype=np.int32)
        self.chosen = np.zeros(room, dtype=np.int32)

    @property
    def room(self) -> int:
        """How many states there is room for."""
        return len(self.live)

    @property
    def arrays(self) -> tuple[NDArray, ...]:
        """Sets, bytes, and where each state came from."""
        return self.done, self.ready, self.live, self.peak, self.parent, self.chosen

    @property
    def bytes(self) -> int:
        """Memory that it takes."""
        return sum(array.nbytes for array in self.arrays)

    def grown(self) -> Level:
        """The same states with room for twice as many."""
        level = Level(2 * self.room, self.done.shape[1])
        level.count = self.count
        for new, old in zip(level.arrays, self.arrays, strict=True):
            new[: self.count] = old[: self.count]
        return level


class Programme:
    """Serenity's Algorithm 1 for one instance, which can be run with several budgets.

    Parameters
    ----------
    instance : OrderInstance
    most_bytes : int
        Memory that its states may take.
    """

    def __init__(self, instance: OrderInstance, most_bytes: int) -> None:
        self.instance, self.most_bytes = instance, most_bytes
        self.words = max(1, -(-instance.num_ops // 64))
        self.digits = np.zeros(64, dtype=np.int64)
        for digit in range(64):
            self.digits[(0x03F79D71B4CB0A89 << digit) % 2**64 >> 58] = digit

    @property
    def table_bytes(self) -> int:
        """Memory of `tables`: a set for each op, two for each tensor, and one more while they are made."""
        return 8 * self.words * (self.instance.num_ops + 3 * self.instance.num_tensors)

    @cached_property
    def tables(self) -> tuple[NDArray, ...]:
        """What the kernel is told of the instance."""
        instance = self.instance
        size, writes = instance.size, instance.op_outputs
        lone = ~instance.live & (instance.producers.counts == 1)
        running = np.concatenate([[0], np.cumsum(np.where(lone, size, 0)[writes.indices])])
        fresh = running[writes.indptr[1:]] - running[writes.indptr[:-1]]
        shared = ~instance.live & (instance.producers.counts > 1)
        sharing = shared[writes.indices]
        shared_rows = Csr.from_pairs(writes.rows[sharing], writes.indices[sharing], instance.num_ops)
        rows = np.concatenate([writes.rows, instance.op_inputs.rows])
        columns = np.concatenate([writes.indices, instance.op_inputs.indices])
        goes = ~instance.kept[columns]
        touched = Csr.from_pairs(rows[goes], columns[goes], instance.num_ops)
        writers = self._sets(instance.producers)
        return (
            self._sets(instance.predecessors), instance.successors.indptr.copy(), instance.successors.indices.copy(),
            fresh, instance.workspace.copy(), shared_rows.indptr.copy(), shared_rows.indices.copy(), writers,
            touched.indptr.copy(), touched.indices.copy(), writers | self._sets(instance.consumers), size.copy(),
        )  # fmt: skip

    def _sets(self, rows: Csr) -> Words:
        """Each row as a set of ops."""
        sets: Words = np.zeros((len(rows), self.words), dtype=np.uint64)
        bits = np.uint64(1) << (rows.indices % 64).astype(np.uint64)
        np.bitwise_or.at(sets, (rows.rows, rows.indices // 64), bits)
        return sets

    def run(self, deadline: Deadline, *, budget: int = ENDLESS, floor: int = 0, seconds: float | None = None) -> Run:
        """Run it once.

        Parameters
        ----------
        deadline : Deadline
        budget : int
            Bytes; states with a higher peak are left out.
        floor : int
            Bytes; a peak below it is as good as it.
        seconds : float, optional
            For each level at most.
        """
        from remat.ordering.serenity.kernel import COUNT, NEXT, REFUSED, expand, place

        instance = self.instance
        if self.table_bytes > self.most_bytes:
            return Run(Ending.MEMORY, None, 0, 0)
        level, following = self._first(floor), Level(ROOM, self.words)
        table = np.full(2 * ROOM, -1, dtype=np.int32)
        found = np.array([0, 0, ENDLESS], dtype=np.int64)
        trail: list[tuple[NDArray[np.int32], NDArray[np.int32]]] = []
        states, kept_bytes, piece = 1, self.table_bytes, 1
        if int(level.peak[0]) > budget:
            return Run(Ending.NO_SOLUTION, None, int(level.peak[0]), 1)
        for _ in range(instance.num_ops):
            step = deadline if seconds is None else deadline.earlier(seconds)
            table.fill(-1)
            found[:2] = 0
            while found[NEXT] < level.count:
                ending = None
                if step.expired:
                    ending = Ending.DEADLINE if deadline.expired else Ending.TIMEOUT
                elif found[COUNT] >= following.room:
                    if kept_bytes + level.bytes + 3 * following.bytes + 3 * table.nbytes > self.most_bytes:
                        ending = Ending.MEMORY
                    else:
                        following = following.grown()
                        table = np.full(2 * following.room, -1, dtype=np.int32)
                        place(following.ready, 0, following.count, table)
                if ending is not None:
                    bound = min(int(found[REFUSED]), int(level.peak[: level.count].min()))
                    return Run(ending, None, bound, states + int(found[COUNT]))
                end, began = min(int(found[NEXT]) + piece, level.count), time.monotonic()
                expand(
                    int(found[NEXT]), end, budget, found, table, self.digits,
                    level.done, level.ready, level.live, level.peak, *following.arrays, *self.tables,
                )  # fmt: skip
                following.count = int(found[COUNT])
                quick = time.monotonic() - began < LOOK
                piece = min(2 * piece, MOST_PIECE) if quick else max(1, piece // 2)
            states += following.count
            trail.append((following.parent[: following.count].copy(), following.chosen[: following.count].copy()))
            kept_bytes += trail[-1][0].nbytes + trail[-1][1].nbytes
            if not following.count:
                return Run(Ending.NO_SOLUTION, None, int(found[REFUSED]), states)
            level, following = following, level
            following.count = 0
        order = np.zeros(instance.num_ops, dtype=np.int64)
        state = 0
        for position in range(instance.num_ops - 1, -1, -1):
            parent, chosen = trail[position]
            order[position], state = chosen[state], parent[state]
        return Run(Ending.SOLUTION, order, int(level.peak[0]), states)

    def _first(self, floor: int) -> Level:
        """Nothing is done."""
        level = Level(ROOM, self.words)
        level.count = 1
        level.live[0] = self.instance.start
        level.peak[0] = floor
        for op in np.flatnonzero(self.instance.predecessors.counts == 0).tolist():
            level.ready[0, op // 64] |= np.uint64(1) << np.uint64(op % 64)
        return level


def _example() -> None:
    from remat.graphs.families import unit_chain
    from remat.ordering.serenity.kernel import place
    from remat.problem import Problem

    place(np.zeros((1, 1), dtype=np.uint64), 0, 1, np.full(2, -1, dtype=np.int32))
    Programme(OrderInstance.of(Problem(unit_chain(2))), 2**20).run(Deadline())


#: The compiled expansion of a level.
KERNELS = KernelSet("serenity", __name__, _example)
