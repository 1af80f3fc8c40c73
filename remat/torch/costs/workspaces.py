"""Measured workspaces: the memory that a kernel takes beside its outputs."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import torch

from remat.deadline import Deadline
from remat.errors import MeasurementError
from remat.torch.costs.calls import Call, call_of
from remat.torch.costs.distinct import Distinct, Progress
from remat.torch.costs.samples import real_arguments
from remat.torch.memory.allocator import allocator_events, within
from remat.torch.memory.measure import measure_peak

#: Name of the annotation around the op of a number.
LABEL = "remat workspace {}"


def measured_workspaces(
    nodes: Sequence[torch.fx.Node],
    *,
    deadline: Deadline | float | None = None,
    on_progress: Progress | None = None,
    folder: Path | None = None,
) -> list[int]:
    """Bytes that the kernel of each op takes for itself: the allocator's peak while it runs, less what it returns.

    Measured as :class:`Measured` measures time: each distinct op once, alone, on this machine, after a first run. An op
    that cannot run alone counts 0, with a remark. What a library takes past the allocator of PyTorch is not seen.

    Parameters
    ----------
    nodes : sequence of torch.fx.Node
        As for :meth:`CostModel.costs`.
    deadline, on_progress, folder
        See :class:`Measured`.

    Raises
    ------
    MeasurementError
        If the time is over before all are measured.
    """
    calls = [call_of(node) for node in nodes]
    distinct = Distinct("workspace", calls, deadline, on_progress, folder)
    if distinct.kind == "cuda":
        distinct.measure(_on_gpu)
    elif distinct.pending:
        with distinct.measuring():
            _on_cpu(distinct)
    return [known or 0 for known in distinct.found()]


def _on_cpu(distinct: Distinct) -> None:
    """All in one session of the profiler, each op within an annotation of its own; inputs are made outside."""
    labels: dict[str, str] = {}
    overdue: MeasurementError | None = None
    with allocator_events() as events:
        try:
            for number, (key, call) in enumerate(distinct.each()):
                label = LABEL.format(number)
                if distinct.attempt(call, partial(_run, label)) is not None:
                    labels[key] = label
        except MeasurementError as error:  # what has run is kept
            overdue = error
    records = within(events, set(labels.values()))
    for key, label in labels.items():
        distinct.store[key] = (records[label].peak or 0) - (records[label].live or 0)
    if overdue is not None:
        raise overdue


def _run(label: str, call: Call) -> int:
    """Run an op twice, the second time within an annotation; 0, since the number comes later."""
    args, kwargs = real_arguments(call)
    call.target(*args, **kwargs)
    with torch.profiler.record_function(label):
        out = call.target(*args, **kwargs)
    del out
    return 0


def _on_gpu(call: Call) -> int:
    args, kwargs = real_arguments(call)
    call.target(*args, **kwargs)
    use = measure_peak(lambda: call.target(*args, **kwargs), by="cuda")
    return max(0, use.peak - use.live)
