"""Addresses of buffers, and their certificate: an independent check that no two live buffers overlap."""

from __future__ import annotations

import bisect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import numpy as np

from remat.errors import ScheduleError
from remat.runtime.arrays import Int
from remat.runtime.text import expect, short
from remat.schedule.buffers import MAX_BYTES, Buffers, live_sums
from remat.schedule.certificate import BrokenRule, Findings


@dataclass(frozen=True)
class Memory:
    """Memory that holds buffers."""

    name: str = "memory"
    capacity: int | None = None
    """Bytes; None: unlimited."""

    def __post_init__(self) -> None:
        capacity = self.capacity
        if capacity is not None and (isinstance(capacity, bool) or not isinstance(capacity, int) or capacity < 0):
            raise ScheduleError(f"the capacity of {short(self.name)} is {short(capacity)}, not a number of bytes")
        if capacity is not None and capacity > MAX_BYTES:
            raise ScheduleError(f"the capacity of {short(self.name)} is more than {MAX_BYTES:,} bytes")


#: One memory of unlimited size.
ONE_MEMORY = (Memory(),)


@dataclass(frozen=True, eq=False)
class Addresses:
    """Offset and memory of each buffer.

    The constructor checks shapes only; :func:`check_addresses` checks the addresses.

    Attributes
    ----------
    buffers : Buffers
    offset : int64 array, shape (buffers,)
        Bytes from the start of the memory.
    memory : int64 array, shape (buffers,)
        Position in `memories`.
    memories : tuple of Memory
    alignment : int
        Offsets are multiples of this number of bytes; sizes of buffers and arenas are rounded up to it.
    source : str
        Method or file that they come from.
    """

    buffers: Buffers
    offset: Int
    memory: Int
    memories: tuple[Memory, ...] = ONE_MEMORY
    alignment: int = 1
    source: str = ""

    def __post_init__(self) -> None:
        count = len(self.buffers)
        if self.offset.shape != (count,) or self.memory.shape != (count,):
            raise ScheduleError(f"{count} buffers need as many offsets and memories")
        check_alignment(self.alignment)
        if len(self.memory) and not (self.memory.min() >= 0 and self.memory.max() < len(self.memories)):
            raise ScheduleError(f"a buffer lies in a memory that does not exist: there are {len(self.memories)}")
        if (twice := repeated([memory.name for memory in self.memories])) is not None:
            raise ScheduleError(f"two memories have the name {twice!r}")
        for array in (self.offset, self.memory):
            array.flags.writeable = False

    def __repr__(self) -> str:
        return f"Addresses({self.buffers.graph!r}, {len(self.buffers):,} buffers, arena {self.arena:,} bytes)"

    @classmethod
    def in_one_memory(
        cls, buffers: Buffers, offset: object, *, alignment: int = 1, capacity: int | None = None, source: str = ""
    ) -> Addresses:
        """Place all buffers in one memory.

        Examples
        --------
        >>> b = Buffers.of(["a", "b", "c"], lower=[0, 1, 2], upper=[2, 3, 3], size=[4, 2, 1])
        >>> Addresses.in_one_memory(b, [0, 4, 0]).arenas
        (6,)
        """
        offsets = np.array(offset, dtype=np.int64)
        return cls(
            buffers, offsets, np.zeros(len(buffers), dtype=np.int64), (Memory(capacity=capacity),), alignment, source
        )

    @property
    def arenas(self) -> tuple[int, ...]:
        """Bytes that each memory needs: end of its topmost buffer, rounded up to the alignment."""
        tops = self.offset + self.buffers.rounded(self.alignment)
        return tuple(int(tops[self.memory == k].max(initial=0)) for k in range(len(self.memories)))

    @property
    def arena(self) -> int:
        """Sum of :attr:`arenas`."""
        return sum(self.arenas)

    @property
    def peaks(self) -> tuple[int, ...]:
        """Largest sum of live sizes in each memory; no arena with these buffers is smaller."""
        b, size = self.buffers, self.buffers.rounded(self.alignment)
        here = [self.memory == k for k in range(len(self.memories))]
        return tuple(int(live_sums(b.lower[m], b.upper[m], size[m])[1].max(initial=0)) for m in here)


