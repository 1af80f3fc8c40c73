"""Canonical text of a graph in the graph file of remat, version 1."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from remat.graphs.ops_and_tensors import Op
from remat.io.documents import Lines, canonical

NAME = "remat-graph"
VERSION = 1


def graph_text(graph: Mapping[str, Any]) -> str:
    """Return the text for the fields of a :class:`~remat.graphs.ComputeGraph`.

    Equal graphs give equal text. Raise FormatError if `meta` contains a value that JSON cannot express.
    """
    fields: dict[str, Any] = {
        "format": NAME,
        "version": VERSION,
        **{name: graph[name] for name in ("name", "source", "cost_unit", "constant_memory")},
        "tensors": Lines(json.dumps({"name": t.name, "size": t.size}) for t in graph["tensors"]),
        "ops": Lines(_op_line(op) for op in graph["ops"]),
    }
    fields |= {name: graph[name] for name in ("inputs", "outputs") if graph[name]}
    if graph["order"] != tuple(op.name for op in graph["ops"]):
        fields["order"] = graph["order"]
    return canonical(fields, graph["meta"], f"graph {graph['name']!r}")


def _op_line(op: Op) -> str:
    fields: dict[str, Any] = {
        "name": op.name,
        "type": op.type,
        "cost": op.cost,
        "inputs": op.inputs,
        "outputs": op.outputs,
    }
    if op.workspace:
        fields["workspace"] = op.workspace
    if op.phase:
        fields["phase"] = op.phase
    if not op.recomputable:
        fields["recomputable"] = False
    if op.in_place:
        fields["in_place"] = op.in_place
    return json.dumps(fields)
