"""Problem of placing buffers in memories, and its compressed form."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from remat.errors import ProblemError, ScheduleError
from remat.runtime.arrays import Bool, Int
from remat.runtime.text import short
from remat.schedule.addresses import ONE_MEMORY, Addresses, Memory, check_alignment, repeated
from remat.schedule.buffers import Buffers, live_sums


@dataclass(frozen=True, eq=False)
class AllocationProblem:
    """Buffers to place so that no two that are live at the same step share a byte.

    A memory with a capacity costs nothing up to that capacity. The total size of the arenas of memories without a
    capacity is minimised. One memory without a capacity thus asks for the least arena, and one with a capacity for
    any addresses within it.

    Attributes
    ----------
    buffers : Buffers
    memories : tuple of Memory
        In the order in which simple rules fill them.
    alignment : int
        Offsets are multiples of it; sizes and arenas are rounded up to it, capacities down.
    allowed : bool array, shape (buffers, memories), or None
        Memories in which each buffer may lie; None: all.

    Raises
    ------
    ProblemError
        Naming the buffer without an allowed memory, or two memories with the same name.

    Examples
    --------
    >>> b = Buffers.of(["a", "b", "c"], lower=[0, 1, 2], upper=[2, 3, 3], size=[4, 2, 1])
    >>> AllocationProblem(b).bound
    6
    >>> AllocationProblem(b, (Memory("fast", 4), Memory("slow"))).bound
    2
    >>> print(AllocationProblem(b, (Memory("all", 5),)).contradiction)
    step 1: 6 bytes are held, but there are 5 (all)
    """

    buffers: Buffers
    memories: tuple[Memory, ...] = ONE_MEMORY
    alignment: int = 1
    allowed: Bool | None = None

    def __post_init__(self) -> None:
        try:
            check_alignment(self.alignment)
        except ScheduleError as error:
            raise ProblemError(str(error), "alignment") from None
        if not self.memories:
            raise ProblemError("there is no memory to place buffers in")
        if (twice := repeated([memory.name for memory in self.memories])) is not None:
            raise ProblemError(f"two memories have the name {twice!r}", "two-memories")
        if self.allowed is not None:
            if self.allowed.shape != (len(self.buffers), len(self.memories)):
                raise ProblemError(f"{self.allowed.shape} allowed places are not one for each buffer and memory")
            nowhere = ~self.allowed.any(axis=1)
            if nowhere.any():
                raise ProblemError(
                    f"buffer {short(self.buffers.names[int(nowhere.argmax())])} is allowed in no memory",
                    "no-memory-allowed",
                )

    def __repr__(self) -> str:
        memories = ", ".join(memory.name for memory in self.memories)
        return f"AllocationProblem({self.buffers.graph!r}, {len(self.buffers):,} buffers, memories: {memories})"

    @property
    def places(self) -> Bool:
        """Memories in which each buffer may lie; shape (buffers, memories)."""
        if self.allowed is not None:
            return self.allowed
        return np.ones((len(self.buffers), len(self.memories)), dtype=np.bool_)

    @cached_property
    def sizes(self) -> Int:
        """Bytes that each buffer takes, rounded up to the alignment."""
        return self.buffers.rounded(self.alignment)

    @property
    def capacities(self) -> tuple[int | None, ...]:
        """Capacities of the memories, rounded down to the alignment."""
        return tuple(
            None if m.capacity is None else m.capacity // self.alignment * self.alignment for m in self.memories
        )

    @property
    def open_memories(self) -> tuple[int, ...]:
        """Positions of the memories without a capacity, whose arenas are minimised."""
        return tuple(k for k, memory in enumerate(self.memories) if memory.capacity is None)

    def price(self, addresses: Addresses) -> int:
        """Return the value to minimise: the arenas of the memories without a capacity, in bytes."""
        return sum(addresses.arenas[k] for k in self.open_memories)

    @cached_property
    def _needs(self) -> tuple[int, str]:
        """Lower bound in bytes, and the reason why no addresses exist, or an empty string."""
        bound, contradiction, b, places = 0, "", self.buffers, self.places
        for allowed in np.unique(places, axis=0):
            # the buffers that must lie in these memories
            chosen, where = np.flatnonzero(~(places & ~allowed).any(axis=1)), np.flatnonzero(allowed).tolist()
            caps = [self.capacities[k] for k in where]
            room = sum(cap for cap in caps if cap is not None)
            times, live = live_sums(b.lower[chosen], b.upper[chosen], self.sizes[chosen])
            most = int(live.max(initial=0))
            if None in caps:
                bound = max(bound, most - room)
            elif most > room and not contradiction:
                names = " and ".join(self.memories[k].name for k in where)
                contradiction = (
                    f"step {times[int(live.argmax())]}: {most:,} bytes are held, but there are {room:,} ({names})"
                )
            for k in chosen.tolist():
                if not contradiction and None not in caps and all(cap < self.sizes[k] for cap in caps):
                    contradiction = f"buffer {short(b.names[k])} has {b.size[k]:,} bytes and fits into no memory"
        return bound, contradiction

    @property
    def bound(self) -> int:
        """Lower bound of :meth:`price` in bytes, from the bytes live at one step."""
        return self._needs[0]

    @property
    def contradiction(self) -> str:
        """Reason why no addresses exist, as far as sums show; empty otherwise."""
        return self._needs[1]

    def addresses(self, offset: Int, memory: Int | None = None, source: str = "") -> Addresses:
        """Return addresses for the buffers, from offsets in bytes."""
        where = np.zeros(len(self.buffers), dtype=np.int64) if memory is None else memory
        return Addresses(self.buffers, offset, where, self.memories, self.alignment, source)

    @cached_property
    def compressed(self) -> Compressed:
        """Compressed form of the problem."""
        return Compressed.of(self.buffers.lower, self.buffers.upper, self.sizes)


@dataclass(frozen=True, eq=False)
class Compressed:
    """Intervals over *moments*, and sizes in units of their greatest common divisor.

    A moment is a step at which a buffer starts and after which one ends no later than the next start. Two buffers are
    live at the same step if and only if they share a moment, and buffers live together at any other step also live
    together at a moment. Moments therefore suffice.

    Attributes
    ----------
    first, last : int64 arrays, shape (buffers,)
        Each buffer lives at the moments ``first <= m < last``.
    size : int64 array, shape (buffers,)
        In units.
    moments : int
        Number of moments.
    unit : int
        Bytes.

    Examples
    --------
    >>> b = Buffers.of(["a", "b", "c", "d"], lower=[0, 10, 20, 40], upper=[30, 25, 50, 60], size=[8, 4, 4, 12])
    >>> found = AllocationProblem(b).compressed
    >>> found.first.tolist(), found.last.tolist(), found.size.tolist(), found.unit
    ([0, 0, 0, 1], [1, 1, 2, 2], [2, 1, 1, 3], 4)
    """

    first: Int
    last: Int
    size: Int
    moments: int
    unit: int

    @classmethod
    def of(cls, lower: Int, upper: Int, size: Int) -> Compressed:
        """Make the compressed form from steps and bytes."""
        begins, ends = np.unique(lower), np.unique(upper)
        # starts after which a buffer ends before, or when, the next one starts
        ended = np.searchsorted(ends, begins, side="right") if len(ends) else begins
        next_begin = np.append(begins[1:], np.iinfo(np.int64).max) if len(begins) else begins
        last_one = np.searchsorted(ends, next_begin, side="right") if len(ends) else begins
        moments = begins[last_one > ended]
        unit = int(np.gcd.reduce(size)) if len(size) else 1
        unit = unit or 1
        return cls(np.searchsorted(moments, lower), np.searchsorted(moments, upper), size // unit, len(moments), unit)

    def pairs(self) -> tuple[Int, Int]:
        """Return all pairs (i, j) with i < j of buffers that live at the same moment and have bytes."""
        found: list[Int] = []
        order = np.flatnonzero(self.size > 0)
        order = order[np.argsort(self.first[order], kind="stable")]
        starts = self.first[order]
        for at, k in enumerate(order.tolist()):
            others = order[at + 1 : int(np.searchsorted(starts, self.last[k]))]
            found.append(np.stack([np.full(len(others), k), others], axis=1))
        pairs = np.concatenate(found) if found else np.zeros((0, 2), dtype=np.int64)
        return pairs.min(axis=1, initial=2**62), pairs.max(axis=1, initial=-1)
