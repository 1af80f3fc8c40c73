"""Reader for networkx node-link JSON: training graphs of other tools, and our own graphs by way of networkx.

Every node is an op with one output. Dialect ``checkmate`` has the node attributes ``cost_cpu`` and ``cost_ram``;
dialect ``moccasin`` has ``duration``, ``out_cost`` and optionally ``param_cost``, which is constant memory; dialect
``networkx`` has ``cost`` and ``size``, like :func:`remat.graphs.exchange.from_networkx`. Links name their ends
``source`` and ``target``, or ``"0"`` and ``"1"``; ``graph.order`` is the reference order where it is given.

What networkx writes of :func:`remat.graphs.exchange.to_networkx`, with ops and tensors as nodes, comes back as the same
graph.
"""

from __future__ import annotations

from typing import Any, Literal, TypeGuard

from remat.errors import FormatError, GraphError
from remat.graphs.builder import single_output_graph
from remat.graphs.exchange import MARK, from_networkx
from remat.graphs.formats.base import GraphFormat
from remat.graphs.graph import ComputeGraph, whole_number
from remat.io.documents import ForeignDocument, decoded
from remat.io.formats import Source
from remat.io.text import short, together

#: Dialect: node attributes for size, cost and (optional) constant memory.
DIALECTS = {
    "checkmate": ("cost_ram", "cost_cpu", None),
    "moccasin": ("out_cost", "duration", "param_cost"),
    "networkx": ("size", "cost", None),
}
_LINK_ENDS = (("source", "target"), ("0", "1"))


class NodeLinkDocument(ForeignDocument):
    """What networkx writes: nodes and links with attributes of all kinds."""

    nodes: list[dict[str, Any]]
    links: list[dict[str, Any]] = []
    edges: list[dict[str, Any]] = []
    directed: Any = True
    graph: dict[str, Any] | None = None

    def listed(self) -> tuple[str, list[dict[str, Any]]]:
        """The links, and by which key they are there."""
        return ("links", self.links) if "links" in self.model_fields_set else ("edges", self.edges)


class BipartiteHeader(ForeignDocument):
    """The graph attributes of :func:`remat.graphs.exchange.to_networkx`."""

    name: str
    inputs: list[str]
    outputs: list[str]
    order: list[str]
    constant_memory: int
    cost_unit: str
    source: str
    meta: dict[str, Any]


class BipartiteTensor(ForeignDocument):
    """A node that is a tensor."""

    id: str
    kind: Literal["tensor"]
    name: str
    size: int


class BipartiteOp(ForeignDocument):
    """A node that is an op."""

    id: str
    kind: Literal["op"]
    name: str
    type: str
    cost: int
    workspace: int
    phase: str
    recomputable: bool


