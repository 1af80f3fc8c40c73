"""Graphs inside ``If``, ``Loop`` and ``Scan``: the types of their inputs, and of the outputs of the node.

Source: ONNX operators ``If``, ``Loop``, ``Scan`` (version 8 has a batch axis in front, later ones have none).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from remat.errors import FormatError
from remat.graphs.formats.onnx.network import InnerGraph, Network, Node
from remat.graphs.formats.onnx.values import Value
from remat.io.limits import draw
from remat.runtime.text import short

#: Ops whose graphs are read.
CONTROL_FLOW = frozenset({"If", "Loop", "Scan"})
#: First version of ``Scan`` without a batch axis.
_PLAIN_SCAN = 9
Dims = Sequence[int | None]


@dataclass(frozen=True)
class InnerReader:
    """Reader of the graphs inside a node."""

    node: Node
    outer: Network
    version: int
    """Version of ONNX's operators."""
    type_of: Callable[[int, Dims], Any]
    """Returns the ``TypeProto`` of a tensor; None is an open dimension."""
    read: Callable[[InnerGraph, Sequence[Any], Mapping[str, Any]], Network]
    """Returns the network of a graph with inputs of these ``TypeProto``; some have a known content."""

    def outputs(self) -> list[Any]:
        """Read the graphs into ``node.bodies``; return the ``TypeProto`` of each output of the node.

        Raise FormatError for a graph that does not fit the node.
        """
        functions = {"If": self._branches, "Loop": self._loop, "Scan": self._scan}
        types = functions[self.node.type]()
        if len(types) < len(self.node.outputs):
            raise self._misfit(f"{len(types)} outputs for {len(self.node.outputs)} of the node")
        return types

    def _branches(self) -> list[Any]:
        condition = self.outer.content.get(self.node.inputs[0])
        chosen = {"then_branch", "else_branch"}
        if condition is not None and condition.size == 1:
            chosen = {"then_branch" if condition.item() else "else_branch"}
        found = [graph for graph in self.node.graphs if graph.attribute in chosen]
        if len(found) < len(chosen):
            raise self._misfit("a branch is missing")
        results = [self._results(self._read(graph, [], {})) for graph in found]
        if len({len(values) for values in results}) > 1:
            raise self._misfit("its branches have different numbers of outputs")
        return [self._common(values) for values in zip(*results, strict=True)]

    def _loop(self) -> list[Any]:
        import numpy as np

        trips, condition, *names = (*self.node.inputs, "", "")[: max(len(self.node.inputs), 2)]
        states = [self.outer.values[name] for name in names]
        running = self.outer.content.get(condition) if condition else np.array(True)
        types = [self.type_of(7, ()), self.type_of(9, ()), *(value.type for value in states)]
        graph = self._body()
        known = {}
        if running is not None and running.size == 1 and running.item() and len(graph.proto.input) > 1:
            known = {graph.proto.input[1].name: np.array(True)}
        body = self._read(graph, types, known)
        self.node.trips = None
        if running is not None and running.size == 1 and not running.item():
            self.node.trips = 0
        elif (count := self.outer.content.get(trips)) is not None and count.size == 1 and self._runs_on(body):
            self.node.trips = max(int(count.item()), 0)
        _, *results = self._results(body)
        carried, scanned = results[: len(states)], results[len(states) :]
        shared: list[Sequence[Value]] = [(before,) for before in states]
        if self.node.trips != 0:
            shared = [
                (after,) if self.node.trips == 1 else (before, after)
                for before, after in zip(states, carried, strict=True)
            ]
        return [*map(self._common, shared), *(self._stacked(value, 0, [self.node.trips]) for value in scanned)]

    def _read(self, graph: InnerGraph, types: Sequence[Any], known: Mapping[str, Any]) -> Network:
        if len(graph.proto.input) != len(types):
            raise self._misfit(f"its graph has {len(graph.proto.input)} inputs, not {len(types)}")
        body = self.read(graph, types, known)
        self.node.bodies.append(body)
        return body

    def _runs_on(self, body: Network) -> bool:
        """Return True if a loop ends by the number of its runs alone."""
        going = body.content.get(body.outputs[0]) if body.outputs else None
        return going is not None and going.size == 1 and bool(going.item())

    def _scan(self) -> list[Any]:
        given, batched = self.node.attributes, self.version < _PLAIN_SCAN
        values = [self.outer.values[name] for name in self.node.inputs[batched:]]
        count = given.get("num_scan_inputs")
        if not isinstance(count, int) or not 0 < count <= len(values):
            raise self._misfit("num_scan_inputs is not the number of some of its inputs")
        states, scanned = values[:-count], values[-count:]
        if batched:
            axes = [1] * count
        else:
            axes = [self._axis(axis, len(value.shape)) for axis, value in self._axes("scan_input_axes", scanned)]
        batch = scanned[0].shape[:batched]
        length = scanned[0].shape[axes[0]]
        self.node.trips = length * (batch[0] if batch else 1)
        types = [self._without(value, range(batched)) for value in states]
        types += [self._without(value, {axis, *range(batched)}) for axis, value in zip(axes, scanned, strict=True)]
        body = self._read(self._body(), types, {})
        results = self._results(body)
        carried, made = results[: len(states)], results[len(states) :]
        if not batched:
            placed = [
                self._stacked(value, self._axis(axis, len(value.shape) + 1), [length])
                for axis, value in self._axes("scan_output_axes", made)
            ]
            return [*map(self._common, zip(states, carried, strict=True)), *placed]
        return [*(self._stacked(value, 0, batch) for value in carried),
                *(self._stacked(value, 0, [*batch, length]) for value in made)]  # fmt: skip

    def _axes(self, attribute: str, values: Sequence[Value]) -> Iterator[tuple[int, Value]]:
        axes = list(self.node.attributes.get(attribute, [0] * len(values)))
        if len(axes) != len(values):
            raise self._misfit(f"{attribute} has {len(axes)} axes for {len(values)} tensors")
        return zip(axes, values, strict=True)

    def _axis(self, axis: int, rank: int) -> int:
        if not -rank <= axis < rank:
            raise self._misfit(f"there is no axis {axis}")
        return axis % rank

    def _body(self) -> InnerGraph:
        for graph in self.node.graphs:
            if graph.attribute == "body":
                return graph
        raise self._misfit("it has no body")

    def _results(self, body: Network) -> list[Value]:
        return [body.values[name] for name in body.outputs]

    def _common(self, values: Sequence[Value]) -> Any:
        """Return the type with the dimensions that all values share."""
        first = values[0]
        shapes = [value.shape for value in values]
        if len({len(shape) for shape in shapes}) > 1:
            shapeless = type(first.type)()
            shapeless.tensor_type.elem_type = first.type.tensor_type.elem_type
            return shapeless
        dims = [sizes[0] if len({*sizes}) == 1 else None for sizes in zip(*shapes, strict=True)]
        return self.type_of(first.type.tensor_type.elem_type, dims)

    def _stacked(self, value: Value, axis: int, sizes: Dims) -> Any:
        dims = [*value.shape[:axis], *sizes, *value.shape[axis:]]
        return self.type_of(value.type.tensor_type.elem_type, dims)

    def _without(self, value: Value, axes: Iterable[int]) -> Any:
        axes = {*axes}
        dims = [size for axis, size in enumerate(value.shape) if axis not in axes]
        return self.type_of(value.type.tensor_type.elem_type, dims)

    def _misfit(self, what: str) -> FormatError:
        return FormatError(f"node {short(self.node.name)} ({self.node.type}): {what}")


def free_names(graph: Any, bound: set[str], found: set[str]) -> int:
    """Add the names that an inner graph reads and does not define to `found`; return how many names ONNX copies.

    `bound` holds the names of the enclosing graphs and is restored on return. ONNX copies into each inner graph all
    names that are defined around it.
    """
    mine: set[str] = set()

    def bind(names: Iterable[str]) -> None:
        new = {name for name in names if name not in bound}
        mine.update(new)
        bound.update(new)

    copies = len(bound)
    bind([*(info.name for info in graph.input), *(tensor.name for tensor in graph.initializer)])
    bind(sparse.values.name for sparse in graph.sparse_initializer)
    for node in graph.node:
        draw()
        found.update(name for name in node.input if name and name not in bound)
        copies += sum(free_names(inner, bound, found) for _, inner in named_graphs(node))
        bind(node.output)
    found.update(info.name for info in graph.output if info.name not in bound)
    bound -= mine
    return copies


def named_graphs(node: Any) -> Iterator[tuple[str, Any]]:
    """Yield the graphs in the attributes of a node, with the names of the attributes."""
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.name, attribute.g
        yield from ((attribute.name, graph) for graph in attribute.graphs)