def repeated(names: Sequence[str]) -> str | None:
    """Return the first name that occurs twice, or None."""
    return next((name for k, name in enumerate(names) if name in names[:k]), None)


def check_alignment(alignment: object) -> None:
    """Refuse an alignment that is not a positive number of bytes.

    Raises
    ------
    ScheduleError
    """
    if isinstance(alignment, bool) or not isinstance(alignment, int) or not 1 <= alignment <= 2**30:
        raise ScheduleError(f"the alignment must be a whole number of bytes from 1 to 2^30, not {short(alignment)}")


class AddressRule(StrEnum):
    """Rules for addresses."""

    UNKNOWN_BUFFER = "unknown buffer"
    """Every address belongs to a buffer of the schedule."""
    NO_ADDRESS = "no address"
    """Every buffer of the schedule has an address."""
    OTHER_BUFFER = "other buffer"
    """Every buffer has the size and the steps that the schedule gives it."""
    NEGATIVE = "negative offset"
    """No buffer starts below offset 0."""
    ALIGNMENT = "alignment"
    """Offsets are multiples of the alignment."""
    CAPACITY = "capacity"
    """No buffer ends beyond the capacity of its memory."""
    OVERLAP = "overlap"
    """No two buffers that are live at the same step share a byte of a memory."""
    OTHER_PLACE = "other place"
    """An output written in place of an input has the address of that input."""


@dataclass(frozen=True, slots=True)
class AddressViolation(BrokenRule):
    """One broken rule."""

    step: int | None
    """First step affected; None if the violation concerns the list as a whole."""
    buffer: str
    rule: AddressRule
    message: str
    """One line that names buffers and bytes."""


@dataclass(frozen=True)
class AddressCertificate(Findings[AddressViolation]):
    """Result of an independent check of addresses; all sizes in bytes.

    Attributes
    ----------
    accepted : bool
        True when no rule is broken.
    memories : tuple of Memory
    arenas, peaks : tuple of int
        For each memory, as in :class:`Addresses`.
    buffers : int
        Number of buffers.
    alignment : int
    violations : tuple of AddressViolation
        Those of the list as a whole first, then by step; at most the requested number.
    more_violations : int
    graph, graph_digest : str
    """

    accepted: bool
    memories: tuple[Memory, ...]
    arenas: tuple[int, ...]
    peaks: tuple[int, ...]
    buffers: int
    alignment: int
    violations: tuple[AddressViolation, ...] = ()
    more_violations: int = 0
    graph: str = ""
    graph_digest: str = field(default="", repr=False)

    @property
    def arena(self) -> int:
        """Bytes that all memories need together."""
        return sum(self.arenas)

    @property
    def peak(self) -> int:
        """Sum of `peaks`; no arena is smaller with the same buffers in each memory."""
        return sum(self.peaks)

    @property
    def fragmentation(self) -> float | None:
        """``arena / peak - 1``; None if the peak is 0."""
        return self.arena / self.peak - 1 if self.peak else None

    def as_dict(self) -> dict[str, Any]:
        """Return the certificate as JSON values."""
        return {
            **{
                name: getattr(self, name)
                for name in ("accepted", "arena", "peak", "fragmentation", "buffers", "alignment")
            },
            "memories": [
                {"name": memory.name, "capacity": memory.capacity, "arena": arena, "peak": peak}
                for memory, arena, peak in zip(self.memories, self.arenas, self.peaks, strict=True)
            ],
            "violations": [violation.as_dict() for violation in self.violations],
            "more_violations": self.more_violations,
            "graph": self.graph,
            "graph_digest": self.graph_digest,
        }

    def rows(self) -> list[tuple[str, str]]:
        """Return the lines of the text as pairs of label and text."""
        share = "" if self.fragmentation is None else f", fragmentation {100 * self.fragmentation:.4g} %"
        rows = [
            ("addresses", "valid" if self.accepted else "invalid"),
            ("arena", f"{self.arena:,} bytes (peak {self.peak:,} bytes{share})"),
        ]
        if len(self.memories) > 1 or any(memory.capacity is not None for memory in self.memories):
            for memory, arena, peak in zip(self.memories, self.arenas, self.peaks, strict=True):
                limit = "" if memory.capacity is None else f" of {memory.capacity:,}"
                rows.append(("in", f"{short(memory.name)}: {arena:,}{limit} bytes, peak {peak:,}"))
        aligned = "" if self.alignment == 1 else f", each at a multiple of {self.alignment:,} bytes"
        rows.append(("buffers", f"{self.buffers:,}{aligned}"))
        return rows + self._violation_rows()


