"""Reader for networkx node-link JSON of training graphs, in the two dialects that are public.

Every node is an op with one output. Dialect ``checkmate`` has the node attributes ``cost_cpu`` and ``cost_ram``;
dialect ``moccasin`` has ``duration``, ``out_cost`` and optionally ``param_cost``, which is constant memory. Links name
their ends ``source`` and ``target``, or ``"0"`` and ``"1"``; ``graph.order`` is the reference order where it is given.
"""

from __future__ import annotations

from typing import Any

from remat.errors import FormatError
from remat.graphs.builder import single_output_graph
from remat.graphs.formats.base import GraphFormat
from remat.graphs.graph import ComputeGraph, whole_number
from remat.io.formats import Source

#: Dialect: node attributes for size, cost and (optional) constant memory.
DIALECTS = {
    "checkmate": ("cost_ram", "cost_cpu", None),
    "moccasin": ("out_cost", "duration", "param_cost"),
}
_LINK_LISTS = ("links", "edges")
_LINK_ENDS = (("source", "target"), ("0", "1"))


def graph_from_node_link(document: Any, name: str = "") -> ComputeGraph:
    """The graph of a parsed node-link document; parallel links are merged.

    Node ids become op names. Without ``graph.order`` the reference order is the topological order closest to the
    order of the nodes. Attributes other than those of the dialect are ignored.

    Parameters
    ----------
    document : JSON value
    name : str
        Name of the graph, unless ``graph.name`` gives one.

    Raises
    ------
    FormatError
        Naming the place (``nodes[3]``, ``links[5]``), for missing attributes, unknown ends, wrong types.
    GraphError
        Naming the node, for sizes and costs that are negative or not whole numbers, and for cycles.

    Examples
    --------
    >>> nodes = [{"id": 0, "cost_cpu": 5, "cost_ram": 8}, {"id": 1, "cost_cpu": 7, "cost_ram": 4}]
    >>> g = graph_from_node_link({"nodes": nodes, "links": [{"source": 0, "target": 1}]})
    >>> g.reference_peak, g.base_cost
    (12, 12)
    """
    if not isinstance(document, dict):
        raise FormatError("the document must be an object")
    if document.get("directed", True) is not True:
        raise FormatError("the graph is not directed")
    entries = _list(document, "nodes")
    if not entries:
        raise FormatError("nodes is empty: a graph needs an op")
    dialect = _dialect(entries[0])
    if dialect is None:
        raise FormatError(
            "nodes[0] has the attributes of no known dialect: cost_cpu and cost_ram, or duration and out_cost"
        )
    size_key, cost_key, constant_key = DIALECTS[dialect]

    names: dict[int | str, str] = {}
    nodes: dict[str, tuple[int, int]] = {}
    constant_memory = 0
    for number, entry in enumerate(entries):
        at = f"nodes[{number}]"
        if not isinstance(entry, dict):
            raise FormatError(f"{at} must be an object")
        node = _node_id(entry.get("id", entry.get("name")), f"{at}.id")
        if str(node) in nodes:
            raise FormatError(f"{at}.id: two nodes are named {str(node)[:40]!r}")
        names[node] = str(node)
        for key in (size_key, cost_key):
            if key not in entry:
                raise FormatError(f"{at} ({str(node)[:40]!r}) has no attribute {key!r}")
        nodes[str(node)] = (
            whole_number(entry[size_key], f"{at}.{size_key}"),
            whole_number(entry[cost_key], f"{at}.{cost_key}"),
        )
        if constant_key is not None:
            constant_memory += whole_number(entry.get(constant_key, 0), f"{at}.{constant_key}")

    list_name = next((key for key in _LINK_LISTS if key in document), "links")
    edges = []
    for number, link in enumerate(_list(document, list_name)):
        at = f"{list_name}[{number}]"
        if not isinstance(link, dict):
            raise FormatError(f"{at} must be an object")
        ends = next(((a, b) for a, b in _LINK_ENDS if a in link and b in link), None)
        if ends is None:
            raise FormatError(f"{at} names no ends: source and target, or 0 and 1")
        edges.append((_end(link[ends[0]], names, f"{at}.{ends[0]}"), _end(link[ends[1]], names, f"{at}.{ends[1]}")))

    header = document.get("graph") or {}
    if not isinstance(header, dict):
        raise FormatError("graph must be an object")
    order = None
    if "order" in header:
        order = [_end(node, names, f"graph.order[{i}]") for i, node in enumerate(_list(header, "order", "graph."))]
    title = header.get("name", name)
    return single_output_graph(
        title if isinstance(title, str) else name,
        nodes,
        edges,
        order=order,
        constant_memory=constant_memory,
        source=f"node-link JSON, {dialect} attributes",
    )


def _dialect(node: Any) -> str | None:
    """The dialect of a node."""
    if isinstance(node, dict):
        for dialect, keys in DIALECTS.items():
            if keys[0] in node or keys[1] in node:
                return dialect
    return None


def _list(document: dict[str, Any], key: str, prefix: str = "") -> list[Any]:
    value = document.get(key)
    if not isinstance(value, list):
        raise FormatError(f"{prefix}{key} must be a list")
    return value


def _node_id(value: Any, at: str) -> int | str:
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise FormatError(f"{at} must be a whole number or a string")
    return value


def _end(value: Any, names: dict[int | str, str], at: str) -> str:
    node = _node_id(value, at)
    if node not in names:
        raise FormatError(f"{at} names unknown node {repr(node)[:40]}")
    return names[node]


def _recognizes(source: Source) -> bool:
    if not source.looks_like_json or not isinstance(source.json, dict):
        return False
    return "format" not in source.json and isinstance(source.json.get("nodes"), list)


def _read(source: Source) -> ComputeGraph:
    stem = source.name.replace("\\", "/").rpartition("/")[2].rpartition(".")[0]
    return graph_from_node_link(source.json, stem if stem.isprintable() else "")


FORMAT = GraphFormat(
    name="node-link",
    description="networkx node-link JSON with Checkmate's or Moccasin's node attributes (read only)",
    recognizes=_recognizes,
    read=_read,
)
