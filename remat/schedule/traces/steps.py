"""Times, slices and counters of the steps of a schedule, shared by the traces of Chrome and Perfetto."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple, TypeVar

import numpy as np

from remat.errors import ScheduleError
from remat.graphs import ComputeGraph
from remat.runtime.sizes import NANOSECONDS
from remat.schedule.machine import Machine
from remat.schedule.schedule import WORDS, StepKind
from remat.schedule.simulate import Simulation
from remat.schedule.timing import Timing, time_schedule
from remat.schedule.traces.timeline import Timeline, module_paths, source_lines

#: Costs in other units are scaled by a power of ten so that their sum is at most this long.
_LONGEST_US = 10_000_000
#: Tracks of slices: first computes, recomputations, and the links of a machine.
COMPUTE, RECOMPUTE, TO_HOST, FROM_HOST = "compute", "recompute", "to host", "from host"
_LINKS = {int(StepKind.OFFLOAD): TO_HOST, int(StepKind.FETCH): FROM_HOST}
Value = TypeVar("Value")


class Slice(NamedTuple):
    """Compute or transfer on a track; times in nanoseconds."""

    track: str
    begin: int
    end: int
    name: str
    category: str
    facts: dict[str, Any]


class Counter(NamedTuple):
    """Bytes at times in nanoseconds, where they change, and at the end."""

    name: str
    values: list[tuple[int, int]]


@dataclass(frozen=True)
class StepTimes:
    """Times of the steps of a schedule, in nanoseconds."""

    clock: tuple[int, ...]
    """Time of the device at each step, and at the end."""
    work: tuple[tuple[int, int], ...]
    """Begin and end of the work of each step. Slices of one track do not overlap, and last at least a nanosecond."""
    per_microsecond: int | None
    """Cost drawn as a microsecond, if costs are not times; None if they are."""
    timing: Timing | None = None
    """Times on the machine, in cost units; None without a machine."""

    @classmethod
    def of(cls, run: Simulation, machine: Machine | None = None) -> StepTimes:
        """Return the times of a valid schedule, on a machine if it moves tensors.

        Raises
        ------
        ScheduleError
            If the schedule moves tensors and there is no machine.
        ProblemError
            As :func:`~remat.schedule.timing.time_schedule` does.

        Examples
        --------
        >>> from remat.graphs import GraphBuilder
        >>> from remat.schedule import Schedule, simulate
        >>> b = GraphBuilder("chain", cost_unit="us")
        >>> names = [b.op("a", size=4, cost=3), b.op("b", size=2), b.op("c", size=1, cost=1)]
        >>> StepTimes.of(simulate(b.build(), Schedule.reference(b.build()))).clock
        (0, 3000, 3001, 4000)
        """
        if machine is not None:
            return cls._on_machine(run, machine)
        if run.host is not None:
            raise ScheduleError(
                "the schedule moves tensors to the host, so its times depend on the links: give the machine "
                "(--machine pcie4)",
                "trace-machine",
            )
        cost = run.graph.arrays.cost.tolist()
        costs = [cost[op] for op in run.ops[run.is_compute].tolist()]
        total, unit = sum(costs), NANOSECONDS.get(run.graph.cost_unit)
        scale = None
        if unit is None:
            scale = 1
            while total > _LONGEST_US * scale:
                scale *= 10
        spent, begin = 0, [0]
        for each in costs:
            spent += each if total else 1
            exact = spent * unit if unit is not None else spent * 1000 // (scale or 1)
            begin.append(max(begin[-1] + 1, exact))
        before = np.concatenate([[0], np.cumsum(run.is_compute)]).tolist()
        clock = tuple(begin[k] for k in before)
        return cls(clock, tuple(pairwise(clock)), scale)

    @classmethod
    def _on_machine(cls, run: Simulation, machine: Machine) -> StepTimes:
        timing, ticks = time_schedule(run, machine), machine.per_second(run.graph)

        def exact(time: int) -> int:
            return time * 10**9 // ticks

        ends = dict.fromkeys(StepKind, 0)  # of the last slice of each kind; free and discard have none
        clock, work = [], []
        times = timing.clock(run.kinds).tolist(), timing.start.tolist(), timing.end.tolist()
        for kind, now, start, end in zip(run.kinds.tolist(), *times, strict=True):
            begin = max(ends[kind], exact(start))
            ends[kind] = max(begin + (kind == StepKind.COMPUTE or kind in _LINKS), exact(end))
            work.append((begin, ends[kind]))
            clock.append(begin if kind == StepKind.COMPUTE else max(exact(now), ends[StepKind.COMPUTE]))
        last = max([exact(timing.time), *ends.values()])
        return cls((*clock, last), tuple(work), None, timing)


def trace_title(graph: ComputeGraph, times: StepTimes) -> str:
    """Return the name of the graph, and the scale of costs that are not times."""
    scale = f" (1 us = {times.per_microsecond:,} {graph.cost_unit})" if times.per_microsecond is not None else ""
    return graph.name + scale


def trace_facts(
    timeline: Timeline, times: StepTimes, source: str, budget: int | None, machine: Machine | None = None
) -> dict[str, Any]:
    """Return what a trace says about the whole schedule."""
    graph = timeline.graph
    about: dict[str, Any] = {
        "graph": graph.name, "graph_digest": graph.digest, "source": source, "cost_unit": graph.cost_unit,
        "peak": timeline.peak, "budget": budget, "cost": timeline.run.cost, "base_cost": graph.base_cost,
    }  # fmt: skip
    if times.per_microsecond is not None:
        about["cost_per_microsecond"] = times.per_microsecond
    if machine is not None and times.timing is not None:
        host = timeline.run.host
        about |= {"machine": str(machine), "time": times.timing.time, "stall": times.timing.stall}
        about["host_peak"] = 0 if host is None else host.peak
    return about


def tracks(machine: Machine | None) -> tuple[str, ...]:
    """Return the tracks of slices, in the order in which viewers show them."""
    return (COMPUTE, RECOMPUTE) if machine is None else (COMPUTE, RECOMPUTE, TO_HOST, FROM_HOST)


def slices(timeline: Timeline, times: StepTimes) -> Iterator[Slice]:
    """Yield the slices of computes and transfers in the order of the steps."""
    run = timeline.run
    computes = compute_facts(timeline)
    for step, (kind, moved) in enumerate(zip(run.kinds.tolist(), run.moved.tolist(), strict=True)):
        begin, end = times.work[step]
        if kind == StepKind.COMPUTE:
            facts = next(computes)
            track = COMPUTE if facts["compute"] == 1 else RECOMPUTE
            yield Slice(track, begin, end, facts["op"], facts["phase"] or COMPUTE, facts)
        elif kind in _LINKS:
            facts = {"tensor": run.graph.tensor_names[moved], "bytes": run.graph.tensors[moved].size}
            yield Slice(_LINKS[kind], begin, end, facts["tensor"], WORDS[kind], facts)


def allocation_times(timeline: Timeline, times: StepTimes) -> list[int]:
    """Return the time of the device at each step of a timeline, its computes and fetches."""
    return [times.clock[step] for step in np.flatnonzero(timeline.run.allocates).tolist()]


def counters(timeline: Timeline, times: StepTimes, budget: int | None) -> Iterator[Counter]:
    """Yield the bytes held on the device, the budget, and the bytes on the host of a machine."""
    at, end = allocation_times(timeline, times), times.clock[-1]
    yield Counter("memory", changes(at, timeline.memory.tolist(), end))
    if budget is not None:
        yield Counter("budget", [(0, budget), (end, budget)])
    if times.timing is not None:
        host = timeline.run.host
        held = [0] * len(timeline.run.kinds) if host is None else host.memory.tolist()
        yield Counter("host memory", changes(times.clock, held, end))


def changes(at: Sequence[int], values: Sequence[Value], end: int) -> list[tuple[int, Value]]:
    """Return times and values where they change; the last value holds to the end."""
    found = [(time, value) for time, value, last in zip(at, values, [None, *values], strict=False) if value != last]
    return [*found, (end, values[-1])] if values else []


def compute_facts(timeline: Timeline) -> Iterator[dict[str, Any]]:
    """Yield what a slice says about each compute step; keys as in :func:`remat.schedule.traces.chrome.chrome_trace`."""
    graph, paths = timeline.graph, module_paths(timeline.graph)
    size = dict(zip(graph.tensor_names, graph.arrays.size.tolist(), strict=True))
    steps = zip(timeline.ops.tolist(), timeline.number.tolist(), timeline.memory.tolist(), strict=True)
    for step, (number, compute, memory) in enumerate(steps):
        if number < 0:
            continue
        op = graph.ops[number]
        facts: dict[str, Any] = {"op": op.name, "type": op.type, "phase": op.phase}
        if op.name in paths:
            facts["module"] = paths[op.name]
        if lines := source_lines(graph, op.name):
            facts["source"] = str(lines[0])
        facts |= {
            "step": step, "compute": compute, "reads": list(op.inputs), "writes": list(op.outputs),
            "bytes_written": sum(size[name] for name in op.outputs), "workspace": op.workspace, "memory": memory,
            "cost": op.cost,
        }  # fmt: skip
        yield facts
