import json
import random
from importlib.resources import files

import jsonschema
import pytest
from graph_strategies import graphs
from hypothesis import given
from hypothesis import strategies as st

from remat.errors import FormatError, GraphError, RematError
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
    "other format": (put("format", value="remat-schedule"), FormatError, "\"format\" is 'remat-schedule'", True),
    "other version": (put("version", value=2), FormatError, "version is 2; this program reads version 1", True),
    "version as text": (put("version", value="1"), FormatError, "version is '1'", True),
    "version true": (put("version", value=True), FormatError, "version is True", True),
    "no version": (drop("version"), FormatError, "version is None", True),
    "missing key": (drop("tensors"), FormatError, "key 'tensors' is missing", True),
    "missing key of an op": (drop("ops", 1, "outputs"), FormatError, r"ops\[1\]: key 'outputs' is missing", True),
    "name of an op": (drop("ops", 0, "name"), FormatError, r"ops\[0\]: key 'name' is missing", True),
    "order null": (put("order", value=None), FormatError, "order must be a list, not None", True),
    "full-width digits": (put("ops", 0, "cost", value="\uff11"), FormatError, r"ops\[0\]\.cost .* not '\uff11'", True),
    "digits with a mark": (put("ops", 0, "cost", value="1_000"), FormatError, r"ops\[0\]\.cost .* not '1_000'", True),
    "missing key of a tensor": (drop("tensors", 2, "size"), FormatError, r"tensors\[2\]: key 'size' is missing", True),
    "unknown key": (put("extra", value=1), FormatError, "unknown key 'extra'", True),
    "unknown key of an op": (put("ops", 0, "time", value=1), FormatError, r"ops\[0\]: unknown key 'time'", True),
    "unknown key of a tensor": (put("tensors", 0, "kind", value=1), FormatError, r"tensors\[0\]: unknown", True),
    "hostile key": (put("ops", 0, "\x1b[2J", value=1), FormatError, r"unknown key '\\x1b\[2J'", True),
    "float cost": (put("ops", 0, "cost", value=1.5), FormatError, r"ops\[0\]\.cost .* not 1\.5; pick a finer", True),
    "integral float cost": (put("ops", 0, "cost", value=3.0), FormatError, r"ops\[0\]\.cost .* not 3\.0", False),
    "cost true": (put("ops", 0, "cost", value=True), FormatError, r"ops\[0\]\.cost .* not True", True),
    "cost null": (put("ops", 0, "cost", value=None), FormatError, r"ops\[0\]\.cost .* not None", True),
    "negative cost": (put("ops", 1, "cost", value=-3), FormatError, r"ops\[1\]\.cost must not be negative", True),
    "negative size": (put("tensors", 1, "size", value=-1), FormatError, r"tensors\[1\]\.size must not be neg", True),
    "text size": (put("tensors", 1, "size", value="4"), FormatError, r"tensors\[1\]\.size .* not '4'", True),
    "huge size": (put("tensors", 1, "size", value=10**3000), GraphError, "size of tensor 'x' is 2\\^62", True),
    "huge constant": (put("constant_memory", value=2**62 - 1), GraphError, "the sum of all sizes", False),
    "workspace": (put("ops", 0, "workspace", value=[]), FormatError, r"ops\[0\]\.workspace .* not a list", True),
    "recomputable": (put("ops", 0, "recomputable", value=0), FormatError, r"ops\[0\]\.recomputable .* not 0", True),
    "phase": (put("ops", 0, "phase", value="up"), GraphError, "phase 'up' of op 'b'", True),
    "phase number": (put("ops", 0, "phase", value=1), FormatError, r"ops\[0\]\.phase must be a string", True),
    "type": (put("ops", 0, "type", value=None), FormatError, r"ops\[0\]\.type must be a string", True),
    "cost unit": (put("cost_unit", value="s"), GraphError, "cost unit 's'", True),
    "tensors an object": (put("tensors", value={}), FormatError, "tensors must be a list, not an object", True),
    "ops null": (put("ops", value=None), FormatError, "ops must be a list, not None", True),
    "no ops": (put("ops", value=[]), GraphError, "no ops", True),
    "op a list": (put("ops", 1, value=[]), FormatError, r"ops\[1\] must be an object, not a list", True),
    "tensor a number": (put("tensors", 1, value=3), FormatError, r"tensors\[1\] must be an object, not 3", True),
    "input a number": (put("ops", 0, "inputs", 1, value=3), FormatError, r"ops\[0\]\.inputs\[1\] .* not 3", True),
    "inputs a string": (put("ops", 0, "inputs", value="x"), FormatError, r"ops\[0\]\.inputs must be a list", True),
    "order number": (put("order", 0, value=0), FormatError, r"order\[0\] must be a string", True),
    "meta a list": (put("meta", value=[]), FormatError, "meta must be an object", True),
    "duplicate op": (put("ops", 1, "name", value="b"), GraphError, "two ops are named 'b'", False),
    "duplicate tensor": (put("tensors", 1, "name", value="i"), GraphError, "two tensors are named 'i'", False),
    "unknown tensor": (put("ops", 0, "inputs", value=["q"]), GraphError, "'b' reads unknown tensor 'q'", False),
    "input twice": (put("ops", 0, "inputs", value=["x", "x"]), GraphError, "reads tensor 'x' twice", True),
    "cycle": (put("ops", 1, "inputs", value=["y"]), GraphError, "cycle: ", False),
    "wrong order": (put("order", value=["b", "a"]), GraphError, "op 'b' comes before op 'a'", False),
    "default order is wrong": (drop("order"), GraphError, "op 'b' comes before op 'a'", False),
    "short order": (put("order", value=["a"]), GraphError, "misses op 'b'", False),
    "control characters": (put("ops", 0, "name", value="b\r\x1b[31m"), GraphError, r"printable.*\\x1b", False),
    "direction override": (put("tensors", 1, "name", value="x\u202ey"), GraphError, r"printable.*\\u202e", False),
    "lone surrogate": (put("ops", 0, "name", value="\ud800"), GraphError, r"printable.*\\ud800", False),
    "empty name": (put("ops", 0, "name", value=""), GraphError, "non-empty name", True),
    "long name": (put("ops", 0, "name", value="n" * 10_000), GraphError, "printable, non-empty name", True),
}


