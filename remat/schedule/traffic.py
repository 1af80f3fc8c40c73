"""Traffic between an on-chip memory and a larger memory off the chip, for a known schedule."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from remat.errors import ProblemError
from remat.graphs import ComputeGraph
from remat.schedule.belady import Accesses, moved_blocks
from remat.schedule.schedule import Schedule

#: Default block size in bytes.
BLOCK = 512


@dataclass(frozen=True)
class Traffic:
    """Bytes moved between the on-chip memory and the larger memory while a schedule runs.

    Attributes
    ----------
    on_chip : int
        Bytes on the chip.
    block : int
        Bytes per block.
    fetched : int
        Bytes fetched again because they left the chip while still needed.
    written : int
        Bytes written because they left the chip while still needed, without a copy off the chip.
    compulsory : int
        Bytes of the graph inputs, fetched at their first reads; independent of the capacity.
    least_fetched : int
        Lower bound on `fetched` for any choice of victims.
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

    Graph inputs start off the chip; every other value is computed on it, without a fetch. Values live at the end may
    end up in either memory. A later contribution to an accumulation buffer reads and writes it. Explicit frees have no
    effect: a value that no step reads before it is computed again takes no room.

    The victim is the block whose next read is farthest in the future (*MIN*). No choice of victims has fewer fetches.
    Since only some victims are written, another choice may move fewer bytes. The rule therefore runs in two ways:
    exactly, and with the reads of an op treated as simultaneous and clean blocks evicted first. The result is the run
    that moves fewer bytes in total.
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


def _by_block(trace: Accesses, on_chip: int, block: int, exact: list[int]) -> Traffic:
    least, *_ = first = moved_blocks(trace, on_chip // block, block, exact)
    second = moved_blocks(trace, on_chip // block, block, trace.times)
    fetched, written, compulsory = min(first, second, key=lambda found: (found[0] + found[1], found[0]))
    return Traffic(on_chip, block, fetched * block, written * block, compulsory * block, least * block)
