"""networkx graphs and node-link JSON: both forms, dialects of other tools, invalid documents."""

import json

import networkx as nx
import pytest
from graph_strategies import graphs
from helpers import changed
from hypothesis import given, settings
from refusals import refused

from remat.graphs import ComputeGraph, layered, read_graph
from remat.graphs.formats.node_link import graph_from_node_link


@settings(max_examples=20)
@given(graphs())
def test_bipartite_form_is_lossless(tmp_path_factory, graph):
    """Also when networkx writes and reads it."""
    bipartite = graph.to_networkx()
    assert len(bipartite) == len(graph.ops) + len(graph.tensors)
    assert nx.is_directed_acyclic_graph(bipartite)
    assert ComputeGraph.from_networkx(bipartite) == graph
    path = tmp_path_factory.mktemp("exchange") / "g.json"
    for edges in ("links", "edges"):
        path.write_text(json.dumps(nx.node_link_data(bipartite, edges=edges)))
        assert read_graph(path) == graph
    again = nx.node_link_graph(json.loads(path.read_text()), edges="edges")
    assert ComputeGraph.from_networkx(again) == graph


def test_plain_graph_of_ops(tmp_path):
    graph = nx.MultiDiGraph(name="plain")
    for number, size, cost in ((3, 5, 1), (1, 2, 4), (2, 7, 2)):
        graph.add_node(number, size=size, cost=cost)
    graph.add_edges_from([(1, 3), (1, 3), (2, 3)])
    read = ComputeGraph.from_networkx(graph)
    assert (read.name, read.op_names, read.order) == ("plain", ("3", "1", "2"), ("1", "2", "3"))
    assert (read.num_edges, read.reference_peak, read.base_cost) == (2, 14, 7)
    other = ComputeGraph.from_networkx(graph, order=[2, 1, 3], name="n", cost_unit="us", constant_memory=9)
    assert (other.order, other.name, other.cost_unit, other.constant_memory) == (("2", "1", "3"), "n", "us", 9)
    for edges in ("links", "edges"):
        (tmp_path / "g.json").write_text(json.dumps(nx.node_link_data(graph, edges=edges)))
        assert read_graph(tmp_path / "g.json").digest == read.digest
        assert read_graph(tmp_path / "g.json").name == "plain"


def test_other_attributes_and_numpy_numbers():
    source = layered(30, 0.3, 1)
    graph = nx.DiGraph()
    for number, op in enumerate(source.ops):
        graph.add_node(op.name, bytes=source.arrays.size[number], us=source.arrays.cost[number])
    graph.add_edges_from((p, op.name) for op in source.ops for p in op.inputs)
    read = ComputeGraph.from_networkx(graph, size="bytes", cost="us", order=source.order)
    assert read.digest == source.digest
    assert all(type(t.size) is int for t in read.tensors)


def with_nodes(*nodes, edges=(), **attributes):
    graph = nx.DiGraph()
    graph.add_nodes_from(nodes or ["a"], **attributes)
    graph.add_edges_from(edges)
    return graph


def without_cost():
    graph = layered(5, 0.4).to_networkx()
    del graph.nodes["op:0"]["cost"]
    return graph


@pytest.mark.parametrize(
    ("kind", "graph", "options"),
    [
        ("graph.networkx", nx.Graph(), {}),
        ("graph.no-ops", nx.DiGraph(), {}),
        ("graph.networkx", with_nodes(size=1), {}),
        ("graph.networkx", with_nodes(size=1, cost=1), {"size": "bytes"}),
        ("networkx.numbers", with_nodes(size=1.0, cost=1), {}),
        ("networkx.numbers", with_nodes(size=1, cost=-1), {}),
        ("graph.tensor-lists", with_nodes(size=1, cost=1), {"order": ["q"]}),
        ("graph.networkx", with_nodes(1, "1", size=1, cost=1), {}),
        ("graph.cycle", with_nodes("a", "b", size=1, cost=1, edges=[("a", "b"), ("b", "a")]), {}),
        ("graph.networkx", nx.DiGraph(format="remat-graph"), {}),
        ("graph.networkx", without_cost(), {}),
    ],
)
def test_invalid_networkx_graphs(kind, graph, options):
    with refused(kind):
        ComputeGraph.from_networkx(graph, **options)


