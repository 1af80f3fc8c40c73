"""Reader for networkx node-link JSON: training graphs of other tools, and remat graphs exported through networkx.

Every node is an op with one output. Dialect ``checkmate`` has the node attributes ``cost_cpu`` and ``cost_ram``.
Dialect ``moccasin`` has ``duration``, ``out_cost`` and optionally ``param_cost``, which is constant memory. Dialect
``networkx`` has ``cost`` and ``size``, like ``ComputeGraph.from_networkx``. Links name their ends ``source`` and
``target``, or ``"0"`` and ``"1"``. ``graph.order``, if given, is the reference order.

The networkx JSON of ``ComputeGraph.to_networkx``, with ops and tensors as nodes, reads back as the same graph.
"""

from __future__ import annotations

from collections.abc import Container
from typing import Annotated, Any

from pydantic import AliasChoices, Field

from remat.errors import FormatError
from remat.graphs.builder import single_output_graph
from remat.graphs.exchange import MARK
from remat.graphs.formats.base import GraphFormat
from remat.graphs.formats.remat_json import Count
from remat.graphs.graph import ComputeGraph
from remat.io.documents import ForeignDocument, Shape, decoded
from remat.io.formats import Source
from remat.runtime.text import short, together

NodeId = Annotated[int | str, Shape("{at} must be a whole number or a string", "")]


class NodeLinkDocument(ForeignDocument):
    """Document of networkx: nodes and links with attributes of any kind."""

    nodes: list[dict[str, Any]]
    links: list[dict[str, Any]] = []
    edges: list[dict[str, Any]] = []
    directed: Any = True
    graph: dict[str, Any] | None = None

    def listed(self) -> tuple[str, list[dict[str, Any]]]:
        """Return the key of the links, and the links."""
        return ("links", self.links) if "links" in self.model_fields_set else ("edges", self.edges)


class BipartiteNode(ForeignDocument):
    """Node that is a tensor or an op; ``ComputeGraph.from_networkx`` checks the rest."""

    id: str


class Node(ForeignDocument):
    """Node that is an op with one output; each dialect has its own names for the numbers."""

    id: Annotated[NodeId, Field(validation_alias=AliasChoices("id", "name"))]
    size: Count
    cost: Count
    constant_memory: int = 0


class CheckmateNode(Node):
    """Node as Checkmate writes it."""

    size: Annotated[Count, Field(validation_alias="cost_ram")]
    cost: Annotated[Count, Field(validation_alias="cost_cpu")]


class MoccasinNode(Node):
    """Node as Moccasin writes it."""

    size: Annotated[Count, Field(validation_alias="out_cost")]
    cost: Annotated[Count, Field(validation_alias="duration")]
    constant_memory: Annotated[Count, Field(validation_alias="param_cost")] = 0


class Link(ForeignDocument):
    """Link from an op to a reader of its output."""

    source: Annotated[NodeId, Field(validation_alias=AliasChoices("source", "0"))]
    target: Annotated[NodeId, Field(validation_alias=AliasChoices("target", "1"))]


class BipartiteLink(Link):
    """Link from a tensor to a reader, or from an op to an output."""

    position: int


#: For each dialect, two node attributes that identify it, and the type of its list of nodes.
DIALECTS: dict[str, tuple[str, str, type[list[Any]]]] = {
    "checkmate": ("cost_cpu", "cost_ram", list[CheckmateNode]),
    "moccasin": ("duration", "out_cost", list[MoccasinNode]),
    "networkx": ("cost", "size", list[Node]),
}


def graph_from_node_link(document: Any, name: str = "") -> ComputeGraph:
    """Return the graph of a parsed node-link document; parallel links are merged.

    Node ids become op names. Without ``graph.order`` the reference order is the topological order closest to the order
    of the nodes. Attributes other than those of the dialect are ignored. ``graph.name`` takes precedence over `name`.

    Raise FormatError naming all places (``nodes[3]``, ``links[5]``) with missing attributes, unknown ends, wrong
    types or negative numbers. Raise GraphError naming the nodes, for cycles.

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
    dialect = next((name for name, keys in DIALECTS.items() if found.nodes[0].keys() & set(keys[:2])), None)
    if dialect is None:
        known = ", ".join(f"{cost} and {size}" for cost, size, _ in DIALECTS.values())
        raise FormatError(f"nodes[0] has the attributes of no known dialect: {known}")
    nodes = decoded(DIALECTS[dialect][2], found.nodes, "nodes")
    names = {node.id: str(node.id) for node in nodes}
    if len(set(names.values())) < len(nodes):
        raise FormatError("nodes: two have the same id")
    edges = [(names[link.source], names[link.target]) for link in _links(found, list[Link], names)]
    order = None
    if "order" in header:
        listed = decoded(list[NodeId], header["order"], "graph.order")
        _check_known({f"graph.order[{number}]": node for number, node in enumerate(listed)}, names)
        order = [names[node] for node in listed]
    title = header.get("name", name)
    return single_output_graph(
        title if isinstance(title, str) else name,
        {names[node.id]: (node.size, node.cost) for node in nodes},
        edges,
        order=order,
        constant_memory=sum(node.constant_memory for node in nodes),
        source=f"node-link JSON, {dialect} attributes",
    )


def _links(found: NodeLinkDocument, kind: type[list[Any]], nodes: Container[int | str]) -> list[Any]:
    """Return the links of a document after checking that their ends are in `nodes`."""
    key, listed = found.listed()
    links = decoded(kind, listed, key)
    ends = {f"{key}[{i}].{end}": getattr(link, end) for i, link in enumerate(links) for end in ("source", "target")}
    _check_known(ends, nodes)
    return links


def _check_known(named: dict[str, int | str], nodes: Container[int | str]) -> None:
    """Refuse names that are not in `nodes`, by the place of each."""
    faults = [f"{at} names unknown node {short(node, 40)}" for at, node in named.items() if node not in nodes]
    if faults:
        raise FormatError(together(faults))


def _from_bipartite(found: NodeLinkDocument, header: dict[str, Any]) -> ComputeGraph:
    """Return the graph of a document with ops and tensors as nodes (``ComputeGraph.to_networkx``)."""
    import networkx as nx

    result: nx.MultiDiGraph[str] = nx.MultiDiGraph()
    result.graph.update(header)
    result.add_nodes_from(node.id for node in decoded(list[BipartiteNode], found.nodes, "nodes"))
    if len(result) != len(found.nodes):
        raise FormatError("nodes: two have the same id")
    for entry in found.nodes:
        result.nodes[entry["id"]].update(entry)
    for link in _links(found, list[BipartiteLink], result):
        result.add_edge(link.source, link.target, position=link.position)
    return ComputeGraph.from_networkx(result)


def _recognizes(source: Source) -> bool:
    document = source.json if source.looks_like_json else None
    return isinstance(document, dict) and "format" not in document and isinstance(document.get("nodes"), list)


FORMAT = GraphFormat(
    name="node-link",
    description="networkx node-link JSON with the node attributes of Checkmate, Moccasin or networkx (read only)",
    recognizes=_recognizes,
    read=lambda source: graph_from_node_link(source.json, source.stem),
)
