"""The graph file of this project, version 1: a strict reader and a canonical writer.

The JSON Schema of the format is ``graph.schema.json`` beside this file.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from remat.errors import FormatError
from remat.graphs.formats.base import GraphFormat
from remat.graphs.graph import ComputeGraph, Op, Tensor
from remat.io.formats import Source
from remat.io.text import short

NAME = "remat-graph"
VERSION = 1

_GRAPH = ("format", "version", "name", "source", "cost_unit", "constant_memory", "tensors", "ops", "meta")
_GRAPH_OPTIONAL = ("inputs", "outputs", "order")
_TENSOR = ("name", "size")
_OP = ("name", "type", "cost", "inputs", "outputs")
_OP_OPTIONAL = ("workspace", "phase", "recomputable")


def graph_from_document(document: Any) -> ComputeGraph:
    """The graph of a parsed JSON document in format ``remat-graph``.

    Raises
    ------
    FormatError
        For another format or version, missing or unknown keys and wrong types; the message names the place, as in
        ``ops[3].cost``.
    GraphError
        See :class:`ComputeGraph`.

    Examples
    --------
    >>> text = graph_to_text(ComputeGraph("g", [Tensor("x", 4)], [Op("a", outputs=("x",), cost=1)]))
    >>> graph_from_document(json.loads(text)).reference_peak
    4
    """
    top = _object(document, "the document")
    if top.get("format") != NAME:
        raise FormatError(f"format is {short(top.get('format'))}, not {NAME!r}")
    if type(top.get("version")) is not int or top["version"] != VERSION:
        raise FormatError(f"version is {short(top.get('version'))}; this program reads version {VERSION}")
    _check_keys(top, _GRAPH, _GRAPH_OPTIONAL, "")
    return ComputeGraph(
        name=_string(top["name"], "name"),
        tensors=[_tensor(t, i) for i, t in enumerate(_list(top["tensors"], "tensors"))],
        ops=[_op(o, i) for i, o in enumerate(_list(top["ops"], "ops"))],
        inputs=_strings(top.get("inputs", []), "inputs"),
        outputs=_strings(top.get("outputs", []), "outputs"),
        order=_strings(top["order"], "order") if "order" in top else None,
        constant_memory=_integer(top["constant_memory"], "constant_memory"),
        cost_unit=_string(top["cost_unit"], "cost_unit"),
        source=_string(top["source"], "source"),
        meta=_object(top["meta"], "meta"),
    )


def graph_to_text(graph: ComputeGraph) -> str:
    """The canonical text of a graph: equal graphs give equal text; one tensor or op per line; ASCII.

    Raises
    ------
    FormatError
        If `meta` holds something that JSON cannot express.
    """
    fields = {
        "format": NAME,
        "version": VERSION,
        "name": graph.name,
        "source": graph.source,
        "cost_unit": graph.cost_unit,
        "constant_memory": graph.constant_memory,
    }
    parts = [f"{_dump(key)}: {_dump(value)}" for key, value in fields.items()]
    parts.append(_lines("tensors", [_dump({"name": t.name, "size": t.size}) for t in graph.tensors]))
    parts.append(_lines("ops", [_op_line(op) for op in graph.ops]))
    if graph.inputs:
        parts.append(f'"inputs": {_dump(graph.inputs)}')
    if graph.outputs:
        parts.append(f'"outputs": {_dump(graph.outputs)}')
    if graph.order != graph.op_names:
        parts.append(f'"order": {_dump(graph.order)}')
    try:
        meta = json.dumps(dict(graph.meta), sort_keys=True, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise FormatError(f"meta of graph {graph.name!r} is not JSON: {error}") from None
    parts.append(f'"meta": {meta}')
    return "{\n" + ",\n".join(parts) + "\n}\n"


_dump: Callable[[Any], str] = json.JSONEncoder().encode


def _lines(key: str, items: list[str]) -> str:
    return f'"{key}": [\n' + ",\n".join(items) + "\n]" if items else f'"{key}": []'


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
    return _dump(fields)


# -- strict decoding -----------------------------------------------------------------------------------------------


def _tensor(value: Any, number: int) -> Tensor:
    at = f"tensors[{number}]"
    _check_keys(_object(value, at), _TENSOR, (), at)
    return Tensor(_string(value["name"], f"{at}.name"), _integer(value["size"], f"{at}.size"))


def _op(value: Any, number: int) -> Op:
    at = f"ops[{number}]"
    _check_keys(_object(value, at), _OP, _OP_OPTIONAL, at)
    recomputable = value.get("recomputable", True)
    if type(recomputable) is not bool:
        raise FormatError(f"{at}.recomputable must be true or false, not {short(recomputable)}")
    return Op(
        name=_string(value["name"], f"{at}.name"),
        inputs=tuple(_strings(value["inputs"], f"{at}.inputs")),
        outputs=tuple(_strings(value["outputs"], f"{at}.outputs")),
        cost=_integer(value["cost"], f"{at}.cost"),
        workspace=_integer(value.get("workspace", 0), f"{at}.workspace"),
        type=_string(value["type"], f"{at}.type"),
        phase=_string(value.get("phase", ""), f"{at}.phase"),
        recomputable=recomputable,
    )


def _check_keys(value: dict[str, Any], needed: tuple[str, ...], optional: tuple[str, ...], at: str) -> None:
    where = f"{at}: " if at else ""
    for key in needed:
        if key not in value:
            raise FormatError(f"{where}key {key!r} is missing")
    if len(value) > len(needed):
        for key in value:
            if key not in needed and key not in optional:
                raise FormatError(f"{where}unknown key {short(key)}")


def _object(value: Any, at: str) -> dict[str, Any]:
    if type(value) is not dict:
        raise FormatError(f"{at} must be an object, not {short(value)}")
    return value


def _list(value: Any, at: str) -> list[Any]:
    if type(value) is not list:
        raise FormatError(f"{at} must be a list, not {short(value)}")
    return value


def _string(value: Any, at: str) -> str:
    if type(value) is not str:
        raise FormatError(f"{at} must be a string, not {short(value)}")
    return value


def _strings(value: Any, at: str) -> list[str]:
    for number, item in enumerate(_list(value, at)):
        if type(item) is not str:
            raise FormatError(f"{at}[{number}] must be a string, not {short(item)}")
    return value


def _integer(value: Any, at: str) -> int:
    if type(value) is not int:
        hint = "; pick a finer unit instead of a fraction" if type(value) is float else ""
        raise FormatError(f"{at} must be a whole number, not {short(value)}{hint}")
    if value < 0:
        raise FormatError(f"{at} must not be negative, but is {short(value)}")
    return value


def _recognizes(source: Source) -> bool:
    return source.looks_like_json and isinstance(source.json, dict) and source.json.get("format") == NAME


FORMAT = GraphFormat(
    name="remat-json",
    description="the graph file of remat, version 1",
    suffixes=(".json",),
    recognizes=_recognizes,
    read=lambda source: graph_from_document(source.json),
    write=graph_to_text,
)
