import json

import networkx as nx
import pytest
from refusals import refused

from remat.graphs import layered, read_graph
from remat.graphs.formats.node_link import graph_from_node_link


def checkmate():
    return {
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


def moccasin(graph):
    """A document of the second dialect with the content of `graph`."""
    return {
        "directed": True,
        "multigraph": True,
        "graph": {"order": [int(name) for name in graph.order]},
        "nodes": [
            {"name": int(o.name), "out_cost": t.size, "duration": o.cost, "param_cost": 10}
            for o, t in zip(graph.ops, graph.tensors, strict=True)
        ],
        "links": [{"0": int(p), "1": int(o.name)} for o in graph.ops for p in o.inputs],
    }


@pytest.mark.parametrize("key", ["links", "edges"])
def test_checkmate_dialect(key):
    document = checkmate()
    document[key] = document.pop("links")
    graph = graph_from_node_link(document, "g")
    assert graph.name == "g"
    assert graph.op_names == ("2", "0", "1")
    assert graph.order == ("0", "1", "2")
    assert [(t.size, o.cost) for t, o in zip(graph.tensors, graph.ops, strict=True)] == [(8, 1), (4, 5), (2, 7)]
    assert graph.num_edges == 2
    assert graph.reference_peak == 10
    assert graph.constant_memory == 0


def test_moccasin_dialect(tmp_path):
    graph = layered(100, 0.27, 446)
    path = tmp_path / "stand-in.json"
    path.write_text(json.dumps(moccasin(graph)))
    read = read_graph(path)
    assert read.name == "stand-in"
    assert read.order == graph.order
    assert (read.num_edges, read.reference_peak, read.base_cost) == (236, 46330, 48577)
    assert read.constant_memory == 1000
    assert read.arrays.op_inputs.lists() == graph.arrays.op_inputs.lists()


@pytest.mark.parametrize("edges", ["links", "edges"])
def test_reads_what_networkx_writes(edges):
    graph = nx.MultiDiGraph(name="from networkx")
    graph.add_node("a", cost_cpu=1, cost_ram=2)
    graph.add_node("b", cost_cpu=3, cost_ram=4)
    graph.add_edges_from([("a", "b"), ("a", "b")])
    read = graph_from_node_link(json.loads(json.dumps(nx.node_link_data(graph, edges=edges))))
    assert (read.name, read.order, read.num_edges, read.reference_peak) == ("from networkx", ("a", "b"), 1, 6)


def put(*keys, value):
    def change(document):
        for key in keys[:-1]:
            document = document[key]
        document[keys[-1]] = value

    return change


BAD = {
    "integral float": put("nodes", 1, "cost_cpu", value=3.0),
    "float": put("nodes", 1, "cost_ram", value=0.5),
    "true": put("nodes", 1, "cost_ram", value=True),
    "negative": put("nodes", 1, "cost_ram", value=-2),
    "missing": put("nodes", 1, value={"id": 9, "cost_cpu": 1}),
    "no dialect": put("nodes", 0, value={"id": 9}),
    "no nodes": put("nodes", value=[]),
    "node a number": put("nodes", 1, value=1),
    "id missing": put("nodes", 1, "id", value=None),
    "id a list": put("nodes", 1, "id", value=[1]),
    "id twice": put("nodes", 1, "id", value=2),
    "id twice as text": put("nodes", 1, "id", value="2"),
    "hostile id": put("nodes", 0, "id", value="\x1b[2J"),
    "links missing": put("links", value=None),
    "link a list": put("links", 0, value=[0, 1]),
    "link without ends": put("links", 0, value={"from": 0}),
    "unknown end": put("links", 0, "target", value=7),
    "end a list": put("links", 0, "target", value=[1]),
    "end as text": put("links", 0, "target", value="1"),
    "cycle": put("links", 1, value={"source": 1, "target": 0}),
    "loop": put("links", 1, value={"source": 1, "target": 1}),
    "undirected": put("directed", value=False),
    "graph a list": put("graph", value=[1]),
    "order unknown": put("graph", value={"order": [0, 1, 3]}),
    "order short": put("graph", value={"order": [0, 1]}),
    "order wrong": put("graph", value={"order": [0, 2, 1]}),
    "order a number": put("graph", value={"order": 3}),
}  # fmt: skip


@pytest.mark.parametrize("change", BAD.values(), ids=BAD)
def test_bad_documents(change, tmp_path):
    document = checkmate()
    change(document)
    path = tmp_path / "culprit.json"
    path.write_text(json.dumps(document))
    with refused("graph-file.node-link", culprit=f"{path}: "):
        read_graph(path)


def test_all_faults_of_a_document_at_once():
    document = checkmate()
    document["nodes"][1] = {"id": 0}
    document["links"][0] = {"source": 7, "target": [1]}
    with refused("graph-file.node-link"):
        graph_from_node_link(document)
    document = checkmate()
    document["nodes"][0]["cost_ram"], document["nodes"][1]["cost_cpu"] = -1, "1_000"
    with refused("graph.numbers"):
        graph_from_node_link(document)


def test_document_that_is_no_object():
    with refused("graph-file.node-link"):
        graph_from_node_link([])
