"""Segments of a schedule: runs of first computes and runs of gated computes, with the values between them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from remat.graphs import ComputeGraph


@dataclass(frozen=True)
class Segment:
    """Consecutive computes that are all gated, or none of them.

    Attributes
    ----------
    ops : tuple of int
        Positions in the graph, in order.
    gated : bool
        True for recomputations, and for ops that always run behind a gate (:mod:`remat.jax.gates`).
    live : frozenset of str
        Tensors that steps after the segment read, or that are results.
    """

    ops: tuple[int, ...]
    gated: bool
    live: frozenset[str]

    def outputs(self, graph: ComputeGraph) -> tuple[str, ...]:
        """Tensors of the segment that are live after it."""
        written = (tensor for op in self.ops for tensor in graph.ops[op].outputs)
        return tuple(dict.fromkeys(tensor for tensor in written if tensor in self.live))

    def inputs(self, graph: ComputeGraph) -> tuple[str, ...]:
        """Tensors that the segment reads and does not compute before."""
        inside: set[str] = set()
        read: dict[str, None] = {}
        for op in self.ops:
            read.update((tensor, None) for tensor in graph.ops[op].inputs if tensor not in inside)
            inside.update(graph.ops[op].outputs)
        return tuple(read)


def segments(
    graph: ComputeGraph, computes: Sequence[int], results: Iterable[str], cut: int, apart: Collection[int] = ()
) -> list[list[Segment]]:
    """Return the segments of the steps before `cut`, and of those from it.

    Computes whose outputs no step reads are left out.

    Parameters
    ----------
    computes : sequence of int
        Positions of the ops in the graph, in the order of the schedule.
    results : iterable of str
        Tensors that are live at the end.
    cut : int
        Step of the schedule.
    apart : collection of int
        Ops whose first compute is gated, too.
    """
    live = set(results)
    steps: list[tuple[int, bool, frozenset[str]]] = []
    seen: set[int] = set()
    gated = []
    for number in computes:
        gated.append(number in seen or number in apart)
        seen.add(number)
    for place in range(len(computes) - 1, -1, -1):
        op = graph.ops[computes[place]]
        if live.isdisjoint(op.outputs):
            continue
        steps.append((place, gated[place], frozenset(live)))
        live.difference_update(op.outputs)
        live.update(op.inputs)
    parts: list[list[Segment]] = [[], []]
    for place, behind, after in reversed(steps):
        part, number = parts[place >= cut], computes[place]
        if part and part[-1].gated == behind:
            part[-1] = Segment((*part[-1].ops, number), behind, after)
        else:
            part.append(Segment((number,), behind, after))
    return parts
