import json
import random

import networkx as nx
import pytest

from remat.errors import FormatError, GraphError, RematError
from remat.graphs import layered, read_graph
from remat.graphs.formats.node_link import FORMAT, graph_from_node_link
from remat.io.formats import Source


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
    "integral float": (put("nodes", 1, "cost_cpu", value=3.0), GraphError, r"\[1\]\.cost_cpu .* not 3\.0; .* finer"),
    "float": (put("nodes", 1, "cost_ram", value=0.5), GraphError, r"nodes\[1\]\.cost_ram .* not 0\.5"),
    "true": (put("nodes", 1, "cost_ram", value=True), GraphError, r"nodes\[1\]\.cost_ram .* not True"),
    "negative": (put("nodes", 1, "cost_ram", value=-2), GraphError, r"nodes\[1\]\.cost_ram must not be negative"),
    "missing": (put("nodes", 1, value={"id": 9, "cost_cpu": 1}), FormatError, r"nodes\[1\] \('9'\) .* 'cost_ram'"),
    "no dialect": (put("nodes", 0, value={"id": 9}), FormatError, r"nodes\[0\] .* no known dialect"),
    "no nodes": (put("nodes", value=[]), FormatError, "nodes is empty"),
    "node a number": (put("nodes", 1, value=1), FormatError, r"nodes\[1\] must be an object"),
    "id missing": (put("nodes", 1, "id", value=None), FormatError, r"nodes\[1\]\.id must be"),
    "id a list": (put("nodes", 1, "id", value=[1]), FormatError, r"nodes\[1\]\.id must be"),
    "id twice": (put("nodes", 1, "id", value=2), FormatError, r"nodes\[1\]\.id: two nodes are named '2'"),
    "id twice as text": (put("nodes", 1, "id", value="2"), FormatError, r"nodes\[1\]\.id: two nodes are named '2'"),
    "hostile id": (put("nodes", 0, "id", value="\x1b[2J"), RematError, r"\\x1b|unknown node"),
    "links missing": (put("links", value=None), FormatError, "links must be a list"),
    "link a list": (put("links", 0, value=[0, 1]), FormatError, r"links\[0\] must be an object"),
    "link without ends": (put("links", 0, value={"from": 0}), FormatError, r"links\[0\] names no ends"),
    "unknown end": (put("links", 0, "target", value=7), FormatError, r"links\[0\]\.target names unknown node 7"),
    "end a list": (put("links", 0, "target", value=[1]), FormatError, r"links\[0\]\.target must be"),
    "end as text": (put("links", 0, "target", value="1"), FormatError, r"links\[0\]\.target names unknown node '1'"),
    "cycle": (put("links", 1, value={"source": 1, "target": 0}), GraphError, "cycle: "),
    "loop": (put("links", 1, value={"source": 1, "target": 1}), GraphError, "reads and writes tensor '1'"),
    "undirected": (put("directed", value=False), FormatError, "not directed"),
    "graph a list": (put("graph", value=[1]), FormatError, "graph must be an object"),
    "order unknown": (put("graph", value={"order": [0, 1, 3]}), FormatError, r"graph\.order\[2\] .* unknown node 3"),
    "order short": (put("graph", value={"order": [0, 1]}), GraphError, "misses op '2'"),
    "order wrong": (put("graph", value={"order": [0, 2, 1]}), GraphError, "op '2' comes before op '1'"),
    "order a number": (put("graph", value={"order": 3}), FormatError, r"graph\.order must be a list"),
}  # fmt: skip


@pytest.mark.parametrize("change,error,message", BAD.values(), ids=BAD)
def test_bad_documents(change, error, message, tmp_path):
    document = checkmate()
    change(document)
    path = tmp_path / "culprit.json"
    path.write_text(json.dumps(document))
    with pytest.raises(error, match=message) as caught:
        read_graph(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert str(caught.value).isprintable()


def test_all_faults_of_a_document_at_once():
    document = checkmate()
    document["nodes"][1] = {"id": 0}
    document["links"][0] = {"source": 7, "target": [1]}
    with pytest.raises(FormatError) as caught:
        graph_from_node_link(document)
    assert str(caught.value) == (
        "nodes[1] ('0') has no attribute 'cost_ram'; nodes[1] ('0') has no attribute 'cost_cpu'; "
        "links[0].source names unknown node 7; links[0].target must be a whole number or a string"
    )
    document = checkmate()
    document["nodes"][0]["cost_ram"], document["nodes"][1]["cost_cpu"] = -1, "1_000"
    with pytest.raises(
        GraphError, match=r"nodes\[0\]\.cost_ram must not be negative; nodes\[1\]\.cost_cpu must be a wh"
    ):
        graph_from_node_link(document)


def test_document_that_is_no_object():
    with pytest.raises(FormatError, match="must be an object"):
        graph_from_node_link([])


def test_mutated_files_raise_only_clear_errors():
    rng = random.Random(5)
    words = [b"-1", b"null", b"1.5", b"{}", b"[]", b'"id"', b"true", b"9" * 30, b'"0"', b""]
    refused = 0
    for content in (json.dumps(checkmate()).encode(), json.dumps(moccasin(layered(6, 0.4))).encode()):
        for _ in range(1500):
            start = rng.randrange(len(content))
            source = Source("culprit", content[:start] + rng.choice(words) + content[start + rng.randrange(8) :])
            try:
                if FORMAT.recognizes(source):
                    FORMAT.read(source)
            except RematError as error:
                refused += 1
                assert "\n" not in str(error)
    assert refused > 1000
