"""Dynamic programme over closed sets, level by level: one state for each set of ready ops."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from remat.graphs.arrays import Csr
from remat.ordering.instance import OrderInstance
from remat.ordering.lifetimes import Lifetimes
from remat.runtime.arrays import Int
from remat.runtime.bits import digits
from remat.runtime.deadline import Deadline, Slices

if TYPE_CHECKING:
    from remat.ordering.closed_sets_kernel import SetTables, States

#: Exceeds every peak.
ENDLESS = 2**62
#: Largest number of states expanded between two checks of the deadline, and the target time in seconds for them.
MOST_PIECE, PIECE_SECONDS = 8192, 0.03
#: Initial room for states in a level; in a beam, room per state kept.
ROOM, FOLLOWERS = 1024, 16


class Ending(StrEnum):
    """Ending of a run of the dynamic programme."""

    SOLUTION = "solution"
    """It found an order, which is optimal unless states were discarded."""
    NO_SOLUTION = "no solution"
    """Every order has a peak above the budget, or leads through a discarded state."""
    TIMEOUT = "timeout"
    """A level took longer than allowed."""
    MEMORY = "memory"
    """Its states did not fit into memory."""
    DEADLINE = "deadline"
    """The deadline passed, or the run was interrupted."""


@dataclass(frozen=True)
class Run:
    """Result of one run of the dynamic programme."""

    ending: Ending
    order: Int | None
    """Best order, with a solution."""
    bound: int
    """Bytes: no order has a lower peak. With a solution it is the peak of the order, or that of a discarded state."""
    states: int
    """Number of states stored."""


class ClosedSets:
    """Ordering problem for the compiled searches over closed sets.

    `twins`: try only one order of twins (:func:`remat.ordering.lifetimes.twin_pairs`).
    """

    def __init__(self, instance: OrderInstance, *, twins: bool) -> None:
        from remat.ordering import closed_sets_kernel as kernel

        self.instance, self.kernel = instance, kernel
        self.words = max(1, -(-instance.num_ops // 64))
        self._lifetimes = Lifetimes.of(instance, twins=twins)

    @property
    def table_bytes(self) -> int:
        """Bytes of `tables`: a set per op, two per tensor, and one more per tensor during construction."""
        return 8 * self.words * (self.instance.num_ops + 3 * self.instance.num_tensors)

    @cached_property
    def tables(self) -> SetTables:
        """Problem in the arrays of the kernel."""
        kernel, instance, lifetimes = self.kernel, self.instance, self._lifetimes
        allocates = instance.op_outputs.where(~instance.live)
        alone = instance.producers.counts == 1
        touched = lifetimes.ends.where(~instance.kept)
        users = lifetimes.ends.transposed(instance.num_tensors)
        sets = [self._sets(table) for table in (lifetimes.predecessors, instance.producers, users)]
        sparse = (lifetimes.successors, allocates.where(~alone), touched)
        rows = (kernel.Rows(table.indptr.copy(), table.indices.copy()) for table in sparse)
        fresh = allocates.where(alone).sums(instance.size)
        return kernel.SetTables(
            sets[0], *rows, *sets[1:], fresh, instance.workspace.copy(), instance.size.copy(), digits(kernel.SEQUENCE)
        )

    def _sets(self, rows: Csr) -> NDArray[np.uint64]:
        """Return each row as a set of ops."""
        sets = np.zeros((len(rows), self.words), dtype=np.uint64)
        bits = np.uint64(1) << (rows.indices % 64).astype(np.uint64)
        np.bitwise_or.at(sets, (rows.rows, rows.indices // 64), bits)
        return sets

    def states(self, room: int) -> States:
        """Return room for states; the system commits memory as they are written."""
        done, ready = np.zeros((2, room, self.words), dtype=np.uint64)
        live, peak = np.zeros((2, room), dtype=np.int64)
        parent, op = np.zeros((2, room), dtype=np.int32)
        return self.kernel.States(done, ready, live, peak, parent, op)

    def begin(self, room: int, floor: int) -> States:
        """Return room for states, the first of which is the empty set; peaks below `floor` count as `floor`."""
        states = self.states(room)
        states.live[0], states.peak[0] = self.instance.start, floor
        for op in np.flatnonzero(self._lifetimes.predecessors.counts == 0).tolist():
            states.ready[0, op // 64] |= np.uint64(1) << np.uint64(op % 64)
        return states

    def table(self, room: int) -> NDArray[np.int32]:
        """Return an empty hash table for `room` states."""
        return np.zeros(1 << (2 * room - 1).bit_length(), dtype=np.int32)


class Programme(ClosedSets):
    """Serenity's Algorithm 1 for one instance, to run with several budgets or as a beam.

    `most_bytes`: limit of memory for its states, in bytes. `twins`: try only one order of twins.
    """

    def __init__(self, instance: OrderInstance, most_bytes: int, *, twins: bool = False) -> None:
        super().__init__(instance, twins=twins)
        self.most_bytes = most_bytes

    def run(
        self,
        deadline: Deadline,
        *,
        budget: int = ENDLESS,
        floor: int = 0,
        seconds: float | None = None,
        width: int | None = None,
    ) -> Run:
        """Run it once.

        Parameters
        ----------
        budget : int
            Bytes; states with a higher peak are discarded.
        floor : int
            Bytes; peaks below it count as equal to it.
        seconds : float, optional
            Time limit for each level.
        width : int, optional
            States kept per level, the best by peak and live bytes. Default: all.
        """
        if self.table_bytes > self.most_bytes:
            return Run(Ending.MEMORY, None, 0, 1)
        kernel, num_ops = self.kernel, self.instance.num_ops
        room = ROOM if width is None else FOLLOWERS * width + 1
        level, following, table = self.begin(room, floor), self.states(room), self.table(room)
        found = np.array([0, 1, ENDLESS], dtype=np.int64)
        trail: list[tuple[NDArray[np.int32], NDArray[np.int32]]] = []
        count, states, kept_bytes, pieces = 1, 1, self.table_bytes, Slices(1, MOST_PIECE, PIECE_SECONDS)
        if floor > budget:
            return Run(Ending.NO_SOLUTION, None, floor, 1)
        for _ in range(num_ops):
            step = deadline if seconds is None else deadline.earlier(seconds)
            table.fill(0)
            found[[kernel.NEXT, kernel.COUNT]] = 0
            while found[kernel.NEXT] < count:
                ending = None
                if step.expired:
                    ending = Ending.DEADLINE if deadline.expired else Ending.TIMEOUT
                elif width is None and found[kernel.COUNT] == len(following.live) - 1:
                    if kept_bytes + _bytes(level) + 3 * _bytes(following) + 3 * table.nbytes > self.most_bytes:
                        ending = Ending.MEMORY
                    else:
                        following = _grown(following, self.states(2 * len(following.live)))
                        table = self.table(len(following.live))
                        kernel.place(following.ready, int(found[kernel.COUNT]), table)
                if ending:
                    bound = min(int(found[kernel.LEFT_OUT]), int(level.peak[:count].min()))
                    return Run(ending, None, bound, states + int(found[kernel.COUNT]))
                begin = int(found[kernel.NEXT])
                with pieces:
                    end = min(begin + pieces.amount, count)
                    store = kernel.Store(following, table, found)
                    kernel.expand(self.tables, level, begin, end, budget, store, width is not None)
            count = int(found[kernel.COUNT])
            states += count
            if width is not None and count > width:
                chosen = np.lexsort((following.live[:count], following.peak[:count]))
                found[kernel.LEFT_OUT] = min(found[kernel.LEFT_OUT], following.peak[chosen[width]])
                chosen, count = np.sort(chosen[:width]), width
                for array in following:
                    array[:width] = array[chosen]
            if not count:
                return Run(Ending.NO_SOLUTION, None, int(found[kernel.LEFT_OUT]), states)
            trail.append((following.parent[:count].copy(), following.op[:count].copy()))
            kept_bytes += trail[-1][0].nbytes + trail[-1][1].nbytes
            level, following = following, level
        order = np.zeros(num_ops, dtype=np.int64)
        state = 0
        for position in range(num_ops - 1, -1, -1):
            parent, op = trail[position]
            order[position], state = op[state], parent[state]
        return Run(Ending.SOLUTION, order, min(int(found[kernel.LEFT_OUT]), int(level.peak[0])), states)


def _bytes(states: States) -> int:
    return sum(array.nbytes for array in states)


def _grown(states: States, larger: States) -> States:
    """Copy states into a larger room."""
    for new, old in zip(larger, states, strict=True):
        new[: len(old)] = old
    return larger
