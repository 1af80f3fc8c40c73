"""Steps and ops at the peak of a reference order, which a rewriting of the graph has to change."""

from __future__ import annotations

from remat.graphs import ComputeGraph
from remat.schedule import Schedule, simulate, validate


def peak_rank(graph: ComputeGraph, goal: int = 0) -> tuple[int, int]:
    """Return the peak, at least `goal`, and the number of steps that reach it if it is above.

    The number counts since equal blocks of a network are split one after the other.
    """
    memory = simulate(graph, Schedule.reference(graph)).memory
    peak = max(int(memory.max(initial=0)), goal)
    return peak, int((memory == peak).sum()) if peak > goal else 0


def ops_at_peak(graph: ComputeGraph, ordered: ComputeGraph | None = None) -> list[str]:
    """Return the ops that run at the peak or wrote a tensor held there; the peak is that of `ordered`, by default.

    `ordered`: the same graph after rewrites and in another order.
    """
    ordered = graph if ordered is None else ordered
    certificate = validate(ordered, Schedule.reference(ordered))
    held = {name for name, _ in certificate.live_at_peak}
    return [op.name for op in graph.ops if op.name == certificate.peak_op or held.intersection(op.outputs)]
