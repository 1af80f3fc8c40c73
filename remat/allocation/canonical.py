"""A search for placements within a capacity that proves it where there are none."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np

from remat.allocation.base import Allocation, Allocator, OnAddresses
from remat.allocation.fits import quick
from remat.allocation.problem import AllocationProblem
from remat.backends.base import DEFAULT_OPTIONS, SolveOptions
from remat.compiled import KernelSet
from remat.deadline import Slices
from remat.graphs.arrays import Csr, staircase
from remat.runtime.arrays import Float, Int
from remat.runtime.resources import available_cpus
from remat.schedule.addresses import Addresses

#: Orders by the keys of :meth:`_Run._keys` that count in turn, largest first; those that were quickest on the six hard
#: instances come first. Afterwards one order drawn at random joins them in each round.
ORDERS = ("TWA", "TAW", "TOW", "WAT", "TOA", "WTA", "AWT", "TZW", "OWT", "ZTW")
#: Most pairs of buffers that live together: lists of them are kept for every order.
MAX_PAIRS = 3_000_000
#: Placements tried in the first turn of an order, and in the first and the longest call of compiled code, which take
#: about a tenth of a second.
FIRST_TURN, FIRST_CALL, LONGEST_CALL = 2_000, 10_000, 10_000_000


def _example() -> None:
    from remat.allocation.canonical_kernel import search

    one = np.array([0, 1])
    pairs = (np.zeros(0, dtype=np.int64),) * 2
    search(_Order(one, one + 1, np.array([1, 1]), 2, pairs=pairs, rank=np.arange(2)).begin(3), 10)


#: The compiled search.
KERNELS = KernelSet("canonical placements", __name__, _example)


class CanonicalSearch(Allocator):
    """Depth-first search over *canonical* placements, in several orders beside each other.

    Push every buffer of a placement down until it rests on another one or on the ground, and list the buffers by
    offset, then by rank: each then lies at the least offset that those before it leave. So it is enough to place one
    buffer after the other, by (offset, rank), each as low as it goes. A branch is cut

    * where a buffer would lie above the whole of another one that could still lie below (it leaves a gap that the other
      one fills);
    * where two identical buffers change places;
    * where at some moment what is not placed does not fit between the lowest place left for it and the capacity. That
      place is at least the present offset, the top of the last buffer there, and the least offset of what lives then.

    Where what is not placed falls apart into stretches of time, each is solved by itself, and if one cannot be, the
    placement before they fell apart is taken back.

    The order of ranks decides whether a solution is found in a millisecond or never, so several searches take turns,
    each longer than the last; what one of them proves holds for all. Without a capacity they look below the best
    arena, at the bound first.

    Source: M. D. Moffitt, "MiniMalloc: A Lightweight Memory Allocator for Hardware-Accelerated Machine Learning",
    ASPLOS 2023 (canonical solutions, inference on sections, dominance); the code is our own.

    Examples
    --------
    >>> from remat.schedule import Buffers, Memory
    >>> names = ["b1", "b2", "b3", "b4", "b5"]
    >>> b = Buffers.of(names, lower=[0, 3, 0, 9, 0], upper=[3, 9, 9, 21, 21], size=[4, 4, 4, 4, 4])
    >>> found = CanonicalSearch().allocate(AllocationProblem(b))
    >>> found.price, found.proved
    (12, True)
    >>> CanonicalSearch().allocate(AllocationProblem(b, (Memory("small", 8),))).impossible
    'step 0: 12 bytes are held, but there are 8 (small)'
    """

    name = "canonical"
    kernels = (KERNELS,)

    def allocate(
        self,
        problem: AllocationProblem,
        options: SolveOptions = DEFAULT_OPTIONS,
        start: Addresses | None = None,
        on_addresses: OnAddresses | None = None,
    ) -> Allocation:
        self.one_memory(problem)
        if start is None:
            start = quick(problem, options).addresses
        if problem.contradiction or not problem.sizes.any():
            return self.found(problem, start)
        overlaps = _pairs_at_most(problem)
        if overlaps > MAX_PAIRS:
            note = f"{overlaps:,} pairs of buffers live together, more than the {MAX_PAIRS:,} that are searched"
            return self.found(problem, start, notes=(note,))
        if not self.prepared(options.deadline):
            return self.found(problem, start, notes=("the search was not compiled in time",))
        run = _Run(self, problem, options, start, on_addresses)
        run.search()
        return run.result()


def _pairs_at_most(problem: AllocationProblem) -> int:
    c = problem.compressed
    starts, ends = np.sort(c.first), np.sort(c.last)
    return int((np.searchsorted(starts, c.last) - np.searchsorted(ends, c.first, side="right") - 1).sum()) // 2


class _Order:
    """The buffers by rank, with all that searches at any capacity share."""

    def __init__(self, first: Int, last: Int, size: Int, moments: int, *, pairs: tuple[Int, Int], rank: Int) -> None:
        self.rank, self.moments = rank, moments
        self.first, self.last, self.size = (np.ascontiguousarray(x[rank]) for x in (first, last, size))
        count = len(rank)
        place = np.empty(count, dtype=np.int64)
        place[rank] = np.arange(count)
        one, other = place[pairs[0]], place[pairs[1]]
        near = Csr.from_pairs(np.concatenate([one, other]), np.concatenate([other, one]), count)
        length = self.last - self.first
        owner = np.repeat(np.arange(count), length)
        section = np.arange(len(owner)) + np.repeat(self.last - np.cumsum(length), length)
        members = Csr.from_pairs(section, owner, moments)
        # compiled code takes arrays that can be written to
        self.near = near.indptr.copy(), near.indices.copy()
        self.members = members.indptr.copy(), members.indices.copy()
        self.total = members.sums(self.size)
        self.across = staircase(self.first, self.last - 2, np.ones_like(self.size), moments)
        self.twin = np.full(count, -1, dtype=np.int64)
        seen: dict[tuple[int, int, int], int] = {}
        each = zip(self.first.tolist(), self.last.tolist(), self.size.tolist(), strict=True)
        for k, key in enumerate(each):
            self.twin[k] = seen.get(key, -1)
            seen[key] = k

    def begin(self, capacity: int) -> Any:
        """A search at a capacity in units."""
        from remat.allocation import canonical_kernel as code

        count, moments = len(self.rank), self.moments

        def zeros(*shape: int) -> Int:
            return np.zeros(shape, dtype=np.int64)

        # a goal for each stretch of time that nothing lives across
        ends = (np.flatnonzero(self.across == 0) + 1).tolist()
        stretches = [(a, b) for a, b in pairwise([0, *ends]) if self.total[a:b].any()]
        state, goals = zeros(code.STATE), zeros(2 * (moments + count) + 4, code.GOAL)
        for number, (begin, end) in enumerate(stretches, start=1):
            goals[number - 1] = (begin, end, -1, -1, -1, number if number < len(stretches) else -1)
        state[code.CAPACITY], state[code.GOALS] = capacity, len(stretches)
        return code.Search(
            self.first, self.last, self.size, self.twin, *self.near, *self.members, zeros(count) - 1, zeros(count),
            zeros(moments), self.total.copy(), self.across.copy(), zeros(count + 1, code.FRAME), goals,
            zeros(8 * count + 64, 2), zeros(8 * (moments + count) + 64, 2), zeros(moments), zeros(moments), state,
        )  # fmt: skip


@dataclass
class _Member:
    """A search in one order at one capacity."""

    order: _Order
    capacity: int
    search: Any
    slices: Slices = field(default_factory=lambda: Slices(FIRST_CALL, LONGEST_CALL, 0.05))

    def run(self, tries: int) -> tuple[int, int]:
        """Try up to so many placements in one call; what it ends with, and how many were tried."""
        from remat.allocation import canonical_kernel as code

        before = int(self.search.state[code.TRIED])
        with self.slices:
            ended = code.search(self.search, min(tries, self.slices.amount))
        if ended == code.NO_ROOM:  # twice the room for trails and goals
            arrays = {name: getattr(self.search, name) for name in ("goals", "offset_trail", "floor_trail")}
            larger = {name: np.concatenate([array, np.zeros_like(array)]) for name, array in arrays.items()}
            self.search = self.search._replace(**larger)
        return ended, int(self.search.state[code.TRIED]) - before


class _Run:
    """One call of the search; sizes and offsets are in units."""

    def __init__(
        self,
        allocator: Allocator,
        problem: AllocationProblem,
        options: SolveOptions,
        start: Addresses | None,
        on_addresses: OnAddresses | None,
    ) -> None:
        self.allocator, self.problem, self.options, self.tell = allocator, problem, options, on_addresses
        self.rng = np.random.default_rng(options.seed)
        c = self.c = problem.compressed
        by_time = np.argsort(c.first, kind="stable")
        self.buffers = by_time[c.size[by_time] > 0]  # what has no bytes may lie anywhere
        self.first, self.last, self.size = (x[self.buffers] for x in (c.first, c.last, c.size))
        place = np.empty(len(c.size), dtype=np.int64)
        place[self.buffers] = np.arange(len(self.buffers))
        one, other = c.pairs()
        self.pairs = place[one], place[other]
        self.held = staircase(self.first, self.last - 1, self.size, c.moments)
        capacity = problem.capacities[0]
        self.capacity = None if capacity is None else capacity // c.unit
        self.offset = np.cumsum(self.size) - self.size  # above each other: the worst there is
        if start is not None and not (start.offset % c.unit).any():  # of another alignment, pushed up they may overlap
            self.offset = start.offset[self.buffers] // c.unit
        self.best, self.low = int((self.offset + self.size).max()), int(self.held.max())
        self.orders: list[_Order] = []
        self.members: dict[tuple[int, int], _Member] = {}
        self.lock = threading.Lock()
        self.tried = 0

    def search(self) -> None:
        """Take turns until all is done or the deadline has come."""
        round_ = 0
        while self._is_open() and not self.options.deadline.expired:
            self._new_orders()
            round_ += 1
            capacities = self._capacities()
            kept = {capacity for _, capacity in self.members if self.low <= capacity < self.best}
            chosen = sorted({*capacities, *kept})[:4]
            self.members = {
                (number, capacity): self.members.get((number, capacity))
                or _Member(order, capacity, order.begin(capacity))
                for number, order in enumerate(self.orders)
                for capacity in chosen
            }
            threads = max(1, min(self.options.threads or available_cpus(), len(self.members)))
            with ThreadPoolExecutor(threads) as pool:
                list(pool.map(partial(self._turn, tries=FIRST_TURN << min(round_, 20)), self.members.values()))

    def _is_open(self) -> bool:
        """Return whether a better placement can still exist."""
        if self.capacity is None:
            return self.best > self.low
        return self.low <= self.capacity < self.best

    def _capacities(self) -> list[int]:
        """At which to search: the bound first, and some above it, should that be too hard."""
        if self.capacity is not None:
            return [self.capacity]
        gap = self.best - self.low
        return [self.low, self.low + gap // 8, self.low + gap // 3, self.best - 1]

    def _new_orders(self) -> None:
        """The next orders join the others: four at first, then two, then one at random."""
        done = len(self.orders)
        keys = self._keys()
        for letters in ORDERS[done : done + (2 if done else 4)] or [""]:
            if letters:
                rank = np.lexsort([-keys[letter] for letter in reversed(letters)])
            else:
                noise = [np.log1p(key) + self.rng.normal(0, 0.3, len(key)) for key in keys.values()]
                weights = self.rng.dirichlet(np.ones(len(noise)))
                rank = np.argsort(-sum(w * x / (x.std() + 1e-9) for w, x in zip(weights, noise, strict=True)))
            self.orders.append(_Order(self.first, self.last, self.size, self.c.moments, pairs=self.pairs, rank=rank))

    def _keys(self) -> dict[str, Float]:
        """Return the keys by which buffers are ranked.

        T: the bytes of all that lives at the fullest step of each; W: its steps; A: steps times bytes; Z: bytes;
        O: how many buffers live with it.
        """
        b, (first, last) = self.problem.buffers, (self.first, self.last)
        starts, ends = np.sort(first), np.sort(last)
        steps = (b.upper - b.lower)[self.buffers].astype(np.float64)
        return {
            "T": np.array([self.held[f:e].max() for f, e in zip(first, last, strict=True)], dtype=np.float64),
            "W": steps,
            "A": steps * self.size,
            "Z": self.size.astype(np.float64),
            "O": (np.searchsorted(starts, last) - np.searchsorted(ends, first, side="right")).astype(np.float64),
        }

    def _turn(self, member: _Member, tries: int) -> None:
        """Let a search try so many placements, as long as it can still say something new."""
        from remat.allocation import canonical_kernel as code

        while tries > 0 and self.low <= member.capacity < self.best and not self.options.deadline.expired:
            ended, done = member.run(tries)
            tries -= done
            with self.lock:
                self.tried += done
                if ended == code.IMPOSSIBLE:
                    self.low = max(self.low, member.capacity + 1)
                elif ended == code.PLACED:
                    self._place(member)

    def _place(self, member: _Member) -> None:
        offset = np.empty_like(self.offset)
        offset[member.order.rank] = member.search.offset
        top = int((offset + self.size).max())
        if top < self.best:
            self.best, self.offset = top, offset
            if self.tell is not None and (self.capacity is None or top <= self.capacity):
                self.tell(self._addresses())

    def _addresses(self) -> Addresses:
        offset = np.zeros(len(self.problem.buffers), dtype=np.int64)
        offset[self.buffers] = self.offset
        return self.problem.addresses(offset * self.c.unit, source=self.allocator.name)

    def result(self) -> Allocation:
        """The answer."""
        impossible = ""
        if self.capacity is not None and self.low > self.capacity:
            impossible = f"no placement fits into {self.problem.capacities[0]:,} bytes: all were tried"
        bound = self.low * self.c.unit if self.capacity is None else 0
        return self.allocator.found(self.problem, self._addresses(), bound, impossible=impossible, tried=self.tried)