CHECKMATE = {
    "directed": True,
    "multigraph": False,
    "graph": {},
    "nodes": [
        {"id": 2, "cost_cpu": 1, "cost_ram": 8, "backward": True},
        {"id": 0, "cost_cpu": 5, "cost_ram": 4},
        {"id": 1, "cost_cpu": 7, "cost_ram": 2},
    ],
    "links": [{"source": 0, "target": 1}, {"source": 1, "target": 2}, {"source": 0, "target": 1, "key": 1}],
}
BIPARTITE = nx.node_link_data(layered(5, 0.4).to_networkx(), edges="links")


@pytest.mark.parametrize("key", ["links", "edges"])
def test_checkmate_dialect(key):
    graph = graph_from_node_link({**changed(CHECKMATE, "links"), key: CHECKMATE["links"]}, "g")
    assert (graph.name, graph.op_names, graph.order) == ("g", ("2", "0", "1"), ("0", "1", "2"))
    assert [(t.size, o.cost) for t, o in zip(graph.tensors, graph.ops, strict=True)] == [(8, 1), (4, 5), (2, 7)]
    assert (graph.num_edges, graph.reference_peak, graph.constant_memory) == (2, 10, 0)


def test_moccasin_dialect(tmp_path):
    graph = layered(100, 0.27, 446)
    document = {
        "directed": True,
        "graph": {"order": [int(name) for name in graph.order]},
        "nodes": [
            {"name": int(o.name), "out_cost": t.size, "duration": o.cost, "param_cost": 10}
            for o, t in zip(graph.ops, graph.tensors, strict=True)
        ],
        "links": [{"0": int(p), "1": int(o.name)} for o in graph.ops for p in o.inputs],
    }
    path = tmp_path / "stand-in.json"
    path.write_text(json.dumps(document))
    read = read_graph(path)
    assert (read.name, read.order, read.constant_memory) == ("stand-in", graph.order, 1000)
    assert (read.num_edges, read.reference_peak, read.base_cost) == (236, 46330, 48577)
    assert read.arrays.op_inputs.lists() == graph.arrays.op_inputs.lists()


#: Invalid values by their place in a document; ``...``: the key is missing.
INVALID = {
    "nodes": [[]], "nodes.0": [{"id": 9}], "nodes.0.id": ["\x1b[2J"], "nodes.1": [1, {"id": 9, "cost_cpu": 1}],
    "nodes.1.cost_cpu": [3.0], "nodes.1.cost_ram": [0.5, True, -2], "nodes.1.id": [None, [1], 2, "2"],
    "links": [None], "links.0": [[0, 1], {"from": 0}], "links.0.target": [7, [1], "1"],
    "links.1": [{"source": 1, "target": 0}, {"source": 1, "target": 1}], "directed": [False],
    "graph": [[1], *({"order": order} for order in ([0, 1, 3], ["0", 1, 2], [0, 1], [0, 2, 1], 3))],
}  # fmt: skip
INVALID_BIPARTITE = {
    "nodes.0.size": [...], "nodes.0.kind": ["thing"], "nodes.1.id": [BIPARTITE["nodes"][0]["id"]],
    "links.0.source": ["absent", BIPARTITE["links"][0]["target"]], "links.0.position": [...], "graph.order": [..., 3],
}  # fmt: skip


@pytest.mark.parametrize(
    ("whole", "table"), [(CHECKMATE, INVALID), (BIPARTITE, INVALID_BIPARTITE)], ids=["ops", "both"]
)
def test_invalid_documents(whole, table, tmp_path):
    path = tmp_path / "culprit.json"
    for at, value in ((at, value) for at, values in table.items() for value in values):
        path.write_text(json.dumps(changed(whole, at, value)))
        with refused("graph-file.node-link", culprit=f"{path}: "):
            read_graph(path)


def test_all_faults_of_a_document_are_reported_together():
    links = [{"source": 7, "target": [1]}, {"target": 3}]
    for document in (
        changed(changed(CHECKMATE, "nodes.1", {"id": 0}), "nodes.2.cost_ram", -1),
        {**CHECKMATE, "links": links},
        {**CHECKMATE, "links": [{"source": 7, "target": 9}]},
        [],
    ):
        with refused("graph-file.node-link"):
            graph_from_node_link(document)