def check_addresses(
    addresses: Addresses, expected: Buffers | None = None, *, max_violations: int = 20
) -> AddressCertificate:
    """Check addresses without repairing anything.

    Parameters
    ----------
    expected : Buffers, optional
        Buffers of the schedule (:func:`~remat.schedule.buffers.schedule_buffers`), compared by name; default: the
        buffers of `addresses` are not checked.
    max_violations : int
        Largest number of violations listed; others are counted. Each buffer has at most one overlap listed.

    Raises
    ------
    ScheduleError
        If an argument has the wrong type.

    Examples
    --------
    >>> b = Buffers.of(["a", "b", "c"], lower=[0, 1, 2], upper=[2, 3, 3], size=[4, 2, 1])
    >>> check_addresses(Addresses.in_one_memory(b, [0, 4, 0])).fragmentation
    0.0
    >>> print(check_addresses(Addresses.in_one_memory(b, [0, 3, 0])).first)
    step 1: buffer 'b' at [3, 5) overlaps buffer 'a' at [0, 4)
    """
    expect(addresses, Addresses, "addresses", ScheduleError)
    found: list[AddressViolation] = []
    count = 0
    for violation in _all_violations(addresses, expected):
        count += 1
        if len(found) < max_violations:
            found.append(violation)
    b = addresses.buffers
    return AddressCertificate(
        count == 0, addresses.memories, addresses.arenas, addresses.peaks, len(b), addresses.alignment, tuple(found),
        count - len(found), b.graph, b.graph_digest,
    )  # fmt: skip


def _all_violations(addresses: Addresses, expected: Buffers | None) -> Iterator[AddressViolation]:
    if expected is not None and expected is not addresses.buffers:
        yield from _differences(addresses.buffers, expected)
    yield from _sweep(addresses)
    yield from _other_places(addresses, expected or addresses.buffers)


def _other_places(addresses: Addresses, expected: Buffers) -> Iterator[AddressViolation]:
    """Yield outputs written in place of inputs but placed elsewhere, where no buffer holds their bytes at that step."""
    place = {name: k for k, name in enumerate(addresses.buffers.names)}
    for later, earlier in expected.after:
        names = expected.names[later], expected.names[earlier]
        if names[0] in place and names[1] in place:
            mine, other = ((int(addresses.memory[place[name]]), int(addresses.offset[place[name]])) for name in names)
            if mine != other:
                step = int(expected.lower[later]) - 1
                message = (
                    f"step {step}: buffer {short(names[0])} at {mine[1]} is written in place of buffer "
                    f"{short(names[1])}, which lies at {other[1]}"
                )
                yield AddressViolation(step, names[0], AddressRule.OTHER_PLACE, message)


