"""Families of graphs whose optima have closed formulas."""

from __future__ import annotations

from itertools import pairwise

from remat.errors import GraphError
from remat.graphs.builder import single_output_graph
from remat.graphs.graph import ComputeGraph


def unit_chain(n: int) -> ComputeGraph:
    """Return the training graph of a chain of `n` unit ops, the linear graph of Checkmate (MLSys 2020, figure 1).

    Forward ops ``f0..``, ``loss``, gradients ``g(n-1)..g0``. Each op reads the one before it; ``gi`` also reads
    ``fi``. All sizes and costs are 1; the last gradient is the graph output. With budget B >= 3 the optimal cost is
    ``n + 1 + t(n + 1, B - 2)``; t(l, c) is the number of advances of REVOLVE (Griewank and Walther 2000).

    Examples
    --------
    >>> g = unit_chain(8)
    >>> len(g.ops), g.reference_peak, g.structural_bound.peak
    (17, 10, 3)
    """
    _at_least(n, 1)
    forward, backward = [f"f{i}" for i in range(n)], [f"g{i}" for i in reversed(range(n))]
    chain = [*forward, "loss", *backward]
    edges = list(pairwise(chain)) + [(f"f{i}", f"g{i}") for i in range(n)]
    phases = {**dict.fromkeys(forward, "forward"), "loss": "loss", **dict.fromkeys(backward, "backward")}
    graph = single_output_graph(f"unit-chain-{n}", dict.fromkeys(chain, (1, 1)), edges, order=chain, phases=phases)
    return graph.with_outputs([chain[-1]])


def path(n: int) -> ComputeGraph:
    """Return a path of `n` unit ops whose last output is kept; two bytes suffice.

    Examples
    --------
    >>> path(5).reference_peak, path(5).base_cost
    (2, 5)
    """
    _at_least(n, 1)
    ops = [f"p{i}" for i in range(n)]
    graph = single_output_graph(f"path-{n}", dict.fromkeys(ops, (1, 1)), pairwise(ops))
    return graph.with_outputs([ops[-1]])


def u_chain(depth: int, shrink: int = 2) -> ComputeGraph:
    """Return a U-shaped chain with skips: `depth` ops down and as many up, which also read their counterparts.

    As in an encoder-decoder network, sizes and costs shrink by the factor `shrink` per level on the way down and grow
    back on the way up. At the bottom they are 1. The output of the last op is the graph output.

    Examples
    --------
    >>> g = u_chain(3)
    >>> [t.size for t in g.tensors], g.num_edges, g.reference_peak
    ([4, 2, 1, 1, 2, 4], 7, 10)
    """
    _at_least(depth, 1)
    _at_least(shrink, 1)
    down, up = [f"down{k}" for k in range(depth)], [f"up{k}" for k in reversed(range(depth))]
    chain = down + up
    levels = [shrink ** (depth - 1 - k) for k in range(depth)]
    nodes = {op: (level, level) for op, level in zip(chain, levels + levels[::-1], strict=True)}
    edges = list(pairwise(chain)) + [(f"down{k}", f"up{k}") for k in range(depth - 1)]
    return single_output_graph(f"u-chain-{depth}", nodes, edges, order=chain).with_outputs([chain[-1]])


def pyramid(height: int) -> ComputeGraph:
    """Return a pyramid of unit ops: rows of ``height + 1, ..., 1`` ops that each read two neighbours of the row below.

    Its pebbling number is ``height + 2`` (Cook 1974; no sliding). That budget suffices without recomputation in the
    reference order, which ascends along diagonals.

    Examples
    --------
    >>> len(pyramid(3).ops), pyramid(3).reference_peak
    (10, 5)
    """
    _at_least(height, 0)
    # Diagonal d is computed from the base up: op (row, column) lies on diagonal row + column.
    cells = [(row, diagonal - row) for diagonal in range(height + 1) for row in range(diagonal + 1)]
    ops = {cell: f"r{cell[0]}c{cell[1]}" for cell in cells}
    edges = [(ops[row - 1, column + side], ops[row, column]) for row, column in cells if row for side in (0, 1)]
    graph = single_output_graph(f"pyramid-{height}", dict.fromkeys(ops.values(), (1, 1)), edges)
    return graph.with_outputs([ops[height, 0]])


def in_tree(height: int) -> ComputeGraph:
    """Return a complete binary in-tree of unit ops, leaves first in depth-first order, whose root is kept.

    Its pebbling number is ``height + 2`` (no sliding), which the depth-first reference order attains.

    Examples
    --------
    >>> len(in_tree(3).ops), in_tree(3).reference_peak
    (15, 5)
    """
    _at_least(height, 0)
    edges: list[tuple[str, str]] = []

    def grow(op: str, levels: int) -> list[str]:
        """Return the ops of the subtree of `op` in depth-first order."""
        if levels == 0:
            return [op]
        edges.extend((op + side, op) for side in "lr")
        return [*grow(op + "l", levels - 1), *grow(op + "r", levels - 1), op]

    ops = grow("t", height)
    return single_output_graph(f"in-tree-{height}", dict.fromkeys(ops, (1, 1)), edges, order=ops).with_outputs(["t"])


def _at_least(value: int, least: int) -> None:
    if value < least:
        raise GraphError(f"the family starts at {least}, not {value}", "family")
