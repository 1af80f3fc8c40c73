"""Accesses of tensors by a schedule, and Belady's simulation (1966) of an on-chip memory that serves them.

The computation reads a trace of accesses once: an op reads all of its inputs, then writes its outputs. When room is
needed, the value whose next use is farthest in the future leaves the chip. A value without further uses leaves at once,
without traffic. The blocks of a tensor are always accessed together and in order, so whole runs of blocks move: the
run time depends on the number of accesses, not on the number of blocks.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum

from remat.graphs import ComputeGraph
from remat.schedule.early_frees import running
from remat.schedule.schedule import Schedule, StepKind
from remat.schedule.simulate import graph_positions, kept_tensors


class Mode(IntEnum):
    """Kind of an access."""

    READ = 0
    WRITE = 1
    """Starts a value: nothing is fetched."""
    ADD = 2
    """A later contribution: reads and writes."""


#: Entry of :attr:`Accesses.following` if no access needs the value again.
DEAD = -1


@dataclass(frozen=True)
class Accesses:
    """Accesses of tensors by a valid schedule, in order: each op reads its inputs, then writes its outputs."""

    graph: ComputeGraph
    tensors: list[int]
    """Tensor of each access."""
    modes: list[Mode]
    following: list[int]
    """Next access that needs the value, or ``DEAD``; number of accesses plus tensor if it is live at the end."""
    times: list[int]
    """Step of each access, including those at the end."""

    @classmethod
    def of(cls, graph: ComputeGraph, schedule: Schedule, keep: Iterable[str]) -> Accesses:
        """Return the accesses of a valid schedule."""
        keep = list(keep)
        schedule = running(graph, schedule.in_one_memory("traffic between memories"), keep=keep)
        arrays = graph.arrays
        reads, writes = arrays.op_inputs.lists(), arrays.op_outputs.lists()
        producers = arrays.producers.counts.tolist()
        given: list[set[int]] = [set() for _ in producers]  # contributors of the live instance
        tensors: list[int] = []
        times: list[int] = []
        step = 0
        modes: list[Mode] = []
        targets = graph_positions(graph, schedule).tolist()
        for kind, target in zip(schedule.kinds.tolist(), targets, strict=True):
            if kind != StepKind.COMPUTE:
                given[target].clear()
                continue
            for tensor in reads[target]:
                tensors.append(tensor)
                modes.append(Mode.READ)
            for tensor in writes[target]:
                there = given[tensor]
                if producers[tensor] > 1 and target in there:
                    continue  # the buffer has this contribution already: it is masked
                tensors.append(tensor)
                modes.append(Mode.ADD if there and producers[tensor] > 1 else Mode.WRITE)
                there.add(target)
            times += [step] * (len(tensors) - len(times))
            step += 1
        kept = kept_tensors(graph, keep).tolist()
        # a graph input has a copy off the chip, so the chip need not hold it at the end
        after = [len(tensors) + t if kept[t] and producers[t] else DEAD for t in range(len(producers))]
        times += [step] * len(producers)
        following = [DEAD] * len(tensors)
        for access in range(len(tensors) - 1, -1, -1):
            following[access] = after[tensors[access]]
            after[tensors[access]] = DEAD if modes[access] is Mode.WRITE else access
        return cls(graph, tensors, modes, following, times)


def moved_blocks(trace: Accesses, room: int, block: int, times: list[int]) -> tuple[int, int, int]:
    """Return the numbers of blocks that are fetched again, written, and fetched for the first time.

    `room` is the number of blocks on the chip, `block` the bytes of each. The `times` of accesses ascend; of blocks
    with equal times, clean ones leave first.
    """
    chip = Chip(room, times)
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


class Chip:
    """Blocks on the chip, in groups: by the access that reads them next, clean and dirty ones apart.

    A group is a list of runs (first block, last block + 1), ascending; the last block of a group is read last.
    """

    def __init__(self, room: int, times: list[int]) -> None:
        self.free = room
        """Number of free blocks."""
        self.written = 0
        """Number of blocks written."""
        self._times = times
        self._groups: dict[int, deque[list[int]]] = {}
        self._latest: list[int] = []  # a heap of negated ranks of groups, some of which may be empty

    def here(self, access: int) -> tuple[deque[list[int]], deque[list[int]]]:
        """Return the dirty and the clean blocks whose next read is an access."""
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
        """Insert blocks one after another, evicting a block each time the chip is full."""
        missing = end - start - self.free
        if missing > 0:
            missing -= self.evict(missing, self._rank(access, dirty))
        fitting = end - start - max(missing, 0)
        if fitting:
            self.free -= fitting
            self.put(access, start, start + fitting, dirty)
        if missing > 0:
            # no other block is read later than these, so each replaces the one before
            self.evict(1)
            self.written += (missing - 1) * dirty
            self.free -= 1
            self.put(access, end - 1, end, dirty)

    def _rank(self, access: int, dirty: bool) -> int:
        """Return the rank of a group: by time, then clean above dirty, then by access."""
        return (2 * self._times[access] + (not dirty)) * len(self._times) + access
