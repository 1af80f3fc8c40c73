"""Trace of a schedule in Chrome's format, for ``ui.perfetto.dev`` and other viewers.

It is the Trace Event Format, which ``torch.profiler`` also exports: a JSON object with a list of events.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Iterator
from typing import Any, Unpack

from remat.graphs import ComputeGraph
from remat.io.files import write_atomic
from remat.schedule.machine import Machine
from remat.schedule.schedule import Schedule
from remat.schedule.simulate import Counting
from remat.schedule.traces.steps import (
    StepTimes,
    allocation_times,
    changes,
    counters,
    slices,
    trace_facts,
    trace_title,
    tracks,
)
from remat.schedule.traces.timeline import Timeline

#: Number of the first track of slices; a track with the number of the process would be called its main thread.
_FIRST_TRACK = 2


def chrome_trace(
    graph: ComputeGraph,
    schedule: Schedule,
    budget: int | None = None,
    *,
    machine: Machine | None = None,
    keep: Iterable[str] = (),
    count_constant_memory: bool = False,
) -> dict[str, Any]:
    """Return the trace: a slice for each compute step and counters of bytes.

    Slices lie on the tracks *compute* (first computes) and *recompute*. Their arguments give op, type, phase,
    module, source line, tensors read and written, and bytes. The counter *memory* shows the bytes held while a step
    runs; its largest value is the peak. *held* splits them by kind, *budget* is the budget. Costs in ``us`` and ``ns``
    are times. Others are scaled by a power of ten, which ``otherData`` gives. A step of cost 0 lasts a nanosecond.

    With a machine, all times are those of :func:`~remat.schedule.timing.time_schedule`. Transfers are slices on the
    tracks *to host* and *from host*, and the counter *host memory* shows the bytes of the copies.

    Parameters
    ----------
    schedule : Schedule
        A valid schedule.
    budget : int, optional
        Bytes.
    machine : Machine, optional
        Machine whose links move tensors; a schedule with such steps needs it.
    keep, count_constant_memory
        As for :func:`remat.schedule.simulate.simulate`.

    Raises
    ------
    ScheduleError
        Naming the first violation, if the schedule does not run on `graph`, or if it moves tensors without a machine.
    ProblemError
        If the costs are no times, or the schedule moves a tensor where the machine has no link.

    Examples
    --------
    >>> from remat.graphs import GraphBuilder
    >>> b = GraphBuilder("chain", cost_unit="us")
    >>> names = [b.op("a", size=4, cost=5), b.op("b", inputs=["a"], size=2, cost=1)]
    >>> found = chrome_trace(b.build(), Schedule.reference(b.build()))["traceEvents"]
    >>> [(event["name"], event["ts"], event["dur"]) for event in found if event["ph"] == "X"]
    [('a', 0, 5), ('b', 5, 1)]
    >>> [event["args"]["bytes"] for event in found if event["ph"] == "C" and event["name"] == "memory"]
    [4, 6, 6]
    """
    timeline = Timeline.of(graph, schedule, keep, count_constant_memory)
    times = StepTimes.of(timeline.run, machine)
    events = [*_names(graph, times, machine), *_slices(timeline, times, machine), *_counters(timeline, times, budget)]
    about = trace_facts(timeline, times, schedule.source, budget, machine)
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": about}


def chrome_trace_text(
    graph: ComputeGraph,
    schedule: Schedule,
    budget: int | None = None,
    *,
    machine: Machine | None = None,
    **counting: Unpack[Counting],
) -> str:
    """Return :func:`chrome_trace` as JSON, one event per line; ASCII; same schedule, same bytes."""
    found = chrome_trace(graph, schedule, budget, machine=machine, **counting)
    events = ",\n".join(json.dumps(event, allow_nan=False) for event in found.pop("traceEvents"))
    rest = "".join(f",\n{json.dumps(key)}: {json.dumps(value, allow_nan=False)}" for key, value in found.items())
    return f'{{"traceEvents": [\n{events}\n]{rest}}}\n'


def save_chrome_trace(
    graph: ComputeGraph,
    schedule: Schedule,
    path: str | os.PathLike[str],
    budget: int | None = None,
    *,
    machine: Machine | None = None,
    **counting: Unpack[Counting],
) -> None:
    """Write :func:`chrome_trace_text` to a file atomically.

    Raises
    ------
    ScheduleError
        As :func:`chrome_trace`.
    FormatError
        Naming the file, if it cannot be written.
    """
    write_atomic(path, chrome_trace_text(graph, schedule, budget, machine=machine, **counting))


def _names(graph: ComputeGraph, times: StepTimes, machine: Machine | None) -> Iterator[dict[str, Any]]:
    """Yield events that name the process and its tracks."""
    yield {"ph": "M", "pid": 1, "tid": 0, "name": "process_name", "args": {"name": trace_title(graph, times)}}
    for track, name in enumerate(tracks(machine), _FIRST_TRACK):
        yield {"ph": "M", "pid": 1, "tid": track, "name": "thread_name", "args": {"name": name}}
        yield {"ph": "M", "pid": 1, "tid": track, "name": "thread_sort_index", "args": {"sort_index": track}}


def _slices(timeline: Timeline, times: StepTimes, machine: Machine | None) -> Iterator[dict[str, Any]]:
    numbers = {name: track for track, name in enumerate(tracks(machine), _FIRST_TRACK)}
    for track, begin, end, name, category, facts in slices(timeline, times):
        yield {
            "ph": "X", "pid": 1, "tid": numbers[track], "name": name, "cat": category, "ts": _microseconds(begin),
            "dur": _duration(begin, end), "args": facts,
        }  # fmt: skip


def _counters(timeline: Timeline, times: StepTimes, budget: int | None) -> Iterator[dict[str, Any]]:
    """Yield counter values where they change; the last ones hold to the end."""
    for name, series in counters(timeline, times, budget):
        for at, value in series:
            yield _counter(name, at, {"bytes": value})
    by_kind = {kind: each.tolist() for kind, each in timeline.held().items()}
    at_each = allocation_times(timeline, times)
    held = [{kind: each[step] for kind, each in by_kind.items()} for step in range(len(at_each))]
    for at, values in changes(at_each, held, times.clock[-1]):
        yield _counter("held", at, values)


def _counter(name: str, at: int, values: dict[str, int]) -> dict[str, Any]:
    return {"ph": "C", "pid": 1, "tid": 0, "name": name, "ts": _microseconds(at), "args": values}


def _microseconds(nanoseconds: int) -> int | float:
    """Return microseconds, exact to the nanosecond; integers stay integers."""
    whole, rest = divmod(nanoseconds, 1000)
    return whole if not rest else nanoseconds / 1000


def _duration(begin: int, end: int) -> int | float:
    """Return the microseconds between two times, never rounded up: viewers that add floats would show overlaps."""
    start, stop, duration = _microseconds(begin), _microseconds(end), _microseconds(end - begin)
    while start + duration > stop:
        duration -= math.ulp(stop)
    return duration
