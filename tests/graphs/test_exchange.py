import json

import networkx as nx
import pytest
from graph_strategies import graphs
from hypothesis import given
from refusals import refused

from remat.graphs import ComputeGraph, layered, read_graph
from remat.graphs.exchange import from_networkx, to_networkx


@given(graphs())
def test_bipartite_form_is_lossless(graph):
    bipartite = graph.to_networkx()
    assert len(bipartite) == len(graph.ops) + len(graph.tensors)
    assert nx.is_directed_acyclic_graph(bipartite)
    assert ComputeGraph.from_networkx(bipartite) == graph


def test_plain_graph_of_ops():
    graph = nx.MultiDiGraph(name="plain")
    graph.add_node(3, size=5, cost=1)
    graph.add_node(1, size=2, cost=4)
    graph.add_node(2, size=7, cost=2)
    graph.add_edges_from([(1, 3), (1, 3), (2, 3)])
    read = from_networkx(graph)
    assert read.name == "plain"
    assert read.op_names == ("3", "1", "2")
    assert read.order == ("1", "2", "3")
    assert (read.num_edges, read.reference_peak, read.base_cost) == (2, 14, 7)
    other = from_networkx(graph, order=[2, 1, 3], name="n", cost_unit="us", constant_memory=9)
    assert (other.order, other.name, other.cost_unit, other.constant_memory) == (("2", "1", "3"), "n", "us", 9)


def test_other_attributes_and_numpy_numbers():
    source = layered(30, 0.3, 1)
    graph = nx.DiGraph()
    for number, op in enumerate(source.ops):
        graph.add_node(op.name, bytes=source.arrays.size[number], us=source.arrays.cost[number])
    graph.add_edges_from((p, op.name) for op in source.ops for p in op.inputs)
    read = from_networkx(graph, size="bytes", cost="us", order=source.order)
    assert read.digest == source.digest
    assert all(type(t.size) is int for t in read.tensors)


def with_nodes(**attributes):
    graph = nx.DiGraph()
    graph.add_node("a", **attributes)
    return graph


@pytest.mark.parametrize(
    "make,options",
    [
        (nx.Graph, {}),
        (nx.DiGraph, {}),
        (lambda: with_nodes(size=1), {}),
        (lambda: with_nodes(size=1, cost=1), {"size": "bytes"}),
        (lambda: with_nodes(size=1.0, cost=1), {}),
        (lambda: with_nodes(size=1, cost=-1), {}),
        (lambda: with_nodes(size=1, cost=1), {"order": ["q"]}),
        (lambda: nx.DiGraph(format="remat-graph"), {}),
    ],
)
def test_refuses(make, options):
    with refused("networkx.refused"):
        from_networkx(make(), **options)


def test_nodes_with_the_same_text_and_cycles():
    graph = nx.DiGraph()
    graph.add_node(1, size=1, cost=1)
    graph.add_node("1", size=1, cost=1)
    with refused("graph.networkx", culprit="1"):
        from_networkx(graph)
    graph = nx.DiGraph([("a", "b"), ("b", "a")])
    nx.set_node_attributes(graph, 1, "size")
    nx.set_node_attributes(graph, 1, "cost")
    with refused("graph.cycle"):
        from_networkx(graph)


def test_damaged_bipartite_form():
    graph = to_networkx(layered(5, 0.4))
    del graph.nodes["op:0"]["cost"]
    with refused("graph.networkx", culprit="remat-graph"):
        from_networkx(graph)


@given(graphs())
def test_round_trip_by_way_of_node_link_json(tmp_path_factory, graph):
    """What networkx writes of a graph is read as the same graph, whatever it has: buffers, inputs, orders."""
    path = tmp_path_factory.mktemp("exchange") / "g.json"
    for edges in ("links", "edges"):
        path.write_text(json.dumps(nx.node_link_data(to_networkx(graph), edges=edges)))
        assert read_graph(path) == graph
    again = nx.node_link_graph(json.loads(path.read_text()), edges="edges")
    assert from_networkx(again) == graph


def test_node_link_of_sizes_and_costs(tmp_path):
    graph = nx.DiGraph(name="plain")
    for name, size, cost in (("late", 4, 1), ("early", 2, 3)):
        graph.add_node(name, size=size, cost=cost)
    graph.add_edge("early", "late")
    (tmp_path / "g.json").write_text(json.dumps(nx.node_link_data(graph, edges="edges")))
    assert read_graph(tmp_path / "g.json").digest == from_networkx(graph).digest
    assert read_graph(tmp_path / "g.json").name == "plain"


@pytest.mark.parametrize(
    "change",
    [
        lambda d: d["nodes"][0].pop("size"),
        lambda d: d["nodes"][0].update(kind="thing"),
        lambda d: d["nodes"][1].update(id=d["nodes"][0]["id"]),
        lambda d: d["links"][0].update(source="nobody"),
        lambda d: d["links"][0].pop("position"),
        lambda d: d["graph"].pop("order"),
        lambda d: d["graph"].update(order=3, inputs=[1]),
    ],
)
def test_damaged_node_link_of_ops_and_tensors(change, tmp_path):
    document = nx.node_link_data(to_networkx(layered(5, 0.4)), edges="links")
    change(document)
    (tmp_path / "g.json").write_text(json.dumps(document))
    with refused("graph-file.node-link"):
        read_graph(tmp_path / "g.json")
