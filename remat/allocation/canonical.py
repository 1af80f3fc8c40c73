"""A search for placements within a capacity that proves it where there are none."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from remat.allocation.base import Allocation, Allocator, OnAddresses
from remat.allocation.fits import quick
from remat.allocation.problem import AllocationProblem
from remat.backends.base import DEFAULT_OPTIONS, SolveOptions
from remat.compiled import KernelSet
from remat.errors import ProblemError
from remat.runtime.arrays import Float, Int
from remat.runtime.options import Options
from remat.runtime.resources import available_cpus
from remat.schedule.addresses import Addresses

#: Orders by the keys of :func:`_keys`, in turn: those that were quickest on the six hard instances come first.
ORDERS = ("TWA", "TAW", "TOW", "WAT", "TOA", "WTA", "AWT", "TZW", "OWT", "ZTW")
#: Most pairs of buffers that live together: lists of them are kept for every order.
MAX_PAIRS = 3_000_000
#: Placements tried in the first turn of an order, and the seconds that a call of compiled code may take.
FIRST_TURN, CALL = 2_000, 0.1


def _example() -> None:
    from remat.allocation.canonical_kernel import search

    one = np.array([0, 1])
    search(_Order(one, one + 1, np.array([1, 1]), 2, np.arange(2)).begin(3), 10)


#: The compiled search.
KERNELS = KernelSet("canonical placements", __name__, _example)


@dataclass(frozen=True)
class CanonicalOptions(Options):
    """Options of the search.

    Attributes
    ----------
    orders : tuple of str
        Orders in which buffers are tried, each by letters that count in turn, largest first: the bytes of all that
        lives at the fullest step of a buffer (T), its steps (W), steps times bytes (A), bytes (Z), how many buffers
        live with it (O).
    random_orders : bool
        Whether more orders join them, drawn at random, one after each round.
    """

    orders: tuple[str, ...] = ORDERS
    random_orders: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        for order in self.orders:
            if not order or set(order) - set("TWAZO"):
                raise ProblemError(f"order {order!r} is not made of the letters T, W, A, Z and O", "order-letters")
        if not self.orders and not self.random_orders:
            raise ProblemError("there are no orders to search in")


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
    options_type = CanonicalOptions
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
    """The buffers of a part by rank, with all that searches at any capacity share."""

    def __init__(self, first: Int, last: Int, size: Int, moments: int, rank: Int) -> None:
        from remat.allocation.canonical_kernel import GOAL

        self.rank, self.moments = rank, moments
        self.first, self.last, self.size = (np.ascontiguousarray(x[rank]) for x in (first, last, size))
        count = len(rank)
        near = [
            np.flatnonzero((self.first < self.last[k]) & (self.last > self.first[k]) & (np.arange(count) != k))
            for k in range(count)
        ]
        members = [np.flatnonzero((self.first <= m) & (m < self.last)) for m in range(moments)]
        (self.near_ptr, self.near), (self.member_ptr, self.members) = _lists(near), _lists(members)
        self.total = np.array([self.size[m].sum() for m in members], dtype=np.int64)
        self.across = np.array(
            [((self.first <= m) & (self.last > m + 1)).sum() for m in range(moments)], dtype=np.int64
        )
        self.twin = np.full(count, -1, dtype=np.int64)
        seen: dict[tuple[int, int, int], int] = {}
        each = zip(self.first.tolist(), self.last.tolist(), self.size.tolist(), strict=True)
        for k, key in enumerate(each):
            self.twin[k] = seen.get(key, -1)
            seen[key] = k
        self.goal_columns = GOAL

    def begin(self, capacity: int) -> object:
        """A search at a capacity in units."""
        from remat.allocation import canonical_kernel as code

        count, moments = len(self.rank), self.moments

        def zeros(*shape: int) -> Int:
            return np.zeros(shape, dtype=np.int64)

        state = zeros(code.STATE)
        state[code.CAPACITY], state[code.NEXT] = capacity, 0
        goals = zeros(2 * (moments + count) + 4, code.GOAL)
        goals[0] = (0, moments, -1, -1, -1, -1)
        state[code.GOALS] = 1
        return code.Search(
            self.first, self.last, self.size, self.twin, self.near_ptr, self.near, self.member_ptr, self.members,
            zeros(count) - 1, zeros(count), zeros(moments), self.total.copy(), self.across.copy(),
            zeros(count + 1, code.FRAME), goals, zeros(8 * count + 64, 2), zeros(8 * (moments + count) + 64, 2),
            zeros(moments), zeros(moments), state,
        )  # fmt: skip


def _lists(parts: list[Int]) -> tuple[Int, Int]:
    pointers = np.concatenate([[0], np.cumsum([len(part) for part in parts])]).astype(np.int64)
    return pointers, np.concatenate(parts).astype(np.int64)


@dataclass
class _Member:
    """A search in one order at one capacity."""

    order: _Order
    capacity: int
    search: object
    rate: float = 100_000.0

    def turn(self, tries: int) -> Iterator[int]:
        """So many placements tried, in calls of a tenth of a second; what each ends with."""
        from remat.allocation import canonical_kernel as code

        while tries > 0:
            some = int(min(tries, max(100, CALL * self.rate)))
            began = time.monotonic()
            before = int(self.search.state[code.TRIED])  # type: ignore[attr-defined]
            ended = code.search(self.search, some)
            done = int(self.search.state[code.TRIED]) - before  # type: ignore[attr-defined]
            self.rate = max(done, 1) / max(time.monotonic() - began, 1e-4)
            tries -= done
            if ended == code.NO_ROOM:
                self._grow()
            else:
                yield ended
            if ended in (code.PLACED, code.IMPOSSIBLE):
                return

    def _grow(self) -> None:
        """Twice the room for trails and goals."""
        names = ("goals", "offset_trail", "floor_trail")
        arrays = {name: getattr(self.search, name) for name in names}
        larger = {name: np.concatenate([array, np.zeros_like(array)]) for name, array in arrays.items()}
        self.search = self.search._replace(**larger)  # type: ignore[attr-defined]


@dataclass
class _Part:
    """Buffers that share no step with the others: their best arena and their bound, in units."""

    buffers: Int
    offset: Int
    best: int
    low: int
    members: deque[_Member] = field(default_factory=deque)
    orders: list[_Order] = field(default_factory=list)
    round: int = 0


class _Run:
    """One call of the search."""

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
        self.c = problem.compressed
        capacity = problem.capacities[0]
        self.capacity = None if capacity is None else capacity // self.c.unit
        if start is None:  # above each other: the worst there is
            offset = np.cumsum(self.c.size) - self.c.size
        else:
            offset = -(-start.offset // self.c.unit)
            if (start.offset % self.c.unit).any():  # of another alignment: pushed up, they may overlap
                offset = np.cumsum(self.c.size) - self.c.size
        held = [chosen[self.c.size[chosen] > 0] for chosen in self.c.parts()]  # what has no bytes may lie anywhere
        self.parts = [self._part(chosen, offset[chosen]) for chosen in held if len(chosen)]
        self.lock = threading.Lock()
        self.told = max(part.best for part in self.parts)
        self.tried = 0

    def _part(self, chosen: Int, offset: Int) -> _Part:
        return _Part(chosen, offset, int((offset + self.c.size[chosen]).max()), int(self._held(chosen).max()))

    def _held(self, chosen: Int) -> Int:
        """Units of some buffers that live at each moment, and after the last."""
        total = np.zeros(self.c.moments + 1, dtype=np.int64)
        np.add.at(total, self.c.first[chosen], self.c.size[chosen])
        np.subtract.at(total, self.c.last[chosen], self.c.size[chosen])
        return np.cumsum(total)

    # -- what is left to do ------------------------------------------------------------------------------------------

    @property
    def low(self) -> int:
        """Units that no placement gets below."""
        return max(part.low for part in self.parts)

    def wanted(self) -> _Part | None:
        """The part that is worst; None: nothing is left to do."""
        worst = max(self.parts, key=lambda part: part.best)
        if self.capacity is not None:
            if worst.best <= self.capacity or any(part.low > self.capacity for part in self.parts):
                return None
            return worst
        return worst if worst.best > self.low else None

    def capacities(self, part: _Part) -> list[int]:
        """At which to search: the bound first, and some above it, should that be too hard."""
        if self.capacity is not None:
            return [self.capacity]
        low, gap = self.low, part.best - self.low
        return sorted({low, low + gap // 8, low + gap // 3, part.best - 1})

    def search(self) -> None:
        """Take turns until all is done or the deadline has come."""
        deadline = self.options.deadline
        while (part := self.wanted()) is not None and not deadline.expired:
            self._new_order(part)
            part.round += 1
            part.members = self._members(part)
            turn = FIRST_TURN << min(part.round, 20)
            queue = deque(part.members)
            threads = max(1, min(self.options.threads or available_cpus(), len(queue)))
            workers = [threading.Thread(target=self._work, args=(part, queue, turn)) for _ in range(threads - 1)]
            for worker in workers:
                worker.start()
            self._work(part, queue, turn)
            for worker in workers:
                worker.join()

    def _new_order(self, part: _Part) -> None:
        """The next order joins the others."""
        options: CanonicalOptions = self.allocator.options
        fixed, done = options.orders, len(part.orders)
        wanted = (4 if done == 0 else 2) if done < len(fixed) else int(options.random_orders)
        first, last, size = (x[part.buffers] for x in (self.c.first, self.c.last, self.c.size))
        shift = int(first.min())
        keys = self._keys(part)
        for number in range(done, done + wanted):
            if number < len(fixed):
                rank = np.lexsort([-keys[letter] for letter in reversed(fixed[number])])
            else:
                noise = {letter: np.log1p(key) + self.rng.normal(0, 0.3, len(key)) for letter, key in keys.items()}
                weights = self.rng.dirichlet(np.ones(len(noise)))
                rank = np.argsort(-sum(w * x / (x.std() + 1e-9) for w, x in zip(weights, noise.values(), strict=True)))
            part.orders.append(_Order(first - shift, last - shift, size, int(last.max()) - shift, rank))

    def _keys(self, part: _Part) -> dict[str, Float]:
        b, chosen = self.problem.buffers, part.buffers
        first, last, size = (x[chosen] for x in (self.c.first, self.c.last, self.c.size))
        held = self._held(chosen)
        starts, ends = np.sort(first), np.sort(last)
        steps = (b.upper - b.lower)[chosen].astype(np.float64)
        return {
            "T": np.array([held[f:e].max() for f, e in zip(first, last, strict=True)], dtype=np.float64),
            "W": steps,
            "A": steps * size,
            "Z": size.astype(np.float64),
            "O": (np.searchsorted(starts, last) - np.searchsorted(ends, first, side="right")).astype(np.float64),
        }

    def _members(self, part: _Part) -> deque[_Member]:
        """Searches of this round; those of earlier rounds go on where they are."""
        there = {(id(member.order), member.capacity): member for member in part.members}
        kept = [member.capacity for member in part.members if part.low <= member.capacity < part.best]
        chosen = sorted({*self.capacities(part), *kept})[:4]
        return deque(
            there.get((id(order), capacity)) or _Member(order, capacity, order.begin(capacity))
            for order in part.orders
            for capacity in chosen
        )

    def _work(self, part: _Part, queue: deque[_Member], tries: int) -> None:
        """Take searches from the queue, a turn for each."""
        from remat.allocation import canonical_kernel as code

        while True:
            try:
                member = queue.popleft()
            except IndexError:
                return
            if not self._needed(part, member):
                continue
            before = int(member.search.state[code.TRIED])  # type: ignore[attr-defined]
            for ended in member.turn(tries):
                if ended == code.PLACED:
                    self._placed(part, member)
                elif ended == code.IMPOSSIBLE:
                    with self.lock:
                        part.low = max(part.low, member.capacity + 1)
                if self.options.deadline.expired or not self._needed(part, member):
                    break
            with self.lock:
                self.tried += int(member.search.state[code.TRIED]) - before  # type: ignore[attr-defined]

    def _needed(self, part: _Part, member: _Member) -> bool:
        """Whether it could still say something new."""
        if self.options.deadline.expired:
            return False
        with self.lock:
            if self.capacity is None and member.capacity < self.low and part.best > self.low:
                return False  # other parts need more than that
            return part.low <= member.capacity < part.best

    def _placed(self, part: _Part, member: _Member) -> None:
        offset = np.empty_like(part.offset)
        offset[member.order.rank] = member.search.offset  # type: ignore[attr-defined]
        top = int((offset + self.c.size[part.buffers]).max())
        with self.lock:
            if top >= part.best:
                return
            part.best, part.offset = top, offset
            now = max(other.best for other in self.parts)
            if now < self.told:
                self.told = now
                if self.tell is not None and (self.capacity is None or now <= self.capacity):
                    self.tell(self._addresses())

    def _addresses(self) -> Addresses:
        offset = np.zeros(len(self.problem.buffers), dtype=np.int64)
        for part in self.parts:
            offset[part.buffers] = part.offset
        return self.problem.addresses(offset * self.c.unit, source=self.allocator.name)

    def result(self) -> Allocation:
        """The answer."""
        low = self.low
        impossible = ""
        if self.capacity is not None and low > self.capacity:
            impossible = f"no placement fits into {self.problem.capacities[0]:,} bytes: all were tried"
        bound = low * self.c.unit if self.capacity is None else 0
        return self.allocator.found(self.problem, self._addresses(), bound, impossible=impossible, tried=self.tried)
