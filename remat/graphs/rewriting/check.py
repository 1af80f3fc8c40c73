"""Numerical check that a rewritten graph is equivalent: both are computed with the same random inputs and weights."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from remat.errors import GraphError
from remat.graphs.graph import ComputeGraph
from remat.graphs.rewriting.annotations import part_of
from remat.graphs.rewriting.draft import Draft
from remat.graphs.rewriting.numerics import MOST_ELEMENTS, Shrink, elements, run
from remat.graphs.rewriting.reference_kernels import Array
from remat.runtime.deadline import Deadline

#: Largest difference due to rounding, relative to the largest value of a tensor (at least 1).
TOLERANCE = 1e-9
#: Attributes by which an op declares its parallel or reduced axes.
DECLARED = {"parallel_axes", "reduced_axes"}


@dataclass(frozen=True)
class NumericalCheck:
    """Result of a comparison of two graphs.

    Attributes
    ----------
    difference : float
        Largest difference of all compared tensors, relative to the largest value of the tensor (at least 1).
    tensors : int
        Number of compared tensors: all that both graphs have, including the graph outputs. For large graphs: the
        outputs, and the common tensors whose writers changed.
    factor : int
        Factor by which height, width and similar axes were reduced.
    trusted : tuple of str
        Rewritten ops whose parallel or reduced axes are declared only by attributes.
    """

    difference: float
    tensors: int
    factor: int
    trusted: tuple[str, ...]

    def __str__(self) -> str:
        smaller = f", images {self.factor} times smaller" if self.factor > 1 else ""
        trusted = f"; taken on trust: the axes of {', '.join(self.trusted[:5])}" if self.trusted else ""
        return f"{self.tensors} tensors agree within {self.difference:.1e} (float64{smaller}){trusted}"


def check_numerics(
    before: ComputeGraph, after: ComputeGraph, seed: int = 0, *, deadline: Deadline | None = None
) -> NumericalCheck:
    """Compute two graphs and compare the tensors that both have.

    Images are reduced in size if no op cuts along their axes; the number of channels stays.

    Parameters
    ----------
    before, after : ComputeGraph
        A graph and the result of :func:`remat.graphs.rewriting.rewrite_graph`.
    seed : int
        Seed of inputs and weights.

    Raises
    ------
    GraphError
        Naming the tensor, if values differ by more than rounding; naming the op or tensor, if a graph cannot be
        computed (shapes are missing or inconsistent), or if one graph lacks an output of the other.
    OverdueError
        If the deadline has passed or the work is interrupted.

    Examples
    --------
    >>> from remat.graphs import GraphBuilder
    >>> from remat.graphs.rewriting import RewriteOptions, rewrite_graph
    >>> attrs = {"y": {"concat_inputs": True, "concat_axis": 1}}
    >>> b = GraphBuilder("g", meta={"shapes": {"a": [1, 2], "b": [1, 3], "y": [1, 4]}, "attrs": attrs})
    >>> names = [b.op("a", size=2, type="Input"), b.op("b", size=3, type="Input")]
    >>> _ = b.op("y", inputs=names, size=4, type="Linear")
    >>> graph = b.build()
    >>> check_numerics(graph, rewrite_graph(graph, RewriteOptions(min_parts=2)).graph).tensors
    3
    """
    if set(before.outputs) != set(after.outputs):
        raise GraphError(f"graph {after.name!r} has other outputs than {before.name!r}")
    drafts = [Draft(before), Draft(after)]
    shrink, clock = Shrink(drafts), deadline or Deadline()
    keep = None
    if max(elements(draft, shrink) for draft in drafts) > MOST_ELEMENTS:
        keep = _changed(*drafts) | set(before.outputs)
    first, second = (run(draft, shrink, seed, clock, keep=keep) for draft in drafts)
    both = [tensor for tensor in first if tensor in second and (keep is None or tensor in keep)]
    largest = 0.0
    for tensor in both:
        difference = _difference(first[tensor], second[tensor])
        if not difference <= TOLERANCE:
            raise GraphError(
                f"graph {after.name!r} does not compute the same: tensor {tensor!r} differs by {difference:.1e} "
                "of its largest value"
            )
        largest = max(largest, difference)
    trusted = [
        part.of
        for op, attributes in drafts[1].attributes.items()
        if DECLARED & attributes.keys() and (part := part_of(op, attributes)) is not None
    ]
    return NumericalCheck(largest, len(both), shrink.factor, tuple(dict.fromkeys(trusted)))


def _changed(before: Draft, after: Draft) -> set[str]:
    """Return the tensors of both graphs that other ops write, or whose writers read other tensors."""
    writers: list[dict[str, set[tuple[str, tuple[str, ...]]]]] = [{}, {}]
    for draft, found in zip((before, after), writers, strict=True):
        for op in draft.ops.values():
            for tensor in op.outputs:
                found.setdefault(tensor, set()).add((op.name, op.inputs))
    return {tensor for tensor, ops in writers[0].items() if tensor in writers[1] and writers[1][tensor] != ops}


def _difference(first: Array, second: Array) -> float:
    if first.shape != second.shape:
        return float("inf")
    with np.errstate(invalid="ignore"):  # both may overflow
        apart = np.where(first == second, 0.0, np.abs(first - second))
    return float(np.max(apart, initial=0.0) / max(1.0, np.max(np.abs(first), initial=0.0)))
