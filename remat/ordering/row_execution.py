"""Estimate of the least memory if some layers compute their images in bands of rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from remat.graphs import ComputeGraph
from remat.graphs.rewriting.row_parts import Region, RowSplitter
from remat.ordering.peak_steps import ops_at_peak, peak_rank
from remat.ordering.rewriting_search import Ordered, order_graph
from remat.runtime.deadline import Deadline

#: Numbers of bands to try for each region.
BANDS = (2, 4, 8, 16)
#: Largest number of ops in a region: longer ones mostly compute their halo again.
MOST_OPS = 32


@dataclass(frozen=True)
class RowExecution:
    """Least peaks found, in bytes, without and with bands of rows.

    Attributes
    ----------
    before, after : int
    regions : tuple of (str, str, int)
        First and last layer of each region, and its number of bands.
    cost, more_cost : int
        Cost of the graph in its unit, and the additional cost of rows that several bands compute.
    """

    before: int
    after: int
    regions: tuple[tuple[str, str, int], ...]
    cost: int
    more_cost: int


def row_execution(graph: ComputeGraph, deadline: Deadline, goal: int = 0) -> RowExecution | None:
    """Split regions of layers at the peak into bands of rows while that lowers the least peak; None if none does.

    `goal`: bytes that are few enough; of the splits that reach them, the one of least cost is chosen.

    Kernels read bands of tensors and write bands into the result, which is held in one piece, as are the inputs of a
    region. Rows of tensors inside the region that two bands need are computed twice.
    """
    first = order_graph(graph.plain, deadline=deadline.earlier(deadline.remaining / 2))
    best, regions = first, list[tuple[str, str, int]]()
    while best.peak > goal and not deadline.expired:
        chosen = min(_splits(best, deadline), key=lambda each: (peak_rank(each[0], goal), _cost(each[0])), default=None)
        if chosen is None or peak_rank(chosen[0], goal) >= peak_rank(best.graph, goal):
            break
        split, region, bands = chosen
        found, peak = order_graph(split, deadline=deadline), split.reference_peak
        best = found if found.peak <= peak else Ordered(split, (), peak, found.bound)  # the search had no time
        regions.append((region.ops[0], region.ops[-1], bands))
    if best.peak >= first.peak:
        return None
    before = _cost(graph)
    return RowExecution(first.peak, best.peak, tuple(regions), before, _cost(best.graph) - before)


def _splits(best: Ordered, deadline: Deadline) -> Iterator[tuple[ComputeGraph, Region, int]]:
    """Yield the graphs with one region in bands that may lower the peak."""
    splitter, at_peak = RowSplitter(best.graph), set(ops_at_peak(best.graph))
    for name in best.graph.order or ():
        for region in splitter.regions(name):
            if len(region.ops) > MOST_OPS or deadline.expired:
                break
            if at_peak.isdisjoint(region.ops) or splitter.whole(region) >= best.peak:
                continue
            for bands in BANDS:
                if bands <= region.rows:
                    yield splitter.split(region, bands), region, bands


def _cost(graph: ComputeGraph) -> int:
    return sum(op.cost for op in graph.ops)
