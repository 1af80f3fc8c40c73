"""Greedy rules without dependencies: place buffers in sequence, each in the first or in the tightest gap."""

from __future__ import annotations

import bisect
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from remat.allocation.base import Allocation, Allocator, OnAddresses
from remat.allocation.problem import AllocationProblem
from remat.errors import ProblemError
from remat.runtime.arrays import Float, Int
from remat.runtime.checked_options import Options
from remat.runtime.deadline import Deadline, OverdueError
from remat.runtime.solve_options import DEFAULT_OPTIONS, SolveOptions
from remat.schedule.addresses import Addresses
from remat.schedule.buffers import Buffers
from remat.schedule.traces.first_fit import lowest_gap

#: From this number of buffers on, only the rule by first step runs: it scans live buffers only.
MANY = 20_000


def _fullest(problem: AllocationProblem) -> Int:
    """Return the total bytes at the fullest step of each buffer."""
    b = problem.buffers
    times, live = b.live(problem.alignment)
    first, last = np.searchsorted(times, b.lower), np.searchsorted(times, b.upper)
    return np.array([live[f:e].max() for f, e in zip(first, last, strict=True)], dtype=np.int64)


#: Orders in which buffers are placed, by keys for `numpy.lexsort`: the last one counts first.
ORDERS: dict[str, Callable[[AllocationProblem, Buffers], tuple[Int | Float, ...]]] = {
    "size": lambda p, b: (b.lower, -p.sizes),
    "area": lambda p, b: (b.lower, -(b.upper - b.lower) * p.sizes.astype(np.float64)),
    "duration": lambda p, b: (b.lower, -p.sizes, b.lower - b.upper),
    "start": lambda p, b: (-p.sizes, b.lower),
    "end": lambda p, b: (-p.sizes, -b.upper),
    "conflicts": lambda p, b: (b.lower, -p.sizes, -_fullest(p)),
}