def _differences(given: Buffers, expected: Buffers) -> Iterator[AddressViolation]:
    """Yield differences between the buffers and those of the schedule."""
    place = {name: k for k, name in enumerate(given.names)}
    known = set(expected.names)
    for name in expected.names:
        if name not in place:
            yield AddressViolation(None, name, AddressRule.NO_ADDRESS, f"buffer {short(name)} has no address")
    for name in given.names:
        if name not in known:
            message = f"{short(name)} has an address, but is no buffer of the schedule"
            yield AddressViolation(None, name, AddressRule.UNKNOWN_BUFFER, message)
    for k, name in enumerate(expected.names):
        if (at := place.get(name)) is None:
            continue
        for word, own, right in (
            ("bytes", given.size[at], expected.size[k]),
            ("as its first step", given.lower[at], expected.lower[k]),
            ("as the step after its last", given.upper[at], expected.upper[k]),
        ):
            if own != right:
                message = f"buffer {short(name)} has {own} {word}, but {right} in the schedule"
                yield AddressViolation(None, name, AddressRule.OTHER_BUFFER, message)
                break


def _sweep(addresses: Addresses) -> Iterator[AddressViolation]:
    """Sweep over time: check each buffer when it starts against its neighbours by address among the live ones."""
    b = addresses.buffers
    lower, upper, size = b.lower.tolist(), b.upper.tolist(), b.size.tolist()
    offset, memory = addresses.offset.tolist(), addresses.memory.tolist()
    live: list[list[tuple[int, int]]] = [[] for _ in addresses.memories]
    ends = sorted(range(len(b)), key=lambda k: upper[k])
    gone, held = 0, [False] * len(b)
    for k in sorted(range(len(b)), key=lambda k: (lower[k], k)):
        while gone < len(ends) and upper[ends[gone]] <= lower[k]:
            other = ends[gone]
            gone += 1
            if held[other]:
                here = live[memory[other]]
                del here[bisect.bisect_left(here, (offset[other], other))]
        wrong = _place(addresses, k, offset[k], size[k])
        yield from wrong
        if size[k] == 0 or offset[k] < 0:
            continue
        here = live[memory[k]]
        at = bisect.bisect_left(here, (offset[k], k))
        for other in [j for _, j in here[max(at - 1, 0) : at + 1]]:
            if offset[other] < offset[k] + size[k] and offset[k] < offset[other] + size[other]:
                message = (
                    f"step {lower[k]}: buffer {short(b.names[k])} at {_span(offset[k], size[k])} overlaps buffer "
                    f"{short(b.names[other])} at {_span(offset[other], size[other])}"
                )
                yield AddressViolation(lower[k], b.names[k], AddressRule.OVERLAP, message)
                break
        else:  # listed buffers are disjoint, so checking the neighbours suffices
            here.insert(at, (offset[k], k))
            held[k] = True


def _place(addresses: Addresses, k: int, offset: int, size: int) -> Sequence[AddressViolation]:
    """Return the violations of one address, regardless of other buffers."""
    name, step = addresses.buffers.names[k], int(addresses.buffers.lower[k])
    which = addresses.memories[int(addresses.memory[k])]
    found = []
    if offset < 0:
        message = f"buffer {short(name)} has offset {offset}, which is negative"
        found.append(AddressViolation(step, name, AddressRule.NEGATIVE, message))
    if offset % addresses.alignment:
        message = f"buffer {short(name)} has offset {offset}, not a multiple of {addresses.alignment}"
        found.append(AddressViolation(step, name, AddressRule.ALIGNMENT, message))
    if which.capacity is not None and offset + size > which.capacity:
        message = (
            f"step {step}: buffer {short(name)} at {_span(offset, size)} ends beyond the capacity of "
            f"{short(which.name)}, {which.capacity:,} bytes"
        )
        found.append(AddressViolation(step, name, AddressRule.CAPACITY, message))
    return found


def _span(offset: int, size: int) -> str:
    return f"[{offset}, {offset + size})"
