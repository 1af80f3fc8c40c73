"""The graphs of the data folder: every fact that comes with them."""

import json
from importlib.resources import files

import jsonschema
import pytest

from remat.graphs import read_graph
from remat.graphs.formats.remat_json import graph_from_document, graph_to_text

pytestmark = pytest.mark.shared


def test_facts(shared):
    schema = json.loads(files("remat.graphs.formats").joinpath("graph.schema.json").read_text(encoding="utf-8"))
    validator = jsonschema.Draft202012Validator(schema)
    paths = sorted((shared / "data" / "graphs").glob("*.json"))
    assert len(paths) >= 29
    for path in paths:
        graph = read_graph(path)
        meta = graph.meta
        assert graph.name == path.stem
        assert len(graph.ops) == meta["n_ops"], path
        assert graph.num_edges == meta["n_op_edges"], path
        assert graph.reference_peak == meta["no_remat_peak"], path
        assert graph.arrays.op_bytes.max() == meta["max_op_bytes"], path
        assert graph.base_cost == meta["total_cost"], path
        validator.validate(json.loads(path.read_text()))
        text = graph_to_text(graph)
        assert graph_from_document(json.loads(text)) == graph
