import json
from importlib.resources import files

import jsonschema
import pytest
from graph_strategies import graphs
from hypothesis import given
from refusals import refused

from remat.errors import FormatError
from remat.graphs import ComputeGraph, Op, Tensor, layered, read_graph, write_graph
from remat.graphs.families import u_chain, unit_chain
from remat.graphs.formats.remat_json import graph_from_document, graph_to_text
from remat.graphs.zoo import unet

SCHEMA = json.loads(files("remat.graphs.formats").joinpath("graph.schema.json").read_text(encoding="utf-8"))
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)


def document():
    """A small valid document that uses every key."""
    return {
        "format": "remat-graph", "version": 1, "name": "g", "source": "test", "cost_unit": "us",
        "constant_memory": 7,
        "tensors": [{"name": "i", "size": 1}, {"name": "x", "size": 4}, {"name": "y", "size": 2}],
        "ops": [
            {"name": "b", "type": "t", "cost": 3, "inputs": ["x", "i"], "outputs": ["y"], "workspace": 5,
             "phase": "backward", "recomputable": False},
            {"name": "a", "type": "", "cost": 1, "inputs": [], "outputs": ["x"]},
        ],
        "inputs": ["i"], "outputs": ["y"], "order": ["a", "b"], "meta": {"k": [1, 2.5, None]},
    }  # fmt: skip


def test_schema_is_a_schema():
    jsonschema.Draft202012Validator.check_schema(SCHEMA)


def test_reads_every_key(tmp_path):
    path = tmp_path / "g.json"
    path.write_text(json.dumps(document()))
    graph = read_graph(path)
    assert graph == ComputeGraph(
        name="g",
        tensors=[Tensor("i", 1), Tensor("x", 4), Tensor("y", 2)],
        ops=[Op("b", ("x", "i"), ("y",), 3, 5, "t", "backward", False), Op("a", (), ("x",), 1)],
        inputs=["i"],
        outputs=["y"],
        order=["a", "b"],
        constant_memory=7,
        cost_unit="us",
        source="test",
        meta={"k": [1, 2.5, None]},
    )
    VALIDATOR.validate(document())


@given(graphs())
def test_round_trip_is_canonical_and_valid(graph):
    text = graph_to_text(graph)
    again = graph_from_document(json.loads(text))
    assert again == graph
    assert again.digest == graph.digest
    assert graph_to_text(again) == text
    assert text.endswith("}\n")
    assert text.isascii()
    VALIDATOR.validate(json.loads(text))


@given(graphs())
def test_one_line_for_each_tensor_and_op(graph):
    lines = graph_to_text(graph).splitlines()
    assert sum(line.startswith('{"name": ') for line in lines) == len(graph.tensors) + len(graph.ops)


def test_equal_content_gives_equal_bytes():
    one, two = document(), dict(reversed(document().items()))
    one["meta"], two["meta"] = {"a": 1, "b": {"c": 2, "d": 3}}, {"b": {"d": 3, "c": 2}, "a": 1}
    assert graph_to_text(graph_from_document(one)) == graph_to_text(graph_from_document(two))


def test_defaults_are_left_out():
    text = graph_to_text(ComputeGraph("g", [Tensor("x", 4)], [Op("a", outputs=("x",))]))
    assert list(json.loads(text)) == [
        "format", "version", "name", "source", "cost_unit", "constant_memory", "tensors", "ops", "meta",
    ]  # fmt: skip
    assert list(json.loads(text)["ops"][0]) == ["name", "type", "cost", "inputs", "outputs"]


@pytest.mark.parametrize("graph", [unit_chain(3), u_chain(4), layered(40, seed=1), unet(batch=1)], ids=repr)
def test_generated_graphs(graph, tmp_path):
    path = tmp_path / "g.json"
    write_graph(graph, path)
    assert read_graph(path) == graph
    VALIDATOR.validate(json.loads(path.read_text()))


@pytest.mark.parametrize(
    "meta",
    [{"a": object()}, {"a": float("nan")}, {1: 2, "a": 3}, {"a": {1, 2}}, {"a": 2 + 1j}],
    ids=["object", "nan", "number key", "set", "complex"],
)
def test_meta_that_is_not_json_is_refused(meta, tmp_path):
    graph = ComputeGraph("g", [Tensor("x", 4)], [Op("a", outputs=("x",))], meta=meta)
    with pytest.raises(FormatError, match="meta of graph 'g' is not JSON"):
        write_graph(graph, tmp_path / "g.json")
    assert list(tmp_path.iterdir()) == []


def put(*keys, value):
    """A change of the document: the value at a place; the last key may be new."""

    def change(document):
        for key in keys[:-1]:
            document = document[key]
        document[keys[-1]] = value

    return change


def drop(*keys):
    def change(document):
        for key in keys[:-1]:
            document = document[key]
        del document[keys[-1]]

    return change


