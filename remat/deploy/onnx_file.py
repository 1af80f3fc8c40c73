"""ONNX models with nodes reordered or repeated; all other bytes of the file stay the same."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from io import BytesIO
from typing import Any

from remat.deploy.dataflow import FileOp, Instance, Value, check_same, sequence
from remat.errors import FormatError
from remat.graphs import ComputeGraph
from remat.graphs.formats.onnx import ModelReading, read_model
from remat.graphs.formats.onnx.assembly import Assembly
from remat.graphs.formats.onnx.inner_graphs import named_graphs
from remat.graphs.formats.onnx.network import Node
from remat.graphs.formats.onnx.stream import encoded, without_weights
from remat.graphs.io import given_values
from remat.io.limits import MAX_BYTES
from remat.schedule import Schedule

#: Field numbers of messages (``onnx.proto``), and the wire type of fields with bytes.
_GRAPH, _FUNCTIONS, _NODE, _BYTES = 7, 25, 1, 2
_SIZES = {1: 8, 5: 4}
#: From this IR version on, initializers that are also inputs are defaults; ONNX Runtime then ignores their content.
_REPLACEABLE = 4
#: ``TensorProto.INT32`` and ``INT64``.
_INTEGERS = (6, 7)
#: Ops with inputs whose content decides shapes, after their first input.
_SHAPED = frozenset({
    "CenterCropPad", "Expand", "OneHot", "Pad", "Range", "Reshape", "Resize", "Slice", "Split", "Squeeze", "Tile",
    "TopK", "Unsqueeze", "Upsample",
}) | {
    f"Reduce{kind}"
    for kind in ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum", "SumSquare")
}  # fmt: skip


@dataclass(frozen=True, eq=False)
class OnnxFile:
    """An ONNX model as a sequence of nodes."""

    data: bytes
    dims: dict[str, int] = field(default_factory=dict)
    """Sizes of open dimensions, which stay open in written models."""
    remarks: list[str] = field(default_factory=list)
    values: Mapping[str, Any] = field(default_factory=given_values)
    """Contents of inputs, which stay inputs in written models."""

    @cached_property
    def reading(self) -> ModelReading:
        """Result of the reader; without the weights of large models."""
        data = without_weights(BytesIO(self.data)) if len(self.data) > MAX_BYTES else self.data
        return read_model(
            data,
            dims=self.dims,
            values=self.values,
            fold_views=True,
            control_flow="op",
            in_place=False,
            remarks=self.remarks,
        )

    @property
    def graph(self) -> ComputeGraph:
        """Graph of the model."""
        return self.reading.graph

    @cached_property
    def _runtime_reading(self) -> tuple[Assembly, ComputeGraph]:
        computed = self._computed
        assembly = Assembly(self.reading.network, fold_views=True, in_place=True, remarks=[], computed=computed)
        return assembly, assembly.graph(self.graph.name, self.graph.source)

    @cached_property
    def in_place_graph(self) -> ComputeGraph:
        """Graph as ONNX Runtime runs it without optimisation.

        Ops write in place of an input where its kernels do: never a graph output. Nodes that compute constants of
        floating-point numbers, such as dequantised weights, are ops.
        """
        assembly, graph = self._runtime_reading
        apart = self._of_unknown_shape.union(self.outputs)
        apart_ops = {k for k, op in enumerate(self.operators) if not apart.isdisjoint(op.writes)}
        ops = [replace(op, in_place=()) if assembly.position_of[op.name] in apart_ops else op for op in graph.ops]
        return ComputeGraph(
            graph.name, graph.tensors, ops, graph.inputs, graph.outputs, constant_memory=graph.constant_memory,
            cost_unit=graph.cost_unit, source=graph.source,
        )  # fmt: skip

    @cached_property
    def _computed(self) -> set[str]:
        """Constants of floating-point numbers that nodes compute."""
        network = self.reading.network
        return {
            value
            for node in network.nodes
            if node.type != "Constant" and network.constant.issuperset(filter(None, node.outputs))
            for value in node.outputs
            if value and network.values[value].dtype in ("FLOAT", "FLOAT16", "BFLOAT16", "DOUBLE")
        }

    @cached_property
    def _of_unknown_shape(self) -> set[Value]:
        """Values whose shapes depend on inputs or on initializers that a caller may replace."""
        model = self.reading.model
        listed = {info.name for info in model.graph.input}
        decides = set(self.values)
        if model.ir_version >= _REPLACEABLE:
            decides |= listed & {each.name for each in model.graph.initializer if each.data_type in _INTEGERS}
        found: set[Value] = set()
        for node, op in zip(self.reading.network.nodes, self.operators, strict=True):
            if not found.isdisjoint(op.reads) or (node.type in _SHAPED and not decides.isdisjoint(op.reads[1:])):
                found.update(op.writes)
        return found - {None}

    @cached_property
    def runtime_order(self) -> Schedule:
        """Order of ``PRIORITY_BASED`` execution: of the ready nodes the one with the lowest number.

        ONNX Runtime numbers the nodes of functions after all others, level by level.
        """
        import networkx as nx
        import onnx

        from remat.graphs.formats.onnx.functions import call_depths

        graph: nx.DiGraph[int] = nx.DiGraph()
        depths = [0] * len(self.operators)
        if self._has_functions:
            depths = call_depths(onnx.ModelProto.FromString(self.data))
        writer = {value: k for k, op in enumerate(self.operators) for value in op.writes if value is not None}
        graph.add_nodes_from(range(len(self.operators)))
        graph.add_edges_from(
            (writer[value], k) for k, op in enumerate(self.operators) for value in op.reads if value in writer
        )
        op_at = {position: name for name, position in self._runtime_reading[0].position_of.items()}
        order = nx.lexicographical_topological_sort(graph, key=lambda k: (depths[k], k))
        return Schedule.from_steps([("compute", op_at[k]) for k in order if k in op_at])

    @cached_property
    def operators(self) -> tuple[FileOp, ...]:
        """Nodes in the order of the file."""
        return tuple(
            FileOp(
                f"node {node.name!r} ({node.type})",
                tuple(value or None for value in (*node.inputs, *node.captured)),
                tuple(value or None for value in node.outputs),
                _content(node),
            )
            for node in self.reading.network.nodes
        )

    @property
    def outputs(self) -> tuple[Value, ...]:
        """Outputs of the model."""
        return tuple(self.reading.network.outputs)

    @property
    def has_external_data(self) -> bool:
        """True if weights are in separate files, named relative to the folder of the model."""
        return any(tensor.data_location == tensor.EXTERNAL for tensor in _tensors(self.reading.model.graph))

    def scheduled(self, schedule: Schedule, *, runtime: bool = False) -> OnnxFile:
        """Return the model with nodes in the order of a schedule, one per compute.

        `runtime`: the schedule is one of :attr:`in_place_graph`, otherwise of :attr:`graph`.

        Functions of the model are expanded. Raise FormatError if the model cannot be written, or would compute
        something else.
        """
        position = (self._runtime_reading[0] if runtime else self.reading.assembly).position_of
        instances = sequence(self.operators, [position[name] for name in schedule.computes()], self.outputs)
        if [each.op for each in instances] == list(range(len(self.operators))):
            return self
        made = OnnxFile(self._with_nodes(instances), self.dims)
        check_same(self.operators, made.operators, zip(self.outputs, made.outputs, strict=True))
        return made

    def _with_nodes(self, instances: Sequence[Instance]) -> bytes:
        data = self.expanded()
        found = [each for each in _fields(data, 0, len(data)) if each[0] == _GRAPH]
        if len(found) != 1:
            raise FormatError("the model's graph stands in several pieces, which are not written")
        _, start, first, end = found[0]
        parts = list(_fields(data, first, end))
        nodes = [data[begin:last] for number, _, begin, last in parts if number == _NODE]
        if len(nodes) != len(self.operators):
            raise FormatError(f"{len(nodes)} nodes were read as {len(self.operators)}")
        written = b"".join(
            bytes([_NODE << 3 | _BYTES]) + encoded(len(node)) + node for node in self._nodes(nodes, instances)
        )
        graph = written + b"".join(data[begin:last] for number, begin, _, last in parts if number != _NODE)
        return data[:start] + bytes([_GRAPH << 3 | _BYTES]) + encoded(len(graph)) + graph + data[end:]

    @cached_property
    def _has_functions(self) -> bool:
        return any(number == _FUNCTIONS for number, *_ in _fields(self.data, 0, len(self.data)))

    def expanded(self) -> bytes:
        """Return the file with the functions of the model expanded."""
        import onnx

        from remat.graphs.formats.onnx.functions import expanded

        if not self._has_functions:
            return self.data
        whole: bytes = expanded(onnx.ModelProto.FromString(self.data)).SerializeToString()
        return whole

    def _nodes(self, nodes: Sequence[bytes], instances: Sequence[Instance]) -> Iterator[bytes]:
        """Yield the nodes of the instances; the last version of each value keeps its name."""
        import onnx

        last = {
            value: version
            for each in instances
            for value, version in zip(self.operators[each.op].writes, each.writes, strict=True)
        }
        names: dict[tuple[Value, int], str] = {}
        taken = set(self.reading.network.values)
        runs: dict[int, int] = {}
        total = Counter(each.op for each in instances)
        for each in instances:
            op = self.operators[each.op]
            runs[each.op] = runs.get(each.op, 0) + 1
            for value, version in zip(op.writes, each.writes, strict=True):
                if value is not None and version != last[value]:
                    name = f"{value}#{version}"
                    while name in taken:
                        name += "'"
                    taken.add(name)
                    names[value, version] = name
            uses = [*zip(op.reads, each.reads, strict=True), *zip(op.writes, each.writes, strict=True)]
            if not any(use in names for use in uses):
                yield nodes[each.op]
                continue
            current = {value: names.get((value, version), value) for value, version in uses}
            proto = onnx.NodeProto.FromString(nodes[each.op])
            written = [names.get(use, use[0]) or "" for use in uses[len(op.reads) :]]
            _rename(proto, lambda name, current=current: current.get(name, name))  # type: ignore[misc]
            proto.output[:] = written
            proto.name += f"#{runs[each.op]}" if proto.name and total[each.op] > 1 else ""
            yield proto.SerializeToString()


def _rename(proto: Any, name_of: Callable[[str], str]) -> None:
    """Rename the inputs of a node and of the graphs inside it, across which names are unique."""
    proto.input[:] = [name_of(name) for name in proto.input]
    for _, graph in named_graphs(proto):
        for node in graph.node:
            _rename(node, name_of)
        for info in graph.output:
            info.name = name_of(info.name)


def _content(node: Node) -> bytes:
    """Return a node without its name and the names of its inputs and outputs."""
    proto = type(node.proto)()
    proto.CopyFrom(node.proto)
    place = {name: f"%{k}" for k, name in enumerate(node.captured)}
    if place:
        _rename(proto, lambda name: place.get(name, name))
    for name in ("input", "output", "name", "doc_string", "metadata_props"):
        proto.ClearField(name)
    content: bytes = proto.SerializeToString(deterministic=True)
    return content


def _tensors(graph: Any) -> Iterator[Any]:
    """Yield the tensors of a graph and of the graphs inside it."""
    yield from graph.initializer
    for sparse in graph.sparse_initializer:
        yield from (sparse.values, sparse.indices)
    for node in graph.node:
        for attribute in node.attribute:
            yield from (attribute.t, *attribute.tensors)
        for _, inner in named_graphs(node):
            yield from _tensors(inner)


def _fields(data: bytes, start: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """Yield the number, start, start of the content, and end of each field of a message.

    Raises
    ------
    FormatError
        If the message does not end with a field.
    """
    position = start
    while position < end:
        begin = position
        tag, position = _varint(data, position)
        kind = tag & 7
        if kind == _BYTES:
            length, position = _varint(data, position)
            content = position
            position += length
        elif kind in _SIZES:
            content = position
            position += _SIZES[kind]
        else:
            content = position
            _, position = _varint(data, position)
        if position > end:
            raise FormatError(f"byte {begin:,}: the file ends in the middle of a field")
        yield tag >> 3, begin, content, position


def _varint(data: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if position >= len(data):
            raise FormatError(f"byte {position:,}: the file ends in the middle of a field")
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
