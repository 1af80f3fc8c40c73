"""Least peaks and structure of rewritten graphs, of the data folder and of the zoo."""

from dataclasses import replace

import networkx as nx
import pytest
from oracles import least_order_peak

from remat.graphs import ComputeGraph, Tensor, read_graph
from remat.graphs.rewriting import rewrite_graph
from remat.graphs.rewriting.check import check_numerics
from remat.graphs.zoo import ZOO


def structure(graph: ComputeGraph) -> nx.DiGraph:
    """Return the graph of ops and tensors, labelled by all properties but names."""
    found = nx.DiGraph()
    for tensor in graph.tensors:
        found.add_node(("tensor", tensor.name), label=(tensor.size, tensor.name in graph.outputs))
    for op in graph.ops:
        found.add_node(("op", op.name), label=(op.type, op.workspace))
        found.add_edges_from((("tensor", tensor), ("op", op.name)) for tensor in op.inputs)
        found.add_edges_from((("op", op.name), ("tensor", tensor)) for tensor in op.outputs)
    return found


@pytest.mark.shared
@pytest.mark.parametrize(
    ("name", "file", "peaks"),
    [
        *((f"swiftnet-{cell}-folded", f"swiftnet_hpd_cell_{cell}", peaks) for cell, peaks in (
            ("a", (200704, 188160)), ("b", (81536, 56448)), ("c", (32536, 17052)),
        )),
        ("darts-cell-coarse-folded", "darts_v2_imagenet_cell0_coarse", (903168, 752640)),
    ],
)  # fmt: skip
def test_rewritten_cells_are_isomorphic_to_the_published_ones(
    shared, name: str, file: str, peaks: tuple[int, int]
) -> None:
    before, expected = ZOO[name](), read_graph(shared / "data" / "graphs" / f"{file}_rewritten.json")
    after = rewrite_graph(before).graph
    assert nx.is_isomorphic(structure(after), structure(expected), node_match=lambda one, two: one == two)
    assert (least_order_peak(before), least_order_peak(after)) == peaks
    check_numerics(before, after)


@pytest.mark.parametrize(
    ("name", "before", "after", "ops"),
    [
        ("swiftnet-cells-folded", 200704, 188160, 91),
        ("swiftnet", 301056, 200704, 98),
        ("darts-cell-coarse-folded", 903168, 752640, 16),
        ("darts-cell-coarse", 1204224, 752640, 16),
    ],
)
def test_peaks_of_rewritten_zoo_graphs(name: str, before: int, after: int, ops: int) -> None:
    graph = ZOO[name]()
    done = rewrite_graph(graph)
    assert (least_order_peak(graph), least_order_peak(done.graph), len(done.graph.ops)) == (before, after, ops)
    assert done.never_worse
    assert done.graph.base_cost == graph.base_cost > 0
    check_numerics(graph, done.graph)


@pytest.mark.slow
def test_rewriting_of_darts() -> None:
    graph = ZOO["darts"]()
    done = rewrite_graph(graph)
    assert len(done.rewrites) > 90
    assert done.graph.base_cost == graph.base_cost
    assert check_numerics(graph, done.graph).tensors > 600


def test_fixed_order_of_partial_sums_loses_the_gain() -> None:
    """If each partial sum follows the one before, cell A needs as much memory as without rewriting."""
    after = rewrite_graph(ZOO["swiftnet-a-folded"]()).graph
    parts = [op.name for op in after.ops if op.type == "PartialConv"]
    tokens = [Tensor(f"token {name}", 0) for name in parts]
    ops = []
    for op in after.ops:
        if op.name in parts:
            at = parts.index(op.name)
            follows = at > 0 and parts[at - 1].rpartition("/")[0] == op.name.rpartition("/")[0]
            inputs = (*op.inputs, tokens[at - 1].name) if follows else op.inputs
            op = replace(op, inputs=inputs, outputs=(*op.outputs, tokens[at].name))
        ops.append(op)
    chained = ComputeGraph("chained", [*after.tensors, *tokens], ops, outputs=after.outputs)
    assert (least_order_peak(after), least_order_peak(chained)) == (188160, 200704)
