"""Search for placements within a capacity, which also proves infeasibility."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property, partial
from itertools import pairwise
from typing import Any

import numpy as np

from remat.allocation.base import Allocation, Allocator, OnAddresses
from remat.allocation.fits import quick
from remat.allocation.problem import AllocationProblem
from remat.graphs.arrays import Csr, staircase
from remat.runtime.arrays import Float, Int
from remat.runtime.compiled import KernelSet
from remat.runtime.compiled.interpreted import interpreted
from remat.runtime.deadline import Deadline, Slices
from remat.runtime.resources import available_cpus
from remat.runtime.solve_options import DEFAULT_OPTIONS, SolveOptions
from remat.schedule.addresses import Addresses
from remat.schedule.buffers import Buffers

#: Orders of buffers by keys of :attr:`_Run._keys`, first key first, largest value first. ``*``: after a split of time,
#: the remaining buffers are sorted by T again. ``~``: each turn restarts, and of buffers with equal offsets those that
#: met at dead ends come first. Each of the two kinds solves instances that the other does not.
ORDERS = (
    "TWA*", "TAW", "TOW~", "WAT", "TWA~", "AWT~", "TOA", "TWA", "TAW~", "TOW", "TWA*~", "WAT~", "AWT", "TOA~",
)  # fmt: skip
#: Random orders that join in each round after the first.
DRAWN = 4
#: Largest number of pairs of buffers that are live together: lists of them are kept for every order.
MAX_PAIRS = 3_000_000
#: Decisions per buffer in the first turn of an order: good orders need one or two per buffer.
FIRST_TURN = 2
#: Decisions in the first and the longest call of the kernel, and in the first interpreted call.
FIRST_CALL, LONGEST_CALL, INTERPRETED_CALL = 1_000, 1_000_000, 20


def _example() -> None:
    from remat.allocation.canonical_kernel import search

    buffers = Buffers.of("ab", [0, 1], [1, 2], [1, 1])
    run = _Run(CanonicalSearch(), AllocationProblem(buffers), DEFAULT_OPTIONS, None, None)
    search(_Order(run, np.arange(2)).begin(3), 10, False)


#: Kernels of the search.
KERNELS = KernelSet("canonical placements", __name__, _example)


class CanonicalSearch(Allocator):
    """Depth-first search over *canonical* placements, in several orders that take turns.

    Push every buffer of a placement down until it rests on another one or on the ground, and list the buffers by
    offset. Each buffer then lies at the lowest offset that earlier buffers allow. Each decision takes the buffer with
    the lowest such offset. It places the buffer there, or *postpones* it until another one below raises that offset.
    Each decision propagates bounds on offsets:

    * At each moment the unplaced buffers must fit between the next buffer and the capacity. A buffer whose bound is too
      high to be the next one comes after the end of another one; if only one can be the next, all others come after it.
    * A postponed buffer rests on one that begins before the end of the place it could have had: otherwise it could be
      placed there.
    * Of two buffers that live at the same moments, one on the other, the first by rank lies below. The same holds for
      the first of two identical buffers.

    If the unplaced buffers split into separate stretches of time, the search solves each stretch separately. If one is
    infeasible, the search undoes the placement that caused the split.

    The rank, which decides between equal offsets, makes the difference between a millisecond and never: a good rank
    needs hardly more decisions than there are buffers. Searches with several ranks therefore take turns, each twice as
    long as the last, and new ones join in each round; a proof by one of them holds for all. Half of them restart in
    each turn and then prefer buffers that met at dead ends (Boussemart et al., ECAI 2004). Without a capacity they
    search below the best arena, starting at the bound. Until the kernel is compiled, Python runs the search.

    Source: M. D. Moffitt, "MiniMalloc: A Lightweight Memory Allocator for Hardware-Accelerated Machine Learning",
    ASPLOS 2023 (canonical solutions, inference on sections, decomposition, orders); C. Le Pape et al., "Time-versus-
    capacity compromises in project scheduling", 1994 (postponed activities); J. Carlier and E. Pinson, "An algorithm
    for solving the job-shop problem", Management Science 35, 1989 (first and not first). The code is original.

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
        notes: tuple[str, ...] = ()
        if start is None:
            greedy = quick(problem, options)
            start, notes = greedy.addresses, greedy.notes
        if problem.contradiction or not problem.sizes.any():
            return self.found(problem, start, notes=notes)
        overlaps = _pairs_at_most(problem)
        if overlaps > MAX_PAIRS:
            note = f"{overlaps:,} pairs of buffers live together, more than the {MAX_PAIRS:,} that are searched"
            return self.found(problem, start, notes=(*notes, note))
        run = _Run(self, problem, options, start, on_addresses)
        if not KERNELS.loaded and KERNELS.begin():
            run.search(options.deadline.until(lambda: KERNELS.compiled() is not None), compiled=False)
        if not run.is_done and self.prepared(options.deadline):
            run.search(options.deadline, compiled=True)
        return run.result(notes)


