"""Builder of graphs from named ops and tensors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from remat.errors import GraphError
from remat.graphs.graph import ComputeGraph, Op, Tensor, checked_name, name_list
from remat.graphs.ops_and_tensors import stable_topological_order


class GraphBuilder:
    """Builder that collects ops and tensors by name, in any order, and returns a checked :class:`ComputeGraph`.

    Parameters
    ----------
    name : str
    cost_unit, source, constant_memory, meta
        As for :class:`ComputeGraph`.

    Examples
    --------
    >>> b = GraphBuilder("diamond")
    >>> b.op("a", size=4, cost=1)
    'a'
    >>> b.op("b", inputs=["a"], size=2, cost=1), b.op("c", inputs=["a"], size=2, cost=1)
    ('b', 'c')
    >>> b.op("d", inputs=["b", "c"], size=1, cost=1)
    'd'
    >>> b.build().reference_peak
    8
    """

    def __init__(
        self,
        name: str,
        *,
        cost_unit: str = "none",
        source: str = "",
        constant_memory: int = 0,
        meta: Mapping[str, Any] | None = None,
    ) -> None:
        self.name = name
        self.cost_unit = cost_unit
        self.source = source
        self.constant_memory = constant_memory
        self.meta = dict(meta or {})
        self._tensors: dict[str, Tensor] = {}
        self._ops: dict[str, Op] = {}
        self._inputs: list[str] = []
        self._outputs: list[str] = []

    def tensor(self, name: str, size: int) -> str:
        """Declare a tensor of `size` bytes and return its name."""
        checked_name(name, "a tensor")
        if name in self._tensors:
            raise GraphError(f"two tensors are named {name!r}", "name-taken")
        self._tensors[name] = Tensor(name, size)
        return name

    def input(self, name: str, size: int) -> str:
        """Declare a graph input, which is live from the start and never freed, and return its name."""
        self._inputs.append(self.tensor(name, size))
        return name

    def output(self, *names: str) -> None:
        """Mark tensors as graph outputs, which must be live at the end."""
        self._outputs.extend(name_list(names, "graph outputs"))

    def op(  # noqa: PLR0913 - the fields of an op
        self,
        name: str,
        *,
        inputs: Iterable[str] = (),
        size: int | None = None,
        outputs: Iterable[str] | Mapping[str, int] | None = None,
        cost: int = 0,
        workspace: int = 0,
        type: str = "",
        phase: str = "",
        recomputable: bool = True,
        in_place: Iterable[tuple[str, str]] = (),
    ) -> str:
        """Add an op and return its name.

        Parameters
        ----------
        inputs : iterable of str
            Names of tensors; duplicates are merged.
        size : int, optional
            Bytes of the only output, which has the name of the op.
        outputs : mapping of name to bytes, or iterable of names already declared, optional
            Outputs, if `size` is not given.
        in_place : iterable of (str, str), optional
            Pairs of an output and the input that it may replace in memory; see :class:`Op`.

        Raises
        ------
        GraphError
            If the name is taken, or unless exactly one of `size` and `outputs` is given.
        """
        checked_name(name, "an op")
        if name in self._ops:
            raise GraphError(f"two ops are named {name!r}", "name-taken")
        if (size is None) == (outputs is None):
            raise GraphError(f"op {name!r} needs either a size (one output) or outputs")
        if size is not None:
            written: tuple[str, ...] = (self.tensor(name, size),)
        elif isinstance(outputs, Mapping):
            written = tuple(self.tensor(t, s) for t, s in outputs.items())
        else:
            written = name_list(outputs or (), f"outputs of op {name!r}")
        read = tuple(dict.fromkeys(name_list(inputs, f"inputs of op {name!r}")))
        self._ops[name] = Op(name, read, written, cost, workspace, type, phase, recomputable, tuple(in_place))
        return name

    def build(self, order: Iterable[str] | None = None) -> ComputeGraph:
        """Return the graph with `order` as reference order; default: the topological order closest to insertion order.

        Raises
        ------
        GraphError
            See :class:`ComputeGraph`.
        """
        ops = list(self._ops.values())
        if order is None:
            order = stable_topological_order(ops)
        return ComputeGraph(
            name=self.name,
            tensors=list(self._tensors.values()),
            ops=ops,
            inputs=self._inputs,
            outputs=self._outputs,
            order=name_list(order, "the order"),
            constant_memory=self.constant_memory,
            cost_unit=self.cost_unit,
            source=self.source,
            meta=self.meta,
        )


def single_output_graph(
    name: str,
    nodes: Mapping[str, tuple[int, int]],
    edges: Iterable[tuple[str, str]],
    *,
    order: Iterable[str] | None = None,
    phases: Mapping[str, str] | None = None,
    **header: Any,
) -> ComputeGraph:
    """Return a graph in which every op has one output of the same name, as in most papers.

    Parameters
    ----------
    name : str
    nodes : mapping of op name to (size in bytes, cost)
    edges : iterable of (producer, consumer)
        Parallel edges are merged.
    order : iterable of str, optional
        Reference order; default: the topological order closest to the order of `nodes`.
    phases : mapping of op name to phase, optional
    header
        ``cost_unit``, ``source``, ``constant_memory``, ``meta`` as for :class:`ComputeGraph`.

    Raises
    ------
    GraphError
        Naming the op; see :class:`ComputeGraph`.

    Examples
    --------
    >>> g = single_output_graph("g", {"a": (4, 1), "b": (2, 3)}, [("a", "b"), ("a", "b")])
    >>> g.num_edges, g.reference_peak, g.base_cost
    (1, 6, 4)
    """
    builder = GraphBuilder(name, **header)
    inputs: dict[str, list[str]] = {node: [] for node in nodes}
    for producer, consumer in edges:
        for end in (producer, consumer):
            if end not in inputs:
                raise GraphError(f"edge {producer!r} -> {consumer!r} names unknown op {end!r}", "unknown-op")
        inputs[consumer].append(producer)
    for node, (size, cost) in nodes.items():
        phase = phases.get(node, "") if phases else ""
        builder.op(node, inputs=inputs[node], size=size, cost=cost, phase=phase)
    return builder.build(order)