class BipartiteLink(ForeignDocument):
    """From a tensor to who reads it, or from an op to what it writes."""

    source: str
    target: str
    position: int


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
        Naming all places (``nodes[3]``, ``links[5]``) with missing attributes, unknown ends, wrong types.
    GraphError
        Naming the nodes, for sizes and costs that are negative or not whole numbers, and for cycles.

    Examples
    --------
    >>> nodes = [{"id": 0, "cost_cpu": 5, "cost_ram": 8}, {"id": 1, "cost_cpu": 7, "cost_ram": 4}]
    >>> g = graph_from_node_link({"nodes": nodes, "links": [{"source": 0, "target": 1}]})
    >>> g.reference_peak, g.base_cost
    (12, 12)
    """
    found = decoded(NodeLinkDocument, document)
    if found.directed is not True:
        raise FormatError("the graph is not directed")
    header = found.graph or {}
    if header.get("format") == MARK:
        return _from_bipartite(found, header)
    if not found.nodes:
        raise FormatError("nodes is empty: a graph needs an op")
    dialect = _dialect(found.nodes[0])
    if dialect is None:
        known = ", ".join(f"{keys[1]} and {keys[0]}" for keys in DIALECTS.values())
        raise FormatError(f"nodes[0] has the attributes of no known dialect: {known}")
    faults: list[str] = []
    names, nodes, constant_memory = _nodes(found.nodes, dialect, faults)
    edges = _edges(found, names, faults)
    order = None
    if "order" in header:
        listed = decoded(list[Any], header["order"], "graph.order")
        order = [_end(node, names, f"graph.order[{number}]", faults) for number, node in enumerate(listed)]
    if faults:
        raise FormatError(together(faults))
    title = header.get("name", name)
    return single_output_graph(
        title if isinstance(title, str) else name,
        nodes,
        edges,
        order=order,
        constant_memory=constant_memory,
        source=f"node-link JSON, {dialect} attributes",
    )


def _dialect(node: dict[str, Any]) -> str | None:
    """The dialect of a node."""
    for dialect, keys in DIALECTS.items():
        if keys[0] in node or keys[1] in node:
            return dialect
    return None


def _nodes(
    entries: list[dict[str, Any]], dialect: str, faults: list[str]
) -> tuple[dict[int | str, str], dict[str, tuple[int, int]], int]:
    """Names by node, size and cost by name, and the constant memory; `faults` takes what is wrong.

    Raises
    ------
    GraphError
        With all numbers that are none, where nothing else is wrong.
    """
    size_key, cost_key, constant_key = DIALECTS[dialect]
    names: dict[int | str, str] = {}
    nodes: dict[str, tuple[int, int]] = {}
    constant_memory, numbers = 0, []
    for number, entry in enumerate(entries):
        at = f"nodes[{number}]"
        node = entry.get("id", entry.get("name"))
        if not _is_id(node):
            faults.append(f"{at}.id must be a whole number or a string")
            continue
        if str(node) in nodes:
            faults.append(f"{at}.id: two nodes are named {short(str(node), 40)}")
        names[node] = str(node)
        missing = [key for key in (size_key, cost_key) if key not in entry]
        faults += [f"{at} ({short(str(node), 40)}) has no attribute {key!r}" for key in missing]
        try:
            keys = (size_key, cost_key, constant_key or "")
            checked = [whole_number(entry.get(key, 0), f"{at}.{key}") for key in keys]
        except GraphError as error:
            numbers.append(str(error))
            checked = [0, 0, 0]
        nodes[str(node)] = (checked[0], checked[1])
        constant_memory += checked[2]
    if numbers and not faults:
        raise GraphError(together(numbers), "numbers")
    return names, nodes, constant_memory


def _edges(found: NodeLinkDocument, names: dict[int | str, str], faults: list[str]) -> list[tuple[str, str]]:
    """Producer and consumer of each link, by name; `faults` takes what is wrong."""
    edges = []
    key, links = found.listed()
    for number, link in enumerate(links):
        at = f"{key}[{number}]"
        ends = next(((a, b) for a, b in _LINK_ENDS if a in link and b in link), None)
        if ends is None:
            faults.append(f"{at} names no ends: source and target, or 0 and 1")
        else:
            producer, consumer = (_end(link[end], names, f"{at}.{end}", faults) for end in ends)
            edges.append((producer, consumer))
    return edges


def _is_id(value: Any) -> TypeGuard[int | str]:
    return isinstance(value, int | str) and not isinstance(value, bool)


def _end(value: Any, names: dict[int | str, str], at: str, faults: list[str]) -> str:
    if not _is_id(value):
        faults.append(f"{at} must be a whole number or a string")
        return ""
    if value not in names:
        faults.append(f"{at} names unknown node {short(value, 40)}")
    return names.get(value, "")


def _from_bipartite(found: NodeLinkDocument, header: dict[str, Any]) -> ComputeGraph:
    """The graph whose form with ops and tensors as nodes (:func:`remat.graphs.exchange.to_networkx`) this is."""
    import networkx as nx

    result: nx.MultiDiGraph[str] = nx.MultiDiGraph(format=MARK, **dict(decoded(BipartiteHeader, header, "graph")))
    for number, entry in enumerate(found.nodes):
        kind: type[BipartiteOp | BipartiteTensor] = BipartiteOp if entry.get("kind") == "op" else BipartiteTensor
        node = decoded(kind, entry, f"nodes[{number}]")
        result.add_node(node.id, **dict(node))
    if len(result) != len(found.nodes):
        raise FormatError("nodes: two have the same id")
    kinds = result.nodes(data="kind")
    key, links = found.listed()
    for number, link in enumerate(decoded(list[BipartiteLink], links, key)):
        if not {link.source, link.target} <= result.nodes or kinds[link.source] == kinds[link.target]:
            raise FormatError(f"{key}[{number}] is not between an op and a tensor of the graph")
        result.add_edge(link.source, link.target, position=link.position)
    return from_networkx(result)


def _recognizes(source: Source) -> bool:
    if not source.looks_like_json or not isinstance(source.json, dict):
        return False
    return "format" not in source.json and isinstance(source.json.get("nodes"), list)


def _read(source: Source) -> ComputeGraph:
    stem = source.name.replace("\\", "/").rpartition("/")[2].rpartition(".")[0]
    return graph_from_node_link(source.json, stem if stem.isprintable() else "")


FORMAT = GraphFormat(
    name="node-link",
    description="networkx node-link JSON with the node attributes of Checkmate, Moccasin or networkx (read only)",
    recognizes=_recognizes,
    read=_read,
)