def _pairs_at_most(problem: AllocationProblem) -> int:
    c = problem.compressed
    starts, ends = np.sort(c.first), np.sort(c.last)
    return int((np.searchsorted(starts, c.last) - np.searchsorted(ends, c.first, side="right") - 1).sum()) // 2


class _Order:
    """Buffers by rank, with the tables that searches at all capacities share."""

    def __init__(self, run: _Run, rank: Int, flags: str = "") -> None:
        self.rank, self.moments, self.sorts, self.heats = rank, run.c.moments, "*" in flags, "~" in flags
        self.first, self.last, self.size = (np.ascontiguousarray(x[rank]) for x in (run.first, run.last, run.size))
        count = len(rank)
        place = np.empty(count, dtype=np.int64)
        place[rank] = np.arange(count)
        one, other = place[run.pairs[0]], place[run.pairs[1]]
        near = Csr.from_pairs(np.concatenate([one, other]), np.concatenate([other, one]), count)
        length = self.last - self.first
        owner = np.repeat(np.arange(count), length)
        moment = np.arange(len(owner)) + np.repeat(self.last - np.cumsum(length), length)
        members = Csr.from_pairs(moment, owner, self.moments)
        # the kernel takes writable arrays
        self.near = near.indptr.copy(), near.indices.copy()
        self.members = members.indptr.copy(), members.indices.copy()
        self.total = members.sums(self.size)
        self.across = staircase(self.first, self.last - 2, np.ones_like(self.size), self.moments)
        self.twin, self.mate = np.full(count, -1, dtype=np.int64), np.arange(count)
        twins: dict[tuple[int, int, int], int] = {}
        mates: dict[tuple[int, int], int] = {}
        for k, key in enumerate(zip(self.first.tolist(), self.last.tolist(), self.size.tolist(), strict=True)):
            self.twin[k] = twins.get(key, -1)
            twins[key] = k
            before = mates.setdefault(key[:2], k)  # a ring of buffers that live at the same moments
            self.mate[k], self.mate[before] = self.mate[before], k

    def begin(self, capacity: int) -> Any:
        """Return a search at a capacity in units."""
        from remat.allocation import canonical_kernel as code

        count, moments = len(self.rank), self.moments

        def zeros(length: int) -> Int:
            return np.zeros(length, dtype=np.int64)

        # a goal for each stretch of time that no buffer crosses
        ends = (np.flatnonzero(self.across == 0) + 1).tolist()
        stretches = [(a, b) for a, b in pairwise([0, *ends]) if self.total[a:b].any()]
        state, goals, lists = zeros(code.STATE), zeros(2 * (moments + count + 2) * code.GOAL), zeros(8 * count)
        made = 0
        for number, (begin, end) in enumerate(stretches):
            inside = np.flatnonzero((self.first >= begin) & (self.last <= end))
            after = number + 1 if number + 1 < len(stretches) else -1
            goals[number * code.GOAL :][: code.GOAL] = begin, end, made, made + len(inside), -1, after, 0, 0
            lists[made : made + len(inside)] = inside
            made += len(inside)
        state[code.CAPACITY], state[code.SORTS], state[code.HEATS] = capacity, self.sorts, self.heats
        state[code.GOALS], state[code.LISTS], state[code.QUEUED] = len(stretches), made, moments
        return code.Search(
            self.first, self.last, self.size, self.twin, self.mate, *self.near, *self.members, zeros(count) - 1,
            zeros(2 * count), self.total.copy(), self.across.copy(), zeros(count) - 1, zeros(count), zeros(count),
            zeros(2 * count), np.arange(moments), zeros(moments) + 1, zeros((4 * count + 4) * code.FRAME), goals, lists,
            zeros(16 * count), state,
        )  # fmt: skip


class _Member:
    """Search in one order at one capacity."""

    def __init__(self, order: _Order, capacity: int, compiled: bool) -> None:
        from remat.allocation import canonical_kernel as code

        self.order, self.capacity, self.search = order, capacity, order.begin(capacity)
        self.step, first = code.search, FIRST_CALL
        if not compiled:
            self.step, first = interpreted(code.search), INTERPRETED_CALL
            self.search = code.Search(*(array.tolist() for array in self.search))
        self.slices = Slices(first, LONGEST_CALL, 0.05)

    def run(self, tries: int, again: bool) -> tuple[int, int]:
        """Make at most `tries` decisions, `again` from the root; return the ending and the number of decisions."""
        from remat.allocation import canonical_kernel as code

        before = int(self.search.state[code.TRIED])
        with self.slices:
            ended = self.step(self.search, min(tries, self.slices.amount), again)
        if ended == code.NO_ROOM:  # double the room
            larger = {}
            for name in ("frames", "goals", "lists", "trail"):
                array = getattr(self.search, name)
                larger[name] = array * 2 if isinstance(array, list) else np.concatenate([array, array])
            self.search = self.search._replace(**larger)
        return ended, int(self.search.state[code.TRIED]) - before