@pytest.mark.parametrize("change,error,message,schema", BAD.values(), ids=BAD)
def test_bad_documents(change, error, message, schema, tmp_path):
    path = tmp_path / "culprit.json"
    bad = document()
    change(bad)
    path.write_text(json.dumps(bad))
    with pytest.raises(error, match=message) as caught:
        read_graph(path)
    shown = str(caught.value)
    assert shown.startswith(f"{path}: ")
    assert shown.count(str(path)) == 1
    assert shown.isprintable()
    assert len(shown) < len(str(path)) + 300
    assert VALIDATOR.is_valid(bad) is not schema


def test_document_of_another_format():
    for value in ({"format": "else"}, {}, [], 3):
        with pytest.raises(FormatError, match=r"format is|must be an object"):
            graph_from_document(value)


BAD_TEXT = {
    "empty": (b"", "not a graph in any known format"),
    "spaces": (b"  \n", "not a graph in any known format"),
    "list": (b"[]", "not a graph in any known format"),
    "empty object": (b"{}", "not a graph in any known format"),
    "NaN": (b'{"format": "remat-graph", "version": NaN}', "NaN is not JSON"),
    "infinity": (b'{"format": "remat-graph", "version": -Infinity}', "-Infinity is not JSON"),
    "overflow": (b'{"format": "remat-graph", "version": 1e999}', "1e999 is too large"),
    "digits": (b'{"format": "remat-graph", "version": ' + b"9" * 5000 + b"}", "digits"),
    "key twice": (b'{"format": "remat-graph", "format": "remat-graph"}', "key 'format' stands twice"),
    "deep": (b'{"meta": ' + b"[" * 200_000 + b"]" * 200_000 + b"}", "nested too deeply"),
    "truncated": (graph_to_text(unit_chain(2)).encode()[:-40], "line .*, column"),
    "not UTF-8": (b'{"format": "remat-graph\xff"}', "not UTF-8"),
    "binary": (bytes(range(256)), "not a graph in any known format"),
    "format a list": (b'{"format": ["remat-graph"]}', "not a graph in any known format"),
}


@pytest.mark.parametrize("content,message", BAD_TEXT.values(), ids=BAD_TEXT)
def test_bad_text(content, message, tmp_path):
    path = tmp_path / "culprit.json"
    path.write_bytes(content)
    with pytest.raises(FormatError, match=message) as caught:
        read_graph(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert str(caught.value).isprintable()


def test_every_truncation_is_refused(tmp_path):
    content = graph_to_text(graph_from_document(document())).encode()
    path = tmp_path / "g.json"
    for length in range(len(content) - 2):
        path.write_bytes(content[:length])
        with pytest.raises(FormatError):
            read_graph(path)


def mutated(content: bytes, rng: random.Random) -> bytes:
    """The content with a few bytes changed, removed, doubled or moved."""
    data = bytearray(content)
    for _ in range(rng.randint(1, 3)):
        start = rng.randrange(len(data))
        stop = min(len(data), start + rng.choice([1, 1, 2, 5, 20]))
        kind = rng.randrange(5)
        if kind == 0:
            data[start] = rng.randrange(256)
        elif kind == 1:
            del data[start:stop]
        elif kind == 2:
            data[start:start] = data[start:stop]
        elif kind == 3:
            data[start:stop] = rng.choice(
                [b"-1", b"null", b"1e9", b"{}", b"[]", b'"', b"true", b"99999999999999999999"]
            )
        else:
            other = rng.randrange(len(data))
            data[start:stop] = data[other : other + stop - start]
        data = data or bytearray(b" ")
    return bytes(data)


@given(st.randoms(use_true_random=False), st.sampled_from([graph_to_text(unit_chain(2)), json.dumps(document())]))
def test_mutated_files_read_or_raise_one_clear_line(rng, text):
    from remat.graphs.formats.node_link import FORMAT as NODE_LINK
    from remat.graphs.formats.remat_json import FORMAT
    from remat.io.formats import Source

    for _ in range(10):
        source = Source("culprit", mutated(text.encode(), rng))
        for graph_format in (FORMAT, NODE_LINK):
            try:
                if graph_format.recognizes(source):
                    graph = graph_format.read(source)
                    assert graph_from_document(json.loads(graph_to_text(graph))) == graph
            except RematError as error:
                assert "\n" not in str(error)


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
