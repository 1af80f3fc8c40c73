"""Measured workspaces: memory that a kernel uses in addition to its outputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any
from uuid import uuid4

import torch

from remat.runtime.deadline import Deadline
from remat.torch.costs.calls import Call, call_of
from remat.torch.costs.distinct import Progress, measure_distinct
from remat.torch.costs.roofline import device_kind
from remat.torch.costs.samples import real_arguments
from remat.torch.memory.allocator import allocator_events, within
from remat.torch.memory.measure import measure_peak


def measured_workspaces(
    nodes: Sequence[torch.fx.Node],
    *,
    deadline: Deadline | float | None = None,
    on_progress: Progress | None = None,
) -> list[int]:
    """Return the workspace of each op's kernel in bytes: the allocator's peak while it runs, less its outputs.

    As in :class:`Measured`, each distinct op is measured once, alone, on this machine, after a first run. An op
    that cannot run alone counts 0, with a remark. Memory that a library allocates without PyTorch's allocator does not
    count.

    Parameters
    ----------
    nodes : sequence of torch.fx.Node
        As for :meth:`CostModel.costs`.
    deadline, on_progress
        See :class:`Measured`.

    Raises
    ------
    MeasurementError
        If time runs out before all ops are measured.
    """
    calls, events = [call_of(node) for node in nodes], list[dict[str, Any]]()
    on_gpu = any(device_kind(call) == "cuda" for call in calls)
    found = measure_distinct(
        "workspace", calls, _on_gpu if on_gpu else partial(_on_cpu, events),
        session=None if on_gpu else allocator_events(events), deadline=deadline, on_progress=on_progress,
    )  # fmt: skip
    return [known or 0 for known in found]


def _on_cpu(events: list[dict[str, Any]], call: Call) -> Callable[[], int]:
    """Run an op twice, the second time within an annotation; its inputs are allocated outside."""
    label = f"remat workspace {uuid4()}"
    args, kwargs = real_arguments(call)
    call.target(*args, **kwargs)
    with torch.profiler.record_function(label):
        out = call.target(*args, **kwargs)
    del out

    def number() -> int:
        record = within(events, label)
        return (record.peak or 0) - (record.live or 0)

    return number


def _on_gpu(call: Call) -> Callable[[], int]:
    args, kwargs = real_arguments(call)
    call.target(*args, **kwargs)
    use = measure_peak(lambda: call.target(*args, **kwargs), by="cuda")
    return partial(max, 0, use.peak - use.live)