#: Name: change, error, message; and whether the schema sees it, too.
BAD = {
    "other format": (put("format", value="remat-schedule"), True),
    "other version": (put("version", value=2), True),
    "version as text": (put("version", value="1"), True),
    "version true": (put("version", value=True), True),
    "no version": (drop("version"), True),
    "missing key": (drop("tensors"), True),
    "missing key of an op": (drop("ops", 1, "outputs"), True),
    "name of an op": (drop("ops", 0, "name"), True),
    "order null": (put("order", value=None), True),
    "full-width digits": (put("ops", 0, "cost", value="\uff11"), True),
    "digits with a mark": (put("ops", 0, "cost", value="1_000"), True),
    "missing key of a tensor": (drop("tensors", 2, "size"), True),
    "unknown key": (put("extra", value=1), True),
    "unknown key of an op": (put("ops", 0, "time", value=1), True),
    "unknown key of a tensor": (put("tensors", 0, "kind", value=1), True),
    "hostile key": (put("ops", 0, "\x1b[2J", value=1), True),
    "float cost": (put("ops", 0, "cost", value=1.5), True),
    "integral float cost": (put("ops", 0, "cost", value=3.0), False),
    "cost true": (put("ops", 0, "cost", value=True), True),
    "cost null": (put("ops", 0, "cost", value=None), True),
    "negative cost": (put("ops", 1, "cost", value=-3), True),
    "negative size": (put("tensors", 1, "size", value=-1), True),
    "text size": (put("tensors", 1, "size", value="4"), True),
    "huge size": (put("tensors", 1, "size", value=10**3000), True),
    "huge constant": (put("constant_memory", value=2**62 - 1), False),
    "workspace": (put("ops", 0, "workspace", value=[]), True),
    "recomputable": (put("ops", 0, "recomputable", value=0), True),
    "phase": (put("ops", 0, "phase", value="up"), True),
    "phase number": (put("ops", 0, "phase", value=1), True),
    "type": (put("ops", 0, "type", value=None), True),
    "cost unit": (put("cost_unit", value="s"), True),
    "tensors an object": (put("tensors", value={}), True),
    "ops null": (put("ops", value=None), True),
    "no ops": (put("ops", value=[]), True),
    "op a list": (put("ops", 1, value=[]), True),
    "tensor a number": (put("tensors", 1, value=3), True),
    "input a number": (put("ops", 0, "inputs", 1, value=3), True),
    "inputs a string": (put("ops", 0, "inputs", value="x"), True),
    "order number": (put("order", 0, value=0), True),
    "meta a list": (put("meta", value=[]), True),
    "duplicate op": (put("ops", 1, "name", value="b"), False),
    "duplicate tensor": (put("tensors", 1, "name", value="i"), False),
    "unknown tensor": (put("ops", 0, "inputs", value=["q"]), False),
    "input twice": (put("ops", 0, "inputs", value=["x", "x"]), True),
    "cycle": (put("ops", 1, "inputs", value=["y"]), False),
    "wrong order": (put("order", value=["b", "a"]), False),
    "default order is wrong": (drop("order"), False),
    "short order": (put("order", value=["a"]), False),
    "control characters": (put("ops", 0, "name", value="b\r\x1b[31m"), False),
    "direction override": (put("tensors", 1, "name", value="x\u202ey"), False),
    "lone surrogate": (put("ops", 0, "name", value="\ud800"), False),
    "empty name": (put("ops", 0, "name", value=""), True),
    "long name": (put("ops", 0, "name", value="n" * 10_000), True),
}


@pytest.mark.parametrize("change,schema", BAD.values(), ids=BAD)
def test_bad_documents(change, schema, tmp_path):
    path = tmp_path / "culprit.json"
    bad = document()
    change(bad)
    path.write_text(json.dumps(bad))
    with refused("graph-file.remat-json", culprit=f"{path}: ") as caught:
        read_graph(path)
    shown = str(caught.value)
    assert shown.count(str(path)) == 1
    assert len(shown) < len(str(path)) + 300
    assert VALIDATOR.is_valid(bad) is not schema


def test_document_of_another_format():
    for value in ({"format": "else"}, {}, [], 3):
        with refused("format.header"):
            graph_from_document(value)


BAD_TEXT = {
    "empty": b"",
    "spaces": b"  \n",
    "list": b"[]",
    "empty object": b"{}",
    "NaN": b'{"format": "remat-graph", "version": NaN}',
    "infinity": b'{"format": "remat-graph", "version": -Infinity}',
    "overflow": b'{"format": "remat-graph", "version": 1e999}',
    "digits": b'{"format": "remat-graph", "version": ' + b"9" * 5000 + b"}",
    "key twice": b'{"format": "remat-graph", "format": "remat-graph"}',
    "deep": b'{"meta": ' + b"[" * 200_000 + b"]" * 200_000 + b"}",
    "truncated": graph_to_text(unit_chain(2)).encode()[:-40],
    "not UTF-8": b'{"format": "remat-graph\xff"}',
    "binary": bytes(range(256)),
    "format a list": b'{"format": ["remat-graph"]}',
}


@pytest.mark.parametrize("content", BAD_TEXT.values(), ids=BAD_TEXT)
def test_bad_text(content, tmp_path):
    path = tmp_path / "culprit.json"
    path.write_bytes(content)
    with refused("graph-file.text", culprit=f"{path}: "):
        read_graph(path)


def test_every_truncation_is_refused(tmp_path):
    content = graph_to_text(graph_from_document(document())).encode()
    path = tmp_path / "g.json"
    for length in range(len(content) - 2):
        path.write_bytes(content[:length])
        with pytest.raises(FormatError):
            read_graph(path)


@pytest.mark.slow
def test_large_file_is_fast(tmp_path):
    import time

    graph = layered(10_000, 0.4, 1)
    assert graph.num_edges > 100_000
    path = tmp_path / "large.json"
    start = time.process_time()
    write_graph(graph, path)
    assert read_graph(path) == graph
    assert time.process_time() - start < 40  # about 1 s
