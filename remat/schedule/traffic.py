"""Traffic between an on-chip memory and a larger one behind it, for a known schedule (Belady 1966).

The computation reads a trace of accesses once: an op reads all of its inputs, then writes its outputs. When room is
needed, the value whose next use is farthest in the future leaves the chip. A value without further uses leaves at once,
without traffic. The blocks of a tensor are always accessed together and in order, so whole runs of blocks move: the
time depends on the number of accesses of tensors, not on that of blocks.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from remat.errors import ProblemError
from remat.graphs import ComputeGraph
from remat.schedule.accesses import DEAD, Accesses, Mode
from remat.schedule.schedule import Schedule

#: Default block size in bytes.
BLOCK = 512


@dataclass(frozen=True)
class Traffic:
    """Bytes moved between the on-chip memory and the one behind it while a schedule runs.

    Attributes
    ----------
    on_chip : int
        Bytes on the chip.
    block : int
        Bytes per block.
    fetched : int
        Bytes fetched again because they left the chip while still needed.
    written : int
        Bytes written because they left the chip while still needed, without a copy behind it.
    compulsory : int
        Bytes of the graph inputs, fetched at their first reads; independent of the capacity.
    least_fetched : int
        Lower bound of `fetched` over all choices of victims.
    """

    on_chip: int
    block: int
    fetched: int
    written: int
    compulsory: int
    least_fetched: int

    @property
    def total(self) -> int:
        """Bytes fetched and written, without the compulsory ones."""
        return self.fetched + self.written

    def as_dict(self) -> dict[str, int]:
        """Return all numbers by name."""
        return {
            "on_chip": self.on_chip, "block": self.block, "fetched": self.fetched, "written": self.written,
            "compulsory": self.compulsory, "total": self.total, "least_fetched": self.least_fetched,
        }  # fmt: skip


def off_chip_traffic(
    graph: ComputeGraph,
    schedule: Schedule,
    on_chip: int | Sequence[int],
    *,
    block: int = BLOCK,
    keep: Iterable[str] = (),
) -> list[Traffic]:
    """Return the traffic of `schedule` for each capacity of the on-chip memory, with victims chosen by future reads.

    Graph inputs start behind the chip; every other value is made on the chip, without a fetch. Values live at the end
    may end on either side. A later contribution to an accumulation buffer reads and writes it. Explicit frees have no
    effect: a value that no step reads before it is computed again takes no room.

    The victim is the block whose next read is farthest in the future (*MIN*). No choice of victims has fewer fetches.
    Since only some victims are written, another choice may move fewer bytes. The rule therefore runs in two ways:
    exactly, and with all reads of an op at one time, clean blocks first. The run with fewer bytes in total counts.
    Workspace takes no room, and an op may be larger than the chip, since its blocks pass one by one.

    Parameters
    ----------
    schedule : Schedule
        A valid schedule, with or without recomputation.
    on_chip : int or sequence of int
        Bytes of the on-chip memory, rounded down to blocks.
    block : int
        Bytes per block; each tensor starts a new block.
    keep : iterable of str
        Tensors that must be live at the end, besides the graph outputs.

    Returns
    -------
    list of Traffic
        One for each capacity.

    Raises
    ------
    ScheduleError
        Naming the violation, if the schedule breaks the graph's semantics.
    ProblemError
        If a capacity or `block` is not a positive number of bytes, or the chip has no room for one block.

    Examples
    --------
    >>> from remat.graphs import GraphBuilder
    >>> b = GraphBuilder("diamond")
    >>> names = [b.op("a", size=4), b.op("b", inputs=["a"], size=4), b.op("c", inputs=["a"], size=4)]
    >>> names.append(b.op("d", inputs=["b", "c"], size=4))
    >>> s = Schedule.from_steps([("compute", n) for n in names])
    >>> [(t.fetched, t.written) for t in off_chip_traffic(b.build(), s, [4, 8, 12], block=4)]
    [(12, 12), (0, 0), (0, 0)]
    """
    sizes = [on_chip] if isinstance(on_chip, int) else list(on_chip)
    for what, size in (*(("on-chip memory", size) for size in sizes), ("block", block)):
        if type(size) is not int or size < 1:
            raise ProblemError(f"{what} must be a positive number of bytes, not {size!r}", "bytes")
    too_small = min(sizes, default=block)
    if too_small < block:
        raise ProblemError(f"an on-chip memory of {too_small:,} bytes has no room for a block of {block:,}", "chip")
    trace = Accesses.of(graph, schedule, keep)
    exact = [*range(len(trace.tensors)), *[len(trace.tensors)] * len(graph.tensors)]
    return [_by_block(trace, size, block, exact) for size in sizes]


class _Chip:
    """Blocks on the chip, in groups: by the access that reads them next, clean and dirty ones apart.

    A group is a list of runs (first block, number after the last), ascending; the last block of a group is read last.

    Attributes
    ----------
    free : int
        Number of free blocks.
    written : int
        Number of blocks written.
    """

    def __init__(self, room: int, times: list[int]) -> None:
        self.free = room
        self.written = 0
        self._times = times
        self._groups: dict[int, deque[list[int]]] = {}
        self._latest: list[int] = []  # a heap of negated ranks of groups, some of which may be empty

    def here(self, access: int) -> tuple[deque[list[int]], deque[list[int]]]:
        """Return the dirty and the clean blocks that wait for an access."""
        nothing: deque[list[int]] = deque()
        dirty, clean = (self._groups.get(self._rank(access, dirty), nothing) for dirty in (True, False))
        return dirty, clean

    def put(self, access: int, start: int, end: int, dirty: bool) -> None:
        """Add blocks whose room is already reserved."""
        rank = self._rank(access, dirty)
        runs = self._groups.get(rank)
        if runs is None:
            runs = self._groups[rank] = deque()
            heapq.heappush(self._latest, -rank)
        if runs and runs[-1][1] == start:
            runs[-1][1] = end
        else:
            runs.append([start, end])

    def evict(self, count: int, above: int = -1) -> int:
        """Evict up to `count` blocks from groups above a rank, the highest first; return their number."""
        left = 0
        while left < count and self._latest and (rank := -self._latest[0]) > above:
            runs = self._groups[rank]
            while runs and left < count:
                number = min(count - left, runs[-1][1] - runs[-1][0])
                runs[-1][1] -= number
                left += number
                self.written += number * (rank // len(self._times) % 2 == 0)
                if runs[-1][0] == runs[-1][1]:
                    runs.pop()
            if not runs:
                del self._groups[rank]
                heapq.heappop(self._latest)
        self.free += left
        return left

    def insert(self, access: int, start: int, end: int, dirty: bool) -> None:
        """Insert blocks one after another; each makes room for itself if there is none."""
        missing = end - start - self.free
        if missing > 0:
            missing -= self.evict(missing, self._rank(access, dirty))
        fitting = end - start - max(missing, 0)
        if fitting:
            self.free -= fitting
            self.put(access, start, start + fitting, dirty)
        if missing > 0:
            # nothing is read later than these blocks: from here on each replaces the one before
            self.evict(1)
            self.written += (missing - 1) * dirty
            self.free -= 1
            self.put(access, end - 1, end, dirty)

    def _rank(self, access: int, dirty: bool) -> int:
        """Return the rank of a group: by time, then clean ones, then the access."""
        return (2 * self._times[access] + (not dirty)) * len(self._times) + access


def _by_block(trace: Accesses, on_chip: int, block: int, exact: list[int]) -> Traffic:
    least, *_ = first = _run(trace, on_chip // block, block, exact)
    second = _run(trace, on_chip // block, block, trace.times)
    fetched, written, compulsory = min(first, second, key=lambda found: (found[0] + found[1], found[0]))
    return Traffic(on_chip, block, fetched * block, written * block, compulsory * block, least * block)


def _run(trace: Accesses, room: int, block: int, times: list[int]) -> tuple[int, int, int]:
    """Return the blocks fetched, written and compulsory if the reads are at these times."""
    chip = _Chip(room, times)
    blocks = [-(-size // block) for size in trace.graph.arrays.size.tolist()]
    unread = set(trace.graph.arrays.is_input.nonzero()[0].tolist())
    fetched = compulsory = 0
    for access, (tensor, mode, following) in enumerate(zip(trace.tensors, trace.modes, trace.following, strict=True)):
        groups = chip.here(access)
        place, missing = 0, 0
        while place < blocks[tensor]:
            start, dirty = min(
                ((runs[0][0], dirty) for runs, dirty in zip(groups, (True, False), strict=True) if runs),
                default=(blocks[tensor], False),
            )
            if start == place:
                start, place = groups[not dirty].popleft()
                if following == DEAD:
                    chip.free += place - start
                else:
                    chip.put(following, start, place, dirty or mode is Mode.ADD)
                continue
            missing += start - place
            if following != DEAD:
                chip.insert(following, place, start, mode is not Mode.READ)
            elif not chip.free:
                chip.evict(1)  # blocks without further reads pass one by one
            place = start
        if mode is not Mode.WRITE:
            if tensor in unread:
                compulsory += missing
                unread.remove(tensor)
            else:
                fetched += missing
    return fetched, chip.written, compulsory