class _Run:
    """State of one call of the search; sizes and offsets are in units."""

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
        self.buffers = by_time[c.size[by_time] > 0]  # buffers of 0 bytes may lie anywhere
        self.first, self.last, self.size = (x[self.buffers] for x in (c.first, c.last, c.size))
        place = np.empty(len(c.size), dtype=np.int64)
        place[self.buffers] = np.arange(len(self.buffers))
        one, other = c.pairs()
        self.pairs = place[one], place[other]
        self.held = staircase(self.first, self.last - 1, self.size, c.moments)
        capacity = problem.capacities[0]
        self.capacity = None if capacity is None else capacity // c.unit
        self.low, self.best = int(self.held.max()), int(self.size.sum()) + 1  # worst case: all stacked
        if start is not None:
            self.best = -(-start.arena // c.unit)
        self.found, self.tried = start, 0
        self.orders: list[_Order] = []
        self.members: dict[tuple[int, int], _Member] = {}
        self.lock = threading.Lock()

    def search(self, deadline: Deadline, compiled: bool) -> None:
        """Take turns until all searches are done or the deadline passes."""
        self.members, tries, orders = {}, FIRST_TURN * len(self.size), len(ORDERS)
        while not self.is_done and not deadline.expired:
            kept = {capacity for _, capacity in self.members if self.low <= capacity < self.best}
            chosen = sorted({*self._capacities(), *kept})[:4]
            self.members = {place: member for place, member in self.members.items() if place[1] in chosen}
            places = [(number, capacity) for number in range(orders) for capacity in chosen]
            threads = max(1, min(self.options.threads or available_cpus(), len(places))) if compiled else 1
            with ThreadPoolExecutor(threads) as pool:
                turn = partial(self._turn, tries=tries, deadline=deadline, compiled=compiled)
                list(pool.map(turn, places))
            tries, orders = 2 * tries, orders + DRAWN

    @property
    def is_done(self) -> bool:
        """True when nothing is left to find or to prove."""
        if self.capacity is None:
            return self.best <= self.low
        return not self.low <= self.capacity < self.best

    def _capacities(self) -> list[int]:
        """Return the capacities to search at: the bound first, and larger ones for quick solutions."""
        if self.capacity is not None:
            return [self.capacity]
        gap = self.best - self.low
        return [self.low, self.low + gap // 4, self.low + gap // 2, self.best - 1]

    def _order(self, number: int) -> _Order:
        """Return an order, which is made on first use."""
        while len(self.orders) <= number:
            letters, keys = ORDERS[len(self.orders)] if len(self.orders) < len(ORDERS) else "", self._keys
            if letters:
                rank = np.lexsort([-keys[letter] for letter in reversed(letters.strip("*~"))])
            else:
                noise = [np.log1p(key) + self.rng.normal(0, 0.3, len(key)) for key in keys.values()]
                weights = self.rng.dirichlet(np.ones(len(noise)))
                rank = np.argsort(-sum(w * x / (x.std() + 1e-9) for w, x in zip(weights, noise, strict=True)))
            self.orders.append(_Order(self, rank, letters or "~" * (len(self.orders) % 2)))
        return self.orders[number]

    @cached_property
    def _keys(self) -> dict[str, Float]:
        """Keys by which buffers are ranked.

        T: total bytes at the fullest step of the buffer; W: its steps; A: steps times bytes; Z: bytes; O: number of
        buffers that are live with it.
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

    def _turn(self, place: tuple[int, int], tries: int, deadline: Deadline, compiled: bool) -> None:
        """Let the search in one order, at one capacity, make decisions while it can find or prove more."""
        from remat.allocation import canonical_kernel as code

        number, capacity = place
        again = place in self.members and self.members[place].order.heats
        while tries > 0 and self.low <= capacity < self.best and not deadline.expired:
            with self.lock:
                if place not in self.members:
                    self.members[place] = _Member(self._order(number), capacity, compiled)
                member = self.members[place]
            ended, done = member.run(tries, again)
            again = False
            tries -= done
            with self.lock:
                self.tried += done
                if ended == code.IMPOSSIBLE:
                    self.low = max(self.low, capacity + 1)
                elif ended == code.PLACED:
                    self._place(member)

    def _place(self, member: _Member) -> None:
        offset = np.empty_like(self.size)
        offset[member.order.rank] = member.search.offset
        top = int((offset + self.size).max())
        if top < self.best:
            self.best = top
            everywhere = np.zeros(len(self.problem.buffers), dtype=np.int64)
            everywhere[self.buffers] = offset * self.c.unit
            self.found = self.problem.addresses(everywhere, source=self.allocator.name)
            if self.tell is not None:
                self.tell(self.found)

    def result(self, notes: tuple[str, ...]) -> Allocation:
        """Return the result."""
        impossible, bound = "", 0 if self.capacity is not None else self.low * self.c.unit
        if self.capacity is not None and self.low > self.capacity:
            impossible = f"no placement fits into {self.problem.capacities[0]:,} bytes: all were tried"
        notes = () if self.found is not None else notes  # notes of the greedy rules
        return self.allocator.found(
            self.problem, self.found, bound, impossible=impossible, tried=self.tried, notes=notes
        )
