"""Times, names and facts of compute steps, shared by the traces of Chrome and Perfetto."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from remat.graphs import ComputeGraph
from remat.runtime.arrays import Int
from remat.runtime.sizes import NANOSECONDS
from remat.schedule.traces.timeline import Timeline, module_paths, source_lines

#: Costs in other units are scaled by a power of ten so that their sum is at most this long.
_LONGEST_US = 10_000_000


@dataclass(frozen=True)
class StepTimes:
    """Start times of compute steps."""

    begin: tuple[int, ...]
    """Nanoseconds; each step ends where the next one starts, at least one nanosecond later."""
    per_microsecond: int | None
    """Cost drawn as a microsecond, if costs are not times; None if they are."""

    @classmethod
    def of(cls, graph: ComputeGraph, ops: Int) -> StepTimes:
        """Return the times of the ops of compute steps.

        Examples
        --------
        >>> import numpy as np
        >>> from remat.graphs import GraphBuilder
        >>> b = GraphBuilder("chain", cost_unit="us")
        >>> names = [b.op("a", size=4, cost=3), b.op("b", size=2), b.op("c", size=1, cost=1)]
        >>> StepTimes.of(b.build(), np.array([0, 1, 2])).begin
        (0, 3000, 3001, 4000)
        """
        cost = graph.arrays.cost.tolist()
        costs = [cost[op] for op in ops.tolist()]
        total, unit = sum(costs), NANOSECONDS.get(graph.cost_unit)
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
        return cls(tuple(begin), scale)


def trace_title(graph: ComputeGraph, times: StepTimes) -> str:
    """Return the name of the graph, and the scale of costs that are not times."""
    scale = f" (1 us = {times.per_microsecond:,} {graph.cost_unit})" if times.per_microsecond is not None else ""
    return graph.name + scale


def trace_facts(timeline: Timeline, times: StepTimes, source: str, budget: int | None) -> dict[str, Any]:
    """Return what a trace says about the whole schedule."""
    graph = timeline.graph
    about: dict[str, Any] = {
        "graph": graph.name, "graph_digest": graph.digest, "source": source, "cost_unit": graph.cost_unit,
        "peak": timeline.peak, "budget": budget, "cost": timeline.run.cost, "base_cost": graph.base_cost,
    }  # fmt: skip
    if times.per_microsecond is not None:
        about["cost_per_microsecond"] = times.per_microsecond
    return about


def step_facts(timeline: Timeline) -> Iterator[dict[str, Any]]:
    """Yield what a slice says about each compute step; keys as in :func:`remat.schedule.traces.chrome.chrome_trace`."""
    graph, paths = timeline.graph, module_paths(timeline.graph)
    size = dict(zip(graph.tensor_names, graph.arrays.size.tolist(), strict=True))
    steps = zip(timeline.ops.tolist(), timeline.number.tolist(), timeline.memory.tolist(), strict=True)
    for step, (number, compute, memory) in enumerate(steps):
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
