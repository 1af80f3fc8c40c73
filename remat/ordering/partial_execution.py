"""Estimate of the least memory if some layers compute their output channels in parts."""

from __future__ import annotations

from dataclasses import dataclass

from remat.graphs import ComputeGraph
from remat.graphs.rewriting import RewriteOptions, RuleName
from remat.graphs.rewriting.output_parts import with_output_parts
from remat.ordering.peak_steps import ops_at_peak, peak_rank
from remat.ordering.rewriting_search import Ordered, all_rewrites
from remat.runtime.deadline import Deadline

#: Numbers of parts to try for each layer.
PARTS = (2, 4, 8)


@dataclass(frozen=True)
class PartialExecution:
    """Least peaks found, in bytes, without and with parts.

    Attributes
    ----------
    before, after : int
    layers : tuple of (str, int)
        Layers that compute their output channels in parts, with the number of parts.
    rewrites : tuple of str
        Ops that then process parts.
    """

    before: int
    after: int
    layers: tuple[tuple[str, int], ...]
    rewrites: tuple[str, ...]


def partial_execution(
    graph: ComputeGraph, deadline: Deadline, *, accumulator_bytes: int | None = None
) -> PartialExecution | None:
    """Split layers that hold the most memory while that lowers the least peak; None if nothing lowers it.

    Kernels read and write slices and add to their output, as those of Pex and Serenity do. `accumulator_bytes` is that
    of :class:`~remat.graphs.rewriting.RewriteOptions`: 4 for quantised graphs.
    """
    options = RewriteOptions(min_parts=2, accumulator_bytes=accumulator_bytes, kernels="in-place")
    start = all_rewrites(graph, options, deadline=deadline)
    first = min(start.before, start.after, key=lambda each: peak_rank(each.graph))
    best, layers = first, list[tuple[str, int]]()
    for parts in PARTS:
        found, split = _split(graph, first, parts, options, deadline)
        if peak_rank(found.graph) < peak_rank(best.graph):
            best, layers = found, [(op, parts) for op in split]
    if best.peak >= start.before.peak:
        return None
    rewrites = tuple(str(each) for each in best.rewrites if each.rule != RuleName.ZERO_COPY_CONCAT)
    return PartialExecution(start.before.peak, best.peak, tuple(layers), rewrites)


def _split(
    graph: ComputeGraph, best: Ordered, parts: int, options: RewriteOptions, deadline: Deadline
) -> tuple[Ordered, list[str]]:
    """Split one layer after the other while that is better; return the best order and the layers."""
    layers: list[str] = []
    while not deadline.expired:
        found: list[tuple[tuple[int, int], str, ComputeGraph, Ordered]] = []
        for op in ops_at_peak(graph, best.graph):
            split = None if deadline.expired else with_output_parts(graph, op, parts)
            if split is not None:
                after = all_rewrites(split, options, deadline=deadline).after
                found.append((peak_rank(after.graph), op, split, after))
        present = peak_rank(best.graph)
        rank, op, split, after = min(found, default=(present, "", graph, best), key=lambda each: each[0])
        if rank >= present:
            break
        graph, best = split, after
        layers.append(op)
    return best, layers
