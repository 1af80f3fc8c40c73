"""Immutable computation graph: ops, tensors and shared array views."""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from remat.errors import FormatError, GraphError
from remat.graphs.exchange import from_networkx, to_networkx
from remat.graphs.in_place import check_places
from remat.graphs.ops_and_tensors import (
    COST_UNITS,
    MAX_NAME_LENGTH,
    MAX_TOTAL,
    PHASES,
    Op,
    Tensor,
    checked_name,
    checked_op,
    checked_tensor,
    name_list,
    whole_number,
)  # fmt: skip
from remat.graphs.references import name_faults
from remat.io.figures import FIRST, LABEL, SUFFIXES, figure_of, new_axes, set_title, write_figure
from remat.io.files import write_atomic
from remat.io.views import html_pairs, html_picture
from remat.runtime.sizes import size_text, size_unit
from remat.runtime.text import expect, short, together

if TYPE_CHECKING:
    import networkx as nx
    import pandas
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from remat.graphs.arrays import GraphArrays

__all__ = [
    "COST_UNITS", "MAX_NAME_LENGTH", "MAX_TOTAL", "PHASES", "ComputeGraph", "Op", "StructuralBound", "Tensor",
    "checked_name", "name_list", "whole_number",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class StructuralBound:
    """Memory that a single step requires; no schedule has a lower peak."""

    peak: int
    """Bytes."""
    op: str | None
    """Op that requires this memory, or None if the graph outputs together do."""

    def __str__(self) -> str:
        where = f"op {self.op!r}" if self.op is not None else "the graph outputs together"
        return f"{self.peak:,} bytes ({where})"


@dataclass(frozen=True, eq=False)
class ComputeGraph:
    """Acyclic graph of ops and tensors, checked when built and immutable afterwards.

    An op may write several tensors. A tensor may have several writers (an *accumulation buffer*: allocated at its
    first contribution, readable after all of them, contributions in any order). A tensor without a writer must be
    listed in `inputs`: it is live from the start and never freed. Tensors in `outputs` must be live at the end.

    Parameters
    ----------
    name : str
    tensors : sequence of Tensor
    ops : sequence of Op
    inputs, outputs : sequence of str
        Names of tensors.
    order : sequence of str, optional
        Reference order, a topological order of all ops. Default: the order of `ops`.
    constant_memory : int
        Bytes resident throughout (parameters and the like); counted in a budget only on request.
    cost_unit : str
        One of ``us, ns, mac, flop, cycle, none``.
    source : str
        Origin of the graph.
    meta : mapping
        Further data, JSON values only.

    Raises
    ------
    GraphError
        Naming the op or tensor, for: duplicate or unprintable names, unknown tensors, a tensor read twice by one op,
        a tensor without a writer, sizes or costs that are negative or not integers, a cycle, an order that is not
        topological.

    Examples
    --------
    >>> from remat.graphs import ComputeGraph, Op, Tensor
    >>> g = ComputeGraph(
    ...     "chain",
    ...     [Tensor("x", 4), Tensor("y", 2)],
    ...     [Op("a", outputs=("x",), cost=1), Op("b", inputs=("x",), outputs=("y",), cost=3)],
    ... )
    >>> g.reference_peak, g.base_cost, str(g.structural_bound)
    (6, 4, "6 bytes (op 'b')")
    """

    name: str
    tensors: Sequence[Tensor]
    ops: Sequence[Op]
    inputs: Sequence[str] = ()
    outputs: Sequence[str] = ()
    order: Sequence[str] | None = None
    constant_memory: int = 0
    cost_unit: str = "none"
    source: str = ""
    meta: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        put = object.__setattr__
        given: dict[str, Any] = {"tensors": self.tensors, "ops": self.ops}
        for what, items in given.items():
            if isinstance(items, str) or not isinstance(items, Iterable):
                raise GraphError(f"{what} must be a list, not {short(items)}")
        put(self, "tensors", tuple(checked_tensor(t) for t in self.tensors))
        put(self, "ops", tuple(checked_op(o) for o in self.ops))
        put(self, "inputs", name_list(self.inputs, "graph inputs"))
        put(self, "outputs", name_list(self.outputs, "graph outputs"))
        put(
            self, "order", tuple(o.name for o in self.ops) if self.order is None else name_list(self.order, "the order")
        )
        put(self, "constant_memory", whole_number(self.constant_memory, "constant_memory"))
        expect(self.meta, Mapping, "meta", GraphError)
        put(self, "meta", MappingProxyType(dict(self.meta)))
        if not isinstance(self.name, str) or len(self.name) > MAX_NAME_LENGTH or not self.name.isprintable():
            raise GraphError(f"the name of a graph must be printable text, not {short(self.name)}")
        if not isinstance(self.source, str):
            raise GraphError(f"the source of graph {self.name!r} must be text, not {short(self.source)}")
        if self.cost_unit not in COST_UNITS:
            raise GraphError(f"cost unit {short(self.cost_unit)} is not one of {', '.join(COST_UNITS)}")
        if not self.ops:
            raise GraphError(f"graph {self.name!r} has no ops", "no-ops")
        self._check_totals()
        self._check_names()
        self._check_order()
        self._check_in_place()

    def _check_totals(self) -> None:
        size = sum(t.size for t in self.tensors) + self.constant_memory + max(o.workspace for o in self.ops)
        cost = sum(o.cost for o in self.ops)
        for what, total in (("sizes", size), ("costs", cost)):
            if total >= MAX_TOTAL:
                raise GraphError(f"the sum of all {what} of graph {self.name!r} is {total:,}, more than 2^62", "sums")

    def _check_names(self) -> None:
        assert self.order is not None
        faults = name_faults(self.tensors, self.ops, self.inputs, self.outputs, self.order)
        if faults:
            raise GraphError(together(faults), "tensor-lists")

    def _check_order(self) -> None:
        arrays = self.arrays
        late = arrays.position[arrays.edge_producer] >= arrays.position[arrays.edge_consumer]
        if late.any():
            cycle = _find_cycle(self)
            if cycle:
                shown = " -> ".join(cycle[:12]) + (" -> ..." if len(cycle) > 12 else "")
                raise GraphError(f"the graph has a cycle, which no order can run: {shown}", "cycle")
            edge = int(late.argmax())
            producer, consumer = arrays.edge_producer[edge], arrays.edge_consumer[edge]
            raise GraphError(
                f"the order is not topological: op {self.ops[consumer].name!r} comes before "
                f"op {self.ops[producer].name!r}, whose output it reads"
            )

    def _check_in_place(self) -> None:
        if self.in_place:
            size = {tensor.name: tensor.size for tensor in self.tensors}
            writers = Counter(name for op in self.ops for name in op.outputs)
            for op in self.ops:
                check_places(op.name, op.in_place, size, writers)

    @cached_property
    def has_one_order(self) -> bool:
        """True if dependencies allow no order but the reference order: each op reads an output of the one before it.

        Examples
        --------
        >>> from remat.graphs.families import unit_chain
        >>> unit_chain(8).has_one_order
        True
        """
        arrays = self.arrays
        step = arrays.position[arrays.edge_consumer] - arrays.position[arrays.edge_producer]
        return len(set(arrays.edge_consumer[step == 1].tolist())) == len(self.ops) - 1

    @cached_property
    def in_place(self) -> bool:
        """True when any op may write an output in place of an input."""
        return any(op.in_place for op in self.ops)

    @cached_property
    def plain(self) -> ComputeGraph:
        """The graph without in-place pairs, in which every schedule needs at least as much memory."""
        if not self.in_place:
            return self
        return replace(self, ops=[replace(op, in_place=()) if op.in_place else op for op in self.ops])

    @cached_property
    def op_index(self) -> dict[str, int]:
        """Position of each op in `ops`, by name."""
        return {op.name: position for position, op in enumerate(self.ops)}

    @cached_property
    def tensor_index(self) -> dict[str, int]:
        """Position of each tensor in `tensors`, by name."""
        return {tensor.name: position for position, tensor in enumerate(self.tensors)}

    @cached_property
    def op_names(self) -> tuple[str, ...]:
        """Names of `ops`."""
        return tuple(o.name for o in self.ops)

    @cached_property
    def tensor_names(self) -> tuple[str, ...]:
        """Names of `tensors`."""
        return tuple(t.name for t in self.tensors)

    @cached_property
    def arrays(self) -> GraphArrays:
        """Read-only array views, computed once and shared."""
        from remat.graphs.arrays import GraphArrays  # loads NumPy

        assert self.order is not None
        return GraphArrays.of(self.name, self.tensors, self.ops, ends=(self.inputs, self.outputs), order=self.order)

    @property
    def num_edges(self) -> int:
        """Number of distinct (producer op, consumer op) pairs, the *m* of the literature."""
        return len(self.arrays.op_predecessors.indices)

    @cached_property
    def base_cost(self) -> int:
        """Cost of computing each op once, in the cost unit."""
        return sum(o.cost for o in self.ops)

    @property
    def reference_peak(self) -> int:
        """Peak in bytes of the reference order without recomputation, frees at last use (no `constant_memory`)."""
        return self.arrays.reference_peak

    @cached_property
    def structural_bound(self) -> StructuralBound:
        """Largest memory that a single step requires: graph inputs, the op's inputs, outputs and workspace.

        Outputs that the op may write in place of inputs are not counted.
        """
        arrays = self.arrays
        op = int(arrays.op_bytes.argmax())
        ends = arrays.input_bytes + int(arrays.size[arrays.is_output & ~arrays.is_input].sum())
        if ends > arrays.op_bytes[op]:
            return StructuralBound(ends, None)
        return StructuralBound(int(arrays.op_bytes[op]), self.op_names[op])

    @cached_property
    def digest(self) -> str:
        """SHA-256 (64 hex digits) of sizes, costs, dependencies, graph inputs and outputs, and the reference order.

        It ignores the graph's name, source, cost unit and `meta`, the ops' types and phases, and the order of listing.
        """
        content = {
            "tensors": sorted((t.name, t.size) for t in self.tensors),
            "ops": sorted(
                (o.name, o.cost, o.workspace, o.recomputable, sorted(o.inputs), sorted(o.outputs)) for o in self.ops
            ),
            "inputs": sorted(self.inputs),
            "outputs": sorted(self.outputs),
            "order": list(self.order or ()),
            "constant_memory": self.constant_memory,
        }
        if self.in_place:
            content["in_place"] = sorted((o.name, o.in_place) for o in self.ops if o.in_place)
        text = json.dumps(content, separators=(",", ":"), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ComputeGraph):
            return NotImplemented
        return all(getattr(self, f) == getattr(other, f) for f in self.__dataclass_fields__)

    def __hash__(self) -> int:
        return hash(self.digest)

    def __reduce__(self) -> tuple[Any, ...]:
        """Copy and pickle the fields without the views; a copy is checked again."""
        values = {f: getattr(self, f) for f in self.__dataclass_fields__}
        return partial(ComputeGraph, **{**values, "meta": dict(self.meta)}), ()

    def __repr__(self) -> str:
        return f"ComputeGraph({self.name!r}, {len(self.ops)} ops, {len(self.tensors)} tensors, {self.num_edges} edges)"

    def rows(self) -> list[tuple[str, str]]:
        """Return the graph's figures as pairs of label and text."""
        rows = [
            ("graph", f"{self.name}{f', {self.source}' if self.source else ''}"),
            ("ops", f"{len(self.ops):,} ops, {len(self.tensors):,} tensors, {self.num_edges:,} edges"),
            ("reference peak", f"{self.reference_peak:,} bytes"),
            ("least possible", str(self.structural_bound)),
            ("cost", f"{self.base_cost:,} {'' if self.cost_unit == 'none' else self.cost_unit}".strip()),
        ]
        return [*rows, ("constant", f"{self.constant_memory:,} bytes")] if self.constant_memory else rows

    def _repr_html_(self) -> str:
        """Return the notebook's view: the graph's figures, and the memory of its reference order."""
        return f"<div>{html_pairs(self.rows())}{html_picture(self.plot(), 'memory of the reference order')}</div>"

    def plot(self, ax: Axes | None = None) -> Figure:
        """Draw the memory at each step of the reference order, without recomputation."""
        axes = new_axes(ax, (10, 3.2))
        scale, unit = size_unit(self.reference_peak)
        memory = self.arrays.reference_memory
        axes.stairs(memory / scale, range(len(memory) + 1), fill=True, color=FIRST)
        axes.set(xlim=(0, len(memory)), ylim=(0, None))
        axes.set_xlabel("op of the reference order", fontsize=LABEL)
        axes.set_ylabel(f"memory ({unit})", fontsize=LABEL)
        set_title(axes, f"{self.name}: peak {size_text(self.reference_peak)}")
        return figure_of(axes)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the graph as ``.json``, or its picture as ``.png``, ``.svg`` or ``.pdf``, atomically.

        :func:`remat.write_graph` writes further formats.

        Raises
        ------
        FormatError
            If the file has another suffix or cannot be written; names it.
        """
        from remat.graphs.graph_text import graph_text

        suffix = Path(path).suffix.lower()
        if suffix in SUFFIXES:
            write_figure(path, self.plot)
        elif suffix == ".json":
            write_atomic(path, graph_text(self._fields()))
        else:
            raise FormatError(f"{path}: a graph is written as .json, {', '.join(SUFFIXES)}", "suffix")

    def _fields(self) -> dict[str, Any]:
        return {field: getattr(self, field) for field in self.__dataclass_fields__}

    def to_frame(self) -> pandas.DataFrame:
        """Return the ops in reference order as a data frame of pandas: name, type, phase, cost, bytes written."""
        import pandas

        rows, sizes = [], {tensor.name: tensor.size for tensor in self.tensors}
        for name in self.order or ():
            op = self.ops[self.op_index[name]]
            written = sum(sizes[tensor] for tensor in op.outputs)
            rows.append((name, op.type, op.phase, op.cost, written, op.workspace, op.recomputable))
        columns = ["op", "type", "phase", "cost", "bytes", "workspace", "recomputable"]
        return pandas.DataFrame(rows, columns=columns)

    def with_outputs(self, outputs: Iterable[str]) -> ComputeGraph:
        """Return the graph with other graph outputs."""
        return replace(self, outputs=tuple(outputs))

    def with_order(self, order: Iterable[str]) -> ComputeGraph:
        """Return the graph with another reference order (op names)."""
        return replace(self, order=tuple(order))

    def to_networkx(self) -> nx.DiGraph[str]:
        """Return the bipartite graph of ops and tensors, from which :meth:`from_networkx` returns an equal graph.

        Nodes are ``"op:NAME"`` and ``"tensor:NAME"`` with the attributes ``kind`` (``"op"`` or ``"tensor"``), ``name``
        and those of :class:`Op` and :class:`Tensor`. Edges lead from tensor to reader and from op to output;
        ``position`` is their index among the op's inputs or outputs. Graph attributes hold the rest.
        :func:`remat.read_graph` reads the JSON of ``networkx.node_link_data`` as the same graph.

        Examples
        --------
        >>> g = ComputeGraph("g", [Tensor("x", 4)], [Op("a", outputs=("x",), cost=1)])
        >>> list(g.to_networkx().edges), ComputeGraph.from_networkx(g.to_networkx()) == g
        ([('op:a', 'tensor:x')], True)
        """
        return to_networkx(self._fields())

    @classmethod
    def from_networkx(
        cls,
        graph: nx.DiGraph[Any],
        *,
        size: str = "size",
        cost: str = "cost",
        order: Iterable[Hashable] | None = None,
        name: str | None = None,
        cost_unit: str = "none",
        constant_memory: int = 0,
    ) -> ComputeGraph:
        """Return a graph from networkx: either the result of :meth:`to_networkx`, or any directed graph of ops.

        In the second case every node is an op with one output, named ``str(node)``; parallel edges are merged. The
        options apply to this case only.

        Parameters
        ----------
        graph : networkx.DiGraph or networkx.MultiDiGraph
        size, cost : str
            Node attributes. Size: bytes of the output, or a text with a unit (``"1.5MiB"``). Cost: a whole number, or
            with a unit of time any number.
        order : iterable of nodes, optional
            Reference order; default: the topological order closest to the order of the nodes.
        name : str, optional
            Name of the result; default: the name of the networkx graph, or ``graph`` if it has none.
        cost_unit : str
            Unit of the costs. Costs in ``"s"`` or ``"ms"``, and fractions in ``"us"``, become whole ``us`` or ``ns``.
        constant_memory : int
            Bytes.

        Raises
        ------
        GraphError
            For an undirected graph, missing or fractional attributes, two nodes with the same name, and any fault that
            the constructor refuses; naming the node, if any.

        Examples
        --------
        >>> import networkx as nx
        >>> g = nx.DiGraph([("a", "b")])
        >>> g.add_node("a", bytes=8, us=1)
        >>> g.add_node("b", bytes=2, us=3)
        >>> ComputeGraph.from_networkx(g, size="bytes", cost="us", cost_unit="us").reference_peak
        10
        >>> g.nodes["b"]["us"] = 3.25
        >>> found = ComputeGraph.from_networkx(g, size="bytes", cost="us", cost_unit="us")
        >>> [op.cost for op in found.ops], found.cost_unit
        ([1000, 3250], 'ns')
        """
        fields = from_networkx(graph, size, cost, order, name, cost_unit=cost_unit)
        return cls(**{"constant_memory": constant_memory, **fields})


def _find_cycle(graph: ComputeGraph) -> list[str]:
    import networkx as nx

    arrays = graph.arrays
    ops: nx.DiGraph[int] = nx.DiGraph()
    ops.add_edges_from(zip(arrays.edge_producer.tolist(), arrays.edge_consumer.tolist(), strict=True))
    try:
        edges = nx.find_cycle(ops)
    except nx.NetworkXNoCycle:
        return []
    return [graph.ops[u].name for u, *_ in edges] + [graph.ops[edges[0][0]].name]
