"""Conversion to and from networkx."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import replace
from fractions import Fraction
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from remat.errors import GraphError, ProblemError
from remat.graphs.ops_and_tensors import Op, Tensor, checked_name, stable_topological_order
from remat.runtime.sizes import NANOSECONDS, memory_bytes
from remat.runtime.text import short

if TYPE_CHECKING:
    import networkx as nx

#: Value of the graph attribute ``format`` that marks graphs with ops and tensors as nodes.
MARK = "remat-graph"
_OP_FIELDS = ("type", "cost", "workspace", "phase", "recomputable")
_HEADER = ("name", "inputs", "outputs", "order", "constant_memory", "cost_unit", "source", "meta")


def to_networkx(fields: Mapping[str, Any]) -> nx.DiGraph[str]:
    """Return the bipartite graph of ops and tensors for the fields of a :class:`~remat.graphs.ComputeGraph`."""
    import networkx as nx

    header = {field: fields[field] for field in _HEADER}
    result: nx.DiGraph[str] = nx.DiGraph(format=MARK, **{**header, "meta": dict(fields["meta"])})
    for tensor in fields["tensors"]:
        result.add_node(f"tensor:{tensor.name}", kind="tensor", name=tensor.name, size=tensor.size)
    for op in fields["ops"]:
        attributes = {field: getattr(op, field) for field in _OP_FIELDS}
        if op.in_place:
            attributes["in_place"] = [list(pair) for pair in op.in_place]
        result.add_node(f"op:{op.name}", kind="op", name=op.name, **attributes)
        # networkx does not preserve the order of a node's incoming edges when it writes and reads a graph.
        edges = [(f"tensor:{t}", f"op:{op.name}", {"position": i}) for i, t in enumerate(op.inputs)]
        edges += [(f"op:{op.name}", f"tensor:{t}", {"position": i}) for i, t in enumerate(op.outputs)]
        result.add_edges_from(edges)
    return result


def from_networkx(
    graph: nx.DiGraph[Any],
    size: str,
    cost: str,
    order: Iterable[Hashable] | None,
    name: str | None,
    *,
    cost_unit: str = "none",
) -> dict[str, Any]:
    """Return fields of a :class:`~remat.graphs.ComputeGraph`; see its method ``from_networkx``."""
    if not graph.is_directed():
        raise GraphError(
            "the networkx graph is not directed; make it a networkx.DiGraph, with edges from producer to consumer",
            "networkx",
        )
    if graph.graph.get("format") == MARK:
        return _from_bipartite(graph)
    names = {node: str(node) for node in graph.nodes}
    inputs: dict[str, list[str]] = {text: [] for text in names.values()}
    for producer, consumer in graph.edges():
        inputs[names[consumer]].append(names[producer])
    tensors: dict[str, Tensor] = {}
    ops: list[Op] = []
    for node, attributes in graph.nodes(data=True):
        text = checked_name(names[node], "an op")
        if text in tensors:
            raise GraphError(f"two nodes are named {text!r}", "networkx")
        for key in (size, cost):
            if key not in attributes:
                has = ", ".join(map(str, attributes)) or "none"
                raise GraphError(
                    f"node {text!r} has no attribute {key!r} (it has {has}); name those of size and cost", "networkx"
                )
        tensors[text] = Tensor(text, _bytes(attributes[size], text))
        ops.append(Op(text, tuple(dict.fromkeys(inputs[text])), (text,), attributes[cost]))
    ops, unit = _in_whole_units(ops, cost_unit)
    return {
        "cost_unit": unit,
        "name": name if name is not None else str(graph.graph.get("name") or "graph"),
        "tensors": list(tensors.values()),
        "ops": ops,
        "order": stable_topological_order(ops) if order is None else [names.get(node, str(node)) for node in order],
    }


def _bytes(size: Any, name: str) -> Any:
    """Return a size given as a text with a unit in bytes; anything else unchanged."""
    if not isinstance(size, str):
        return size
    try:
        return memory_bytes(size)
    except ProblemError:
        raise GraphError(
            f"size of node {name!r} is {short(size)}, not bytes with a unit (1.5MiB)", "networkx"
        ) from None


def _in_whole_units(ops: list[Op], unit: str) -> tuple[list[Op], str]:
    """Return the ops with costs as whole numbers, and their unit.

    Fractions of a unit of time, and seconds and milliseconds, become the coarsest of us and ns that keeps them exact.
    """
    fractions = [op for op in ops if isinstance(op.cost, float)]
    if not fractions and unit not in ("s", "ms"):
        return ops, unit
    if unit not in NANOSECONDS:
        first = fractions[0]
        raise GraphError(
            f"cost of node {first.name!r} is {short(first.cost)}: costs are whole numbers, or times with "
            "cost_unit='ms' (s, ms, us, ns)",
            "networkx",
        )
    costs = []
    for op in ops:
        exact = NANOSECONDS[unit] * Fraction(str(op.cost)) if _is_finite(op.cost) else Fraction(1, 2)
        if exact.denominator != 1:
            raise GraphError(f"cost of node {op.name!r} is {short(op.cost)} {unit}, no whole number of ns", "networkx")
        costs.append(int(exact))
    coarse = all(cost % 1000 == 0 for cost in costs)
    made = [replace(op, cost=cost // 1000 if coarse else cost) for op, cost in zip(ops, costs, strict=True)]
    return made, "us" if coarse else "ns"


def _is_finite(cost: Any) -> bool:
    return isinstance(cost, int | float) and not isinstance(cost, bool) and math.isfinite(cost)


def _from_bipartite(graph: nx.DiGraph[str]) -> dict[str, Any]:
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
    return {**header, "tensors": tensors, "ops": ops}