@dataclass(frozen=True)
class FitOptions(Options):
    """Options of the greedy rules."""

    order: str = "all"
    """Buffers placed first: the largest by ``size``, ``area`` (bytes times steps) or ``duration``, the earliest by
    ``start``, the latest by ``end``, those live at the fullest steps (``conflicts``); ``all``: the best of them."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.order not in (*ORDERS, "all"):
            raise ProblemError(
                f"there is no order {self.order!r}; known are {', '.join(ORDERS)} and all", "unknown-order"
            )


class FirstFit(Allocator):
    """Place each buffer at the lowest address where it fits, in several orders, and keep the best result.

    With several memories each buffer goes into the first one with room; memories without a capacity come last.

    Examples
    --------
    >>> from remat.schedule import Buffers
    >>> b = Buffers.of(["a", "b", "c"], lower=[0, 1, 2], upper=[2, 3, 3], size=[4, 2, 1])
    >>> FirstFit().allocate(AllocationProblem(b)).addresses.offset.tolist()
    [0, 4, 0]
    """

    name = "first-fit"
    options_type = FitOptions
    several_memories = True
    tightest = False

    def allocate(
        self,
        problem: AllocationProblem,
        options: SolveOptions = DEFAULT_OPTIONS,
        start: Addresses | None = None,
        on_addresses: OnAddresses | None = None,
    ) -> Allocation:
        best, best_rank = None, (2, 0)
        if start is not None:
            best, best_rank = start, _rank(problem, start)
        chosen = list(ORDERS) if self.options.order == "all" else [self.options.order]
        if len(problem.buffers) > MANY and self.options.order == "all":
            chosen = ["start"]
        for name in chosen:
            try:
                order = np.lexsort(ORDERS[name](problem, problem.buffers))
                found = _placed(problem, order, self.tightest, options.deadline, best is None)
            except OverdueError:
                break
            if found is None:
                continue
            addresses = problem.addresses(*found, source=f"{self.name} by {name}")
            rank = _rank(problem, addresses)
            if rank < best_rank:
                best, best_rank = addresses, rank
                if on_addresses is not None and rank[0] == 0:
                    on_addresses(addresses)
            if rank <= (0, problem.bound):
                break
        return self.found(problem, best)


class BestFit(FirstFit):
    """Place each buffer in the tightest gap where it fits, in several orders, and keep the best result."""

    name = "best-fit"
    tightest = True


def _rank(problem: AllocationProblem, addresses: Addresses) -> tuple[int, int]:
    """Return a rank, lower is better: addresses within the capacities first, then by price."""
    over = sum(
        max(arena - cap, 0) for arena, cap in zip(addresses.arenas, problem.capacities, strict=True) if cap is not None
    )
    return (1, over) if over else (0, problem.price(addresses))


def _placed(
    problem: AllocationProblem, order: Int, tightest: bool, deadline: Deadline, must: bool
) -> tuple[Int, Int] | None:
    """Return offsets and memories; None if a buffer fits nowhere, or the deadline passes before a complete result.

    A single memory's capacity is ignored, so that the result shows by how much it is exceeded.
    """
    b, size, count = problem.buffers, problem.sizes, len(problem.buffers)
    places = problem.places
    caps = problem.capacities if len(problem.memories) > 1 else (None,)
    by_need = sorted(range(len(caps)), key=lambda k: caps[k] is None)
    offset, memory = np.zeros(count, dtype=np.int64), np.zeros(count, dtype=np.int64)
    spaces = [_Space(b.lower, b.upper, size, offset) for _ in caps]
    in_time = bool((np.diff(b.lower[order]) >= 0).all())
    # the first result is required despite the deadline, and takes milliseconds
    each = order.tolist() if must and count <= MANY else deadline.each(order.tolist(), 64)
    for k in each:
        for m in by_need:
            if not places[k, m]:
                continue
            at = spaces[m].gap(k, tightest, in_time)
            if caps[m] is None or at + size[k] <= caps[m]:
                offset[k], memory[k] = at, m
                spaces[m].put(k)
                break
        else:
            return None
    return offset, memory


class _Space:
    """Memory with the buffers placed so far."""

    def __init__(self, lower: Int, upper: Int, size: Int, offset: Int) -> None:
        self.lower, self.upper, self.size, self.offset = lower, upper, size, offset
        self.here = np.zeros(len(size), dtype=np.int64)
        self.count = 0
        self.live: list[tuple[int, int, int]] = []  # (offset, top, upper), if buffers come in order of time

    def gap(self, k: int, tightest: bool, in_time: bool) -> int:
        """Return the offset of the gap for buffer `k` among those live with it."""
        if in_time:
            now = int(self.lower[k])
            self.live = [entry for entry in self.live if entry[2] > now]
            spans = [(at, top) for at, top, _ in self.live]
        else:
            placed = self.here[: self.count]
            near = placed[(self.lower[placed] < self.upper[k]) & (self.upper[placed] > self.lower[k])]
            low = self.offset[near]
            by_offset = np.argsort(low, kind="stable")
            low = low[by_offset]
            spans = list(zip(low.tolist(), (low + self.size[near][by_offset]).tolist(), strict=True))
        return lowest_gap(spans, int(self.size[k]), tightest=tightest)

    def put(self, k: int) -> None:
        if self.size[k] == 0:
            return
        self.here[self.count] = k
        self.count += 1
        at = int(self.offset[k])
        bisect.insort(self.live, (at, at + int(self.size[k]), int(self.upper[k])))


def quick(problem: AllocationProblem, options: SolveOptions = DEFAULT_OPTIONS) -> Allocation:
    """Return the best result of first fit and best fit, in milliseconds for hundreds of buffers."""
    first = FirstFit().allocate(problem, options)
    if first.proved:
        return first
    best = BestFit().allocate(problem, options, first.addresses)
    return replace(best, method=best.method if best.addresses is not first.addresses else first.method)
