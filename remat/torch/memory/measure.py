"""Memory use of a call, measured in one of several ways."""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from remat.errors import MeasurementError
from remat.torch.memory.allocator import profiled_memory
from remat.torch.memory.storages import track_storages

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
