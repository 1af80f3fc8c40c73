"""Best-first and beam search over closed sets of ops: an order by the lowest peak first, or level by level."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from remat.compiled import KernelSet
from remat.deadline import Deadline
from remat.graphs.arrays import Csr
from remat.ordering.base import OnOrder, Ordering, OrderSearch
from remat.ordering.instance import OrderInstance
from remat.ordering.lifetimes import Lifetimes
from remat.runtime.options import Options, Positive, Range

Int = NDArray[np.int64]
#: No peak at all.
ENDLESS = 2**62
#: States of a level, times words of a set, between two looks at the clock; states of the best-first search, likewise.
PIECE = 20_000
#: States that follow a state, for which there is room in a level of the beam search.
FOLLOWERS = 16
#: Width of the first beam, and by how much it grows.
FIRST_WIDTH, MORE_WIDTH = 32, 4


def _example() -> None:
    pairs = np.array([0, 1]), np.array([0, 1])
    one = Csr.from_pairs(*pairs, 2)
    none = Csr.from_pairs(pairs[0][:0], pairs[0][:0], 2)
    zeros = np.zeros(2, dtype=np.int64)
    tables = Tables(Lifetimes(zeros, zeros, one, one, none, none, zeros > 0, zeros > 0, 0))
    store = Store(tables, 8)
    store.begin(0, ENDLESS)
    store.next_level(store, 0, 0)
    store.best_first(1)


#: The compiled searches.
KERNELS = KernelSet("closed-sets", __name__, _example)


class Tables:
    """An ordering problem for the compiled searches."""

    def __init__(self, problem: Lifetimes) -> None:
        from remat.ordering import closed_sets_kernel as kernel

        self.problem, self.kernel = problem, kernel
        n, m = len(problem.workspace), len(problem.size)
        self.num_ops, self.num_words = n, (n + 63) // 64
        self.ops = np.zeros((kernel.KEY + 1, n + 1), dtype=np.int64)
        self.tensors = np.zeros((kernel.KEPT + 1, m + 1), dtype=np.int64)
        beginners = Csr.from_pairs(problem.begins.indices, problem.begins.rows, m)
        enders = Csr.from_pairs(problem.ends.indices, problem.ends.rows, m)
        parts = [
            (self.ops, kernel.BEFORE, problem.predecessors), (self.ops, kernel.BEGINS, problem.begins),
            (self.ops, kernel.ENDS, problem.ends), (self.tensors, kernel.BEGINNERS, beginners),
            (self.tensors, kernel.ENDERS, enders),
        ]  # fmt: skip
        start = 1
        for table, row, rows in parts:
            table[row] = rows.indptr + start
            start += len(rows.indices)
        self.links = np.concatenate([np.zeros(1, dtype=np.int64), *(rows.indices for _, _, rows in parts)])
        self.ops[kernel.WORKSPACE, :n] = problem.workspace
        self.ops[kernel.KEY, :n] = np.random.default_rng(n).integers(-(2**63), 2**63, size=n, dtype=np.int64)
        self.tensors[kernel.SIZE, :m] = problem.size
        self.tensors[kernel.LIVE_FIRST, :m], self.tensors[kernel.KEPT, :m] = problem.live, problem.kept

    @property
    def state_bytes(self) -> int:
        """Bytes that a state takes in a :class:`Store`."""
        return 8 * (self.num_words + self.kernel.CLOSED + 1 + 4 + 4)


class Store:
    """States, a table to find them in, and a heap of those to be taken up.

    Parameters
    ----------
    tables : Tables
    capacity : int
        States that there is room for; memory is taken as they come.
    """

    def __init__(self, tables: Tables, capacity: int) -> None:
        kernel = self.kernel = tables.kernel
        self.tables = tables
        self.words = np.zeros((tables.num_words, capacity), dtype=np.int64)
        self.info = np.zeros((kernel.CLOSED + 1, capacity), dtype=np.int64)
        self.table = np.zeros(1 << (2 * capacity).bit_length(), dtype=np.int64)
        self.heap = np.zeros((2, 2 * capacity), dtype=np.int64)
        self.number = np.zeros(kernel.AFTER + 1, dtype=np.int64)

    def begin(self, floor: int, limit: int) -> None:
        """The empty set, alone; steps up to `floor` are all the same, and only those below `limit` are taken."""
        kernel, problem = self.kernel, self.tables.problem
        self.number[[kernel.STATES, kernel.LIMIT, kernel.FLOOR, kernel.HEAP]] = 1, limit, floor, 1
        self.number[kernel.LEFT_OUT] = ENDLESS
        self.info[:, 0] = 0
        self.info[kernel.LIVE, 0] = problem.held + int(problem.size[problem.live].sum())
        self.info[kernel.PEAK, 0] = self.heap[1, 0] = floor

    def clear(self, floor: int, limit: int) -> None:
        """No state at all."""
        self.begin(floor, limit)
        self.number[self.kernel.STATES] = 0
        self.table[:] = 0

    def next_level(self, old: Store, first: int, last: int) -> None:
        """Add what follows some states of another store."""
        tables = self.tables
        self.kernel.next_level(
            tables.ops, tables.tensors, tables.links, old.words, old.info, self.words, self.info, self.table,
            self.number, first, last,
        )  # fmt: skip

    def best_first(self, steps: int) -> int:
        """Take up so many states; what the kernel answers."""
        tables = self.tables
        return int(
            self.kernel.best_first(
                tables.ops, tables.tensors, tables.links, self.words, self.info, self.table, self.heap, self.number,
                steps,
            )
        )  # fmt: skip


@dataclass(frozen=True)
class BestFirstOptions(Options):
    """What the best-first search may use.

    Attributes
    ----------
    memory : int
        Bytes for states.
    """

    memory: Annotated[int, Range(1 << 20)] = 1 << 29


class BestFirstOrder(OrderSearch):
    """Closed sets by rising peak, each once: the first time all ops are done, the order is one of least peak.

    Of sets of the same peak the one with most ops comes first. An op whose step holds no more than has been held, and
    that leaves no more bytes, is the only one tried. When it is broken off, the peak it is at bounds all orders.
    """

    name = "best-first-order"
    options_type = BestFirstOptions
    kernels = (KERNELS,)

    def search(
        self,
        instance: OrderInstance,
        *,
        deadline: Deadline | None = None,
        seed: int = 0,
        upper: int | None = None,
        on_order: OnOrder | None = None,
    ) -> Ordering:
        """The order of least peak, or a bound when time or memory is over."""
        clock = deadline or Deadline()
        limit = ENDLESS if upper is None else upper
        floor = min(instance.structural_bound, limit)
        tables = Tables(Lifetimes.of(instance))
        kernel = tables.kernel
        capacity = max(2 * tables.num_ops + 2, self.options.memory // tables.state_bytes)
        store = Store(tables, capacity)
        store.begin(floor, limit)
        answer = kernel.WORKING if floor < limit else kernel.EMPTY
        while answer == kernel.WORKING and not clock.expired:
            answer = store.best_first(max(1, PIECE // tables.num_words))
        states = int(store.number[kernel.STATES])
        if answer == kernel.EMPTY:
            return Ordering(None, None, limit, states)
        if answer != kernel.FOUND:
            bound = int(store.heap[1, 0] if store.number[kernel.HEAP] else floor)
            notes = ("its memory is full",) if answer == kernel.FULL else ()
            return Ordering(None, None, max(floor, min(bound, limit)), states, notes)
        order, state = instance.reference, int(store.number[kernel.TAKEN])
        for place in range(tables.num_ops - 1, -1, -1):
            order[place], state = store.info[kernel.OP, state], int(store.info[kernel.PARENT, state])
        peak = instance.peak_of(order)
        if on_order is not None:
            on_order(order, peak)
        return Ordering(order, peak, peak, states)


@dataclass(frozen=True)
class BeamOptions(Options):
    """How wide the beam is.

    Attributes
    ----------
    width : int or None
        Sets that are kept of each level; None: more and more, as long as there is time and memory.
    memory : int
        Bytes for the sets of a level, at most.
    """

    width: Positive | None = None
    memory: Annotated[int, Range(1 << 20)] = 1 << 29


class BeamOrder(OrderSearch):
    """Closed sets level by level, one op more in each: of every level the best are kept, by peak and live bytes.

    No order is below the least peak of a set that was left out; where none with a lower peak than the best order was,
    that order is proved to be best.
    """

    name = "beam-order"
    options_type = BeamOptions
    kernels = (KERNELS,)

    def search(
        self,
        instance: OrderInstance,
        *,
        deadline: Deadline | None = None,
        seed: int = 0,
        upper: int | None = None,
        on_order: OnOrder | None = None,
    ) -> Ordering:
        """The best order of all beams, and the best bound."""
        clock = deadline or Deadline()
        tables = Tables(Lifetimes.of(instance))
        peak = ENDLESS if upper is None else upper
        bound = min(instance.structural_bound, peak)
        best: Int | None = None
        states, width = 0, self.options.width or FIRST_WIDTH
        most = max(1, self.options.memory // (2 * FOLLOWERS * tables.state_bytes))
        while bound < peak and not clock.expired:
            width = min(width, most)
            found, left_out, seen = _beam(tables, width, bound, peak, clock)
            states += seen
            if found is not None:
                best, peak = found, instance.peak_of(found)
                if on_order is not None and on_order(best, peak):
                    break
            bound = max(bound, min(left_out, peak))
            if self.options.width is not None or width == most:
                break
            width *= MORE_WIDTH
        return Ordering(best, None if best is None else peak, bound, states)


def _beam(tables: Tables, width: int, floor: int, limit: int, clock: Deadline) -> tuple[Int | None, int, int]:
    """An order below `limit`, the least peak of what was left out, and states looked at."""
    kernel, n = tables.kernel, tables.num_ops
    new, old = (Store(tables, FOLLOWERS * width) for _ in range(2))
    old.begin(floor, limit)
    count, left_out, states = 1, ENDLESS, 0
    parents: list[Int] = []
    ops: list[Int] = []
    piece = max(1, PIECE // (tables.num_words * max(1, n // 64)))
    for _ in range(n):
        new.clear(floor, limit)
        for first in range(0, count, piece):
            if clock.expired:
                return None, min(left_out, floor), states
            new.next_level(old, first, min(count, first + piece))
        count = int(new.number[kernel.STATES])
        left_out = min(left_out, int(new.number[kernel.LEFT_OUT]))
        states += count
        if count > width:
            peak, live = new.info[kernel.PEAK, :count], new.info[kernel.LIVE, :count]
            chosen = np.lexsort((live, peak))
            left_out = min(left_out, int(peak[chosen[width]]))
            chosen = np.sort(chosen[:width])
            new.words[:, :width], new.info[:, :width] = new.words[:, chosen], new.info[:, chosen]
            count = width
        if not count:
            return None, min(left_out, limit), states
        parents.append(new.info[kernel.PARENT, :count].astype(np.int32))
        ops.append(new.info[kernel.OP, :count].astype(np.int32))
        new, old = old, new
    order, state = np.zeros(n, dtype=np.int64), int(old.info[kernel.PEAK, :count].argmin())
    for place in range(n - 1, -1, -1):
        order[place], state = ops[place][state], int(parents[place][state])
    return order, left_out, states
