"""Memory use of a call, measured in one of several ways; record of the CPU's allocator from the profiler."""

from __future__ import annotations

import gc
import json
import tempfile
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from remat.errors import MeasurementError
from remat.torch.memory.storages import track_storages

#: Device type in the trace of PyTorch's profiler (``c10::DeviceType``).
CPU_DEVICE = 0


@dataclass
class AllocatorRecord:
    """Record of the CPU's allocator in a ``with`` block; filled when the block ends.

    Memory held before the block does not count, nor does its release.

    Attributes
    ----------
    peak : int or None
        Largest number of bytes held at one time, with workspaces inside kernels; None while the block runs.
    live : int or None
        Bytes held at the end of the block.
    peak_op : str or None
        Innermost op or annotation running at the peak; None if there was none.
    timeline : list of int
        Bytes held after each allocation and release.
    """

    peak: int | None = None
    live: int | None = None
    peak_op: str | None = None
    timeline: list[int] | None = None


@contextmanager
def profiled_memory() -> Iterator[AllocatorRecord]:
    """Record the CPU's allocator in a ``with`` block, by ``torch.profiler``.

    It covers workspaces inside kernels, compiled code and C++, but not memory that a library allocates without
    PyTorch's allocator. The first use takes a few seconds; each event takes about 1 kB of a temporary file. A process
    can run only one profiler at a time. Compile before the block: PyTorch has crashed at the end of one in which
    ``torch.compile`` ran.

    Yields
    ------
    AllocatorRecord
        Filled when the block ends without an exception.

    Examples
    --------
    >>> import torch
    >>> with profiled_memory() as memory:
    ...     x = torch.ones(1000)
    ...     y = x.exp()
    ...     del x
    >>> memory.peak, memory.live
    (8000, 4000)
    """
    record, events = AllocatorRecord(), list[dict[str, Any]]()
    with allocator_events(events):
        yield record
    fill(record, events)


@contextmanager
def allocator_events(events: list[dict[str, Any]]) -> Iterator[None]:
    """Append the profiler's events in a ``with`` block, allocations among them, to `events` when the block ends."""
    profiler = profile(activities=[ProfilerActivity.CPU], profile_memory=True)
    profiler.start()
    try:
        yield
    finally:
        profiler.stop()
        with tempfile.TemporaryDirectory(prefix="remat-") as folder:
            path = Path(folder) / "trace.json"
            profiler.export_chrome_trace(str(path))
            events.extend(json.loads(path.read_text(encoding="utf-8"))["traceEvents"])


def within(events: Sequence[Mapping[str, Any]], name: str) -> AllocatorRecord:
    """Return the record of the allocator within a named annotation (``torch.profiler.record_function``)."""
    span = next(each for each in events if each.get("cat") == "user_annotation" and each["name"] == name)
    begin, end = float(span["ts"]), float(span["ts"]) + float(span["dur"])
    record = AllocatorRecord()
    fill(record, [each for each in events if begin <= float(each.get("ts", -1)) <= end])
    return record


def fill(record: AllocatorRecord, events: Sequence[Mapping[str, Any]]) -> None:
    """Sum the memory events of a Chrome trace, and name the op at the peak."""
    memory = (event for event in events if event.get("name") == "[memory]")
    changes = [event for event in memory if int(event["args"].get("Device Type", CPU_DEVICE)) == CPU_DEVICE]
    held: dict[int, int] = {}
    live, peak, top, timeline = 0, 0, None, []
    for event in sorted(changes, key=lambda event: int(event["args"]["Ev Idx"])):  # times of neighbours may be equal
        address, size = int(event["args"]["Addr"]), int(event["args"]["Bytes"])
        if size >= 0:
            held[address] = size
            live += size
        elif address in held:
            live -= held.pop(address)
        else:  # allocated before the block
            continue
        timeline.append(live)
        if live > peak:
            peak, top = live, event
    record.peak, record.live, record.timeline = peak, live, timeline
    record.peak_op = None if top is None else _innermost(events, float(top["ts"]), top.get("tid"))


def _innermost(events: Iterable[Mapping[str, Any]], moment: float, thread: Any) -> str | None:
    """Return the op that started last among those running at a moment in a thread."""
    slices = sorted(
        (float(event["ts"]), float(event["ts"]) + float(event.get("dur", 0)), str(event["name"]))
        for event in events
        if event.get("ph") == "X" and event.get("tid") == thread and event.get("cat") in {"cpu_op", "user_annotation"}
    )
    for begin, end, name in reversed(slices[: bisect_right(slices, moment, key=lambda entry: entry[0])]):
        if begin <= moment <= end:
            return name
    return None


#: Ways of measuring, in their listed order.
WAYS = ("storages", "profiler", "cuda")


@dataclass(frozen=True)
class MemoryUse:
    """Memory that a call used, in addition to the memory held before it.

    Attributes
    ----------
    peak : int
        Largest number of bytes at one time.
    live : int
        Bytes held after the call returned, its result included.
    by : str
        Way of measuring: ``"storages"``, ``"profiler"`` or ``"cuda"``.
    op : str or None
        Op that ran at the peak; None if unknown.
    """

    peak: int
    live: int
    by: str
    op: str | None = None

    def __str__(self) -> str:
        where = f" at {self.op}" if self.op else ""
        return f"{self.peak:,} bytes{where}, {self.live:,} kept (by {self.by})"


def measure_peak(function: Callable[[], Any], *, by: str = "storages") -> MemoryUse:
    """Call `function` once and measure its memory use.

    Parameters
    ----------
    function : callable
        Called without arguments. Its result is discarded.
    by : str
        ``"storages"``: exact bytes of live tensors, any device, not for compiled code (:func:`track_storages`);
        ``"profiler"``: allocations of the CPU's allocator, with workspaces (:func:`profiled_memory`);
        ``"cuda"``: the counters of the current GPU's allocator, which rounds each block up to 512 bytes.

    Raises
    ------
    MeasurementError
        If the way is unknown, or unavailable on this machine.

    Examples
    --------
    >>> import torch
    >>> x = torch.ones(1000)
    >>> measure_peak(lambda: (x + 1).exp())
    MemoryUse(peak=8000, live=4000, by='storages', op='aten.exp.default')
    """
    if by not in WAYS:
        raise MeasurementError(f"memory cannot be measured by {by!r}; known: {', '.join(WAYS)}", "way")
    gc.collect()  # otherwise garbage in cycles would be freed at some moment within the call
    if by == "storages":
        with track_storages() as tracker:
            result = function()
        use = MemoryUse(tracker.peak, tracker.live, by, tracker.peak_op)
    elif by == "profiler":
        with profiled_memory() as record:
            result = function()
        assert record.peak is not None and record.live is not None
        use = MemoryUse(record.peak, record.live, by, record.peak_op)
    else:
        use, result = _on_gpu(function)
    del result
    return use


def _on_gpu(function: Callable[[], Any]) -> tuple[MemoryUse, Any]:
    if not torch.cuda.is_available():
        raise MeasurementError("memory cannot be measured by 'cuda': PyTorch finds no GPU on this machine", "no-gpu")
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    result = function()
    torch.cuda.synchronize()
    peak, live = torch.cuda.max_memory_allocated() - before, torch.cuda.memory_allocated() - before
    return MemoryUse(peak, live, "cuda"), result
