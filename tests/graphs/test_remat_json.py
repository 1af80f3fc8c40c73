import json
from importlib.resources import files
from typing import Any

import jsonschema
import pytest
from graph_strategies import graphs
from helpers import at_most, changed
from hypothesis import given, settings
from refusals import refused

from remat.errors import FormatError
from remat.graphs import ComputeGraph, Op, Tensor, layered, read_graph, write_graph
from remat.graphs.families import unit_chain
from remat.graphs.formats.remat_json import graph_from_document, graph_to_text

SCHEMA = json.loads(files("remat.graphs.formats").joinpath("graph.schema.json").read_text(encoding="utf-8"))
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)


def document():
    """Return a small valid document that uses every key."""
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


@settings(max_examples=25)
@given(graphs())
def test_round_trip_is_canonical_and_valid(graph):
    text = graph_to_text(graph)
    again = graph_from_document(json.loads(text))
    assert again == graph
    assert again.digest == graph.digest
    assert graph_to_text(again) == text
    assert text.endswith("}\n")
    assert text.isascii()
    assert sum(line.startswith('{"name": ') for line in text.splitlines()) == len(graph.tensors) + len(graph.ops)
    VALIDATOR.validate(json.loads(text))


def test_equal_content_gives_equal_bytes():
    one, two = document(), dict(reversed(document().items()))
    one["meta"], two["meta"] = {"a": 1, "b": {"c": 2, "d": 3}}, {"b": {"d": 3, "c": 2}, "a": 1}
    assert graph_to_text(graph_from_document(one)) == graph_to_text(graph_from_document(two))


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


#: Values that both the reader and the schema refuse, by their place; ``...``: the key is missing.
INVALID: dict[str, list[Any]] = {
    "format": ["remat-schedule"], "version": [2, "1", True, ...], "name": [3], "extra": [1], "cost_unit": ["s"],
    "constant_memory": [-1, "7"], "meta": [[]], "order": [None], "order.0": [0], "inputs": ["i"],
    "tensors": [..., {}], "tensors.1": [3], "tensors.2.size": [..., -1, "4", 1.5, 10**3000], "tensors.0.kind": [1],
    "ops": [None, []], "ops.1": [[]], "ops.0.name": [..., "", "n" * 10_000], "ops.1.outputs": [...],
    "ops.0.time": [1], "ops.0.\x1b[2J": [1], "ops.0.cost": [1.5, True, None, -3, "1_000"], "ops.0.workspace": [[]],
    "ops.0.recomputable": [0], "ops.0.phase": ["up", 1], "ops.0.type": [None], "ops.0.inputs": ["x", ["x", "x"]],
    "ops.0.inputs.1": [3],
}  # fmt: skip
#: Values that only the reader refuses.
INVALID_FOR_READERS: dict[str, list[Any]] = {
    "ops.0.cost": [3.0], "constant_memory": [2**62 - 1], "ops.1.name": ["b"], "tensors.1.name": ["i", "x\u202ey"],
    "ops.0.inputs": [["q"]], "ops.1.inputs": [["y"]], "order": [["b", "a"], ["a"], ...],
    "ops.0.name": ["b\r\x1b[31m", "\ud800"],
}  # fmt: skip


@pytest.mark.parametrize("table", [INVALID, INVALID_FOR_READERS], ids=["schema too", "reader only"])
def test_invalid_documents(table, tmp_path):
    path = tmp_path / "culprit.json"
    for at, value in ((at, value) for at, values in table.items() for value in values):
        bad = changed(document(), at, value)
        path.write_text(json.dumps(bad))
        with refused("graph-file.remat-json", culprit=f"{path}: ") as caught:
            read_graph(path)
        shown = str(caught.value)
        assert shown.count(str(path)) == 1
        assert len(shown) < len(str(path)) + 300
        assert VALIDATOR.is_valid(bad) is (table is INVALID_FOR_READERS), at


INVALID_TEXT = {
    "empty": b"",
    "spaces": b"  \n",
    "list": b"[]",
    "empty object": b"{}",
    "NaN": b'{"format": "remat-graph", "version": NaN}',
    "infinity": b'{"format": "remat-graph", "version": -Infinity}',
    "overflow": b'{"format": "remat-graph", "version": 1e999}',
    "digits": b'{"format": "remat-graph", "version": ' + b"9" * 5000 + b"}",
    "deep": b'{"meta": ' + b"[" * 200_000 + b"]" * 200_000 + b"}",
    "truncated": graph_to_text(unit_chain(2)).encode()[:-40],
    "not UTF-8": b'{"format": "remat-graph\xff"}',
    "binary": bytes(range(256)),
    "format a list": b'{"format": ["remat-graph"]}',
}


@pytest.mark.parametrize("content", INVALID_TEXT.values(), ids=INVALID_TEXT)
def test_invalid_text(content, tmp_path):
    path = tmp_path / "culprit.json"
    path.write_bytes(content)
    with refused("graph-file.text", culprit=f"{path}: "):
        read_graph(path)


@pytest.mark.shared
def test_facts_of_the_data_folder(shared):
    """Compare counts, peaks and costs with those in the files."""
    paths = sorted((shared / "data" / "graphs").glob("*.json"))
    assert len(paths) >= 29
    for path in paths:
        graph = read_graph(path)
        meta = graph.meta
        assert graph.name == path.stem
        assert (len(graph.ops), graph.num_edges) == (meta["n_ops"], meta["n_op_edges"]), path
        assert (graph.reference_peak, graph.arrays.op_bytes.max()) == (meta["no_remat_peak"], meta["max_op_bytes"])
        assert graph.base_cost == meta["total_cost"], path


@pytest.mark.slow
def test_large_file_is_fast(tmp_path):
    graph = layered(10_000, 0.4, 1)
    assert graph.num_edges > 100_000
    path = tmp_path / "large.json"
    with at_most(40):  # about 1 s
        write_graph(graph, path)
        assert read_graph(path) == graph
