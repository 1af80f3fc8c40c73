"""Best-first and beam search over closed sets of ops: by lowest peak, or level by level."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np

from remat.ordering.base import OnOrder, Ordering, OrderSearch
from remat.ordering.dynamic_programme import ENDLESS, FOLLOWERS, ClosedSets, Ending, Programme
from remat.ordering.instance import OrderInstance
from remat.runtime.arrays import Int
from remat.runtime.checked_options import Options, Positive, Range
from remat.runtime.compiled import KernelSet
from remat.runtime.deadline import Deadline

#: States of the best-first search, times words per set, between two checks of the deadline.
PIECE = 20_000
#: Width of the first beam, and its growth factor.
FIRST_WIDTH, MORE_WIDTH = 32, 4
#: Bytes of a state besides its two sets: in a level, and in the best-first search with its heap.
LEVEL_BYTES, HEAP_BYTES = 40, 76


def _example() -> None:
    from remat.graphs.families import unit_chain
    from remat.problem import Problem

    instance = OrderInstance.of(Problem(unit_chain(2)))
    programme = Programme(instance, 2**20)
    programme.kernel.place(np.zeros((1, 1), dtype=np.uint64), 1, np.zeros(2, dtype=np.int32))
    programme.run(Deadline())
    BestFirstOrder().search(instance)


#: Kernels of the searches.
KERNELS = KernelSet("closed-sets", __name__, _example)


@dataclass(frozen=True)
class BestFirstOptions(Options):
    """Options of the best-first search."""

    memory: Annotated[int, Range(1 << 20)] = 1 << 29
    """Memory for states in bytes."""


class BestFirstOrder(OrderSearch):
    """Best-first search over closed sets by rising peak: the first complete order has the least peak.

    Each set is expanded once; of sets with the same peak the one with most ops comes first. An op whose step does not
    exceed the peak so far, and that leaves no more bytes, is the only one tried. When the search stops early, the peak
    of the current set bounds all orders.
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
        """Return the order of least peak, or a bound when time or memory runs out."""
        clock = deadline or Deadline()
        limit = ENDLESS if upper is None else upper
        floor = min(instance.structural_bound, limit)
        sets = ClosedSets(instance, twins=True)
        kernel, num_ops = sets.kernel, instance.num_ops
        capacity = max(2 * num_ops + 2, self.options.memory // (16 * sets.words + HEAP_BYTES))
        states, table = sets.begin(capacity, floor), sets.table(capacity)
        heap = kernel.Heap(*np.zeros((2, 2 * capacity), dtype=np.int64), np.zeros(capacity, dtype=np.int32))
        heap.peak[0] = floor
        found = np.array([0, 1, ENDLESS, 1, 0], dtype=np.int64)
        store = kernel.Store(states, table, found)
        answer = kernel.WORKING if floor < limit else kernel.EMPTY
        if answer == kernel.WORKING and sets.table_bytes > self.options.memory:
            answer = kernel.FULL
        while answer == kernel.WORKING and not clock.expired:
            steps = max(1, PIECE // sets.words)
            answer = kernel.best_first(sets.tables, limit - 1, heap, store, steps)
        count = int(found[kernel.COUNT])
        if answer == kernel.EMPTY:
            return Ordering(None, None, limit, count)
        if answer != kernel.FOUND:
            bound = int(heap.peak[0] if found[kernel.HEAP] else floor)
            notes = ("its memory is full",) if answer == kernel.FULL else ()
            return Ordering(None, None, max(floor, min(bound, limit)), count, notes)
        order, state = instance.reference, int(found[kernel.TAKEN])
        for place in range(num_ops - 1, -1, -1):
            order[place], state = states.op[state], int(states.parent[state])
        peak = instance.peak_of(order)
        if on_order is not None:
            on_order(order, peak)
        return Ordering(order, peak, peak, count)


@dataclass(frozen=True)
class BeamOptions(Options):
    """Options of the beam search."""

    width: Positive | None = None
    """Sets kept per level; None: increasing widths while time and memory last."""
    memory: Annotated[int, Range(1 << 20)] = 1 << 29
    """Largest size in bytes of the sets of a level."""


class BeamOrder(OrderSearch):
    """Beam search over closed sets, one more op per level: each level keeps the best sets by peak and live bytes.

    The least peak of the discarded sets bounds all orders beyond the beam. If no discarded set has a lower peak than
    the best order, that order is proved optimal.
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
        """Return the best order of all beams, and the best bound."""
        clock = deadline or Deadline()
        programme = Programme(instance, self.options.memory, twins=True)
        peak = ENDLESS if upper is None else upper
        bound = min(instance.structural_bound, peak)
        best: Int | None = None
        states, width = 0, self.options.width or FIRST_WIDTH
        most = max(1, self.options.memory // (2 * FOLLOWERS * (16 * programme.words + LEVEL_BYTES)))
        while bound < peak and not clock.expired:
            width = min(width, most)
            found = programme.run(clock, budget=peak - 1, floor=bound, width=width)
            states += found.states - 1  # without the empty set
            if found.order is not None:
                best, peak = found.order, instance.peak_of(found.order)
                if on_order is not None and on_order(best, peak):
                    break
            bound = max(bound, min(found.bound, peak))
            if self.options.width is not None or width == most or found.ending is Ending.MEMORY:
                break
            width *= MORE_WIDTH
        return Ordering(best, None if best is None else peak, bound, states)
