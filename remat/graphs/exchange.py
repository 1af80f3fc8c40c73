"""Conversion to and from networkx."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from remat.errors import GraphError
from remat.graphs.builder import single_output_graph
from remat.graphs.graph import ComputeGraph, Op, Tensor
from remat.runtime.text import short

if TYPE_CHECKING:
    import networkx as nx

#: Value of the graph attribute ``format`` that marks graphs with ops and tensors as nodes.
MARK = "remat-graph"
_OP_FIELDS = ("type", "cost", "workspace", "phase", "recomputable")
_HEADER = ("name", "inputs", "outputs", "order", "constant_memory", "cost_unit", "source", "meta")


def to_networkx(graph: ComputeGraph) -> nx.DiGraph[str]:
    """Return the bipartite graph of ops and tensors, from which :func:`from_networkx` returns an equal graph.

    Nodes are ``"op:NAME"`` and ``"tensor:NAME"`` with the attributes ``kind`` (``"op"`` or ``"tensor"``), ``name`` and
    those of :class:`Op` and :class:`Tensor`. Edges lead from tensor to reader and from op to output; ``position`` is
    their index among the op's inputs or outputs. Graph attributes hold the rest. :func:`remat.read_graph` reads the
    JSON of ``networkx.node_link_data`` as the same graph.

    Examples
    --------
    >>> g = ComputeGraph("g", [Tensor("x", 4)], [Op("a", outputs=("x",), cost=1)])
    >>> list(to_networkx(g).edges), from_networkx(to_networkx(g)) == g
    ([('op:a', 'tensor:x')], True)
    """
    import networkx as nx

    header = {field: getattr(graph, field) for field in _HEADER}
    result: nx.DiGraph[str] = nx.DiGraph(format=MARK, **{**header, "meta": dict(graph.meta)})
    for tensor in graph.tensors:
        result.add_node(f"tensor:{tensor.name}", kind="tensor", name=tensor.name, size=tensor.size)
    for op in graph.ops:
        fields = {field: getattr(op, field) for field in _OP_FIELDS}
        if op.in_place:
            fields["in_place"] = [list(pair) for pair in op.in_place]
        result.add_node(f"op:{op.name}", kind="op", name=op.name, **fields)
        # networkx does not preserve the order of a node's incoming edges when it writes and reads a graph.
        edges = [(f"tensor:{t}", f"op:{op.name}", {"position": i}) for i, t in enumerate(op.inputs)]
        edges += [(f"op:{op.name}", f"tensor:{t}", {"position": i}) for i, t in enumerate(op.outputs)]
        result.add_edges_from(edges)
    return result


def from_networkx(
    graph: nx.DiGraph[Any],
    *,
    size: str = "size",
    cost: str = "cost",
    order: Iterable[Hashable] | None = None,
    name: str | None = None,
    cost_unit: str = "none",
    constant_memory: int = 0,
) -> ComputeGraph:
    """Return a graph from networkx: either the result of :func:`to_networkx`, or any directed graph of ops.

    In the second case every node is an op with one output, named by the text of the node; parallel edges are merged.
    The options apply to this case only.

    Parameters
    ----------
    graph : networkx.DiGraph or networkx.MultiDiGraph
    size, cost : str
        Node attributes: bytes of the output, and cost.
    order : iterable of nodes, optional
        Reference order; default: the topological order closest to the order of the nodes.
    name : str, optional
        Name of the result; default: the networkx name.
    cost_unit : str
    constant_memory : int
        Bytes.

    Raises
    ------
    GraphError
        Naming the node, for an undirected graph, missing or fractional attributes, two nodes with the same text, and
        any fault that :class:`ComputeGraph` refuses.

    Examples
    --------
    >>> import networkx as nx
    >>> g = nx.DiGraph([("a", "b")])
    >>> g.add_node("a", bytes=8, us=1)
    >>> g.add_node("b", bytes=2, us=3)
    >>> from_networkx(g, size="bytes", cost="us", cost_unit="us").reference_peak
    10
    """
    if not graph.is_directed():
        raise GraphError("the networkx graph is not directed", "networkx")
    if graph.graph.get("format") == MARK:
        return _from_bipartite(graph)
    names = {node: str(node) for node in graph.nodes}
    nodes: dict[str, tuple[int, int]] = {}
    for node, attributes in graph.nodes(data=True):
        text = names[node]
        if text in nodes:
            raise GraphError(f"two nodes are named {text!r}", "networkx")
        for key in (size, cost):
            if key not in attributes:
                raise GraphError(f"node {text!r} has no attribute {key!r}", "networkx")
        nodes[text] = attributes[size], attributes[cost]
    return single_output_graph(
        name if name is not None else str(graph.graph.get("name", "")),
        nodes,
        [(names[u], names[v]) for u, v in graph.edges()],
        order=None if order is None else [names.get(node, str(node)) for node in order],
        cost_unit=cost_unit,
        constant_memory=constant_memory,
    )


def _from_bipartite(graph: nx.DiGraph[str]) -> ComputeGraph:
    tensors: list[Tensor] = []
    ops: list[Op] = []
    try:
        kinds = {node: data["kind"] for node, data in graph.nodes(data=True)}
        for start, end in graph.edges():
            if {kinds[start], kinds[end]} != {"op", "tensor"}:
                raise GraphError(f"{short(start, 40)} and {short(end, 40)} are not an op and a tensor", "networkx")
        for node, data in graph.nodes(data=True):
            if kinds[node] == "tensor":
                tensors.append(Tensor(data["name"], data["size"]))
                continue
            reads = sorted(graph.in_edges(node, data="position", default=0), key=itemgetter(2))
            writes = sorted(graph.out_edges(node, data="position", default=0), key=itemgetter(2))
            inputs = tuple(graph.nodes[t]["name"] for t, *_ in reads)
            outputs = tuple(graph.nodes[t]["name"] for _, t, _ in writes)
            fields = {field: data[field] for field in _OP_FIELDS}
            ops.append(Op(data["name"], inputs, outputs, **fields, in_place=data.get("in_place", ())))
        header = {field: graph.graph[field] for field in _HEADER}
    except KeyError as error:
        raise GraphError(f"the networkx graph is marked {MARK!r} but has no attribute {error}", "networkx") from None
    except TypeError as error:
        raise GraphError(f"the networkx graph is marked {MARK!r}, but {error}", "networkx") from None
    return ComputeGraph(tensors=tensors, ops=ops, **header)
