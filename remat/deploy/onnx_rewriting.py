"""ONNX models of rewritten graphs: nodes for parts, with slices of weights, additions of partial sums, and joins."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from remat.deploy.dataflow import FileOp, sequence
from remat.deploy.onnx_file import OnnxFile
from remat.errors import FormatError
from remat.graphs import ComputeGraph
from remat.graphs.formats.onnx import ModelReading
from remat.graphs.rewriting.draft import Draft
from remat.graphs.rewriting.equivalence import checked_pieces
from remat.graphs.rewriting.pieces import ConstantSlice, Piece, PieceRole
from remat.runtime.text import short

#: Below this IR version initializers are also listed as inputs; from it on, that makes them defaults of inputs.
_LISTED = 4


def rewritten_onnx(file: OnnxFile, graph: ComputeGraph) -> OnnxFile:
    """Return the model of a graph that rewriting made of ``file.graph``, with nodes in its reference order.

    Parts of an op are nodes of its type with slices of its weights. ``Add`` adds partial sums in the order of the
    graph; a ``Gemm`` takes the sum so far as its third input. The result is read back, and its ops, tensors, shapes and
    constants must be as expected.

    Raise FormatError if the model cannot be written or does not read back as expected; with the names of weights that
    are computed or in separate files. Raise GraphError with the name of the op, if the graph does not compute the same
    as the model.
    """
    check_rewritable(file)
    writer = _Writer(file, graph)
    made = OnnxFile(writer.written(), file.dims)
    _check_read_back(made, writer)
    return made


@dataclass(frozen=True)
class _Expected:
    """Expected op on reading back: type, values read, values written."""

    type: str
    reads: tuple[str, ...]
    writes: tuple[str, ...]


@dataclass
class _Sum:
    """Addition of partial sums: number of terms, number emitted, and value of the sum so far."""

    count: int
    done: int = 0
    value: str = ""


class _Writer:
    """Writes the model of a rewritten graph."""

    def __init__(self, file: OnnxFile, graph: ComputeGraph) -> None:
        import onnx

        self._onnx, self.graph, self._file = onnx, graph, file
        self._pieces = checked_pieces(file.graph, graph)
        self._draft = Draft(graph)
        self._model = onnx.ModelProto.FromString(file.expanded())
        self._position = file.reading.assembly.position_of
        self.value_of = values_of_tensors(file.reading)
        self._taken = set(file.reading.network.values)
        self._names = {node.name for node in self._model.graph.node}
        self._sums = {
            op: _Sum(count)
            for op, count in Counter(p.of for p in self._pieces.values() if p.role is PieceRole.SUM).items()
        }
        self._slices: dict[tuple[str, ConstantSlice], Any] = {}
        self._stored = {tensor.name: tensor for tensor in self._model.graph.initializer}
        self._stored |= {
            node.output[0]: attribute.t
            for node in self._model.graph.node
            for attribute in node.attribute
            if node.op_type == "Constant" and attribute.name == "value"
        }
        self._captured = {
            tuple(node.outputs): node.captured for node in file.reading.network.nodes if node.captured
        }  # fmt: skip
        self.sizes: dict[str, tuple[int, object]] = {}
        self.expected: list[_Expected] = []
        self._nodes: list[Any] = []

    def written(self) -> bytes:
        """Return the model."""
        graph, old = self._model.graph, list(self._model.graph.node)
        for tensor in self.graph.tensors:
            if tensor.name not in self.value_of:
                self.value_of[tensor.name] = self._unused(tensor.name)
            self.sizes[self.value_of[tensor.name]] = (tensor.size, self.graph.meta["shapes"].get(tensor.name))
        for name in self.graph.order or ():
            self._write(name, self._pieces[name])
        nodes = self._with_folded(old)
        del graph.node[:]
        graph.node.extend(nodes)
        self._replace_constants(old, nodes)
        data: bytes = self._model.SerializeToString()
        return data

    def _with_folded(self, old: list[Any]) -> list[Any]:
        """Add the nodes without an op in the graph, where they are needed; return all nodes."""
        scheduled = set(self._position.values())
        there = {*self._stored, *(info.name for info in self._model.graph.input), ""}
        there.update(sparse.values.name for sparse in self._model.graph.sparse_initializer)
        there.update(name for node in self._nodes for name in node.output)
        folded = []
        for k, node in enumerate(old):
            if k not in scheduled and there.issuperset(self._reads(node)):
                there.update(node.output)
                folded.append(node)
        nodes, read = list(self._nodes), {name for node in old for name in self._reads(node)}
        used = {*self._file.outputs, *(name for node in nodes for name in self._reads(node))}
        for node in reversed(folded):
            if not used.isdisjoint(node.output) or read.isdisjoint(node.output):
                used.update(self._reads(node))
                nodes.insert(len(self._nodes), node)
        ops = [
            FileOp(
                node.name,
                tuple(each or None for each in self._reads(node)),
                tuple(each or None for each in node.output),
            )
            for node in nodes
        ]
        instances = sequence(ops, range(len(self._nodes)), self._file.outputs)
        return [nodes[each.op] for each in instances]

    def _reads(self, node: Any) -> list[str]:
        return [*node.input, *self._captured.get(tuple(node.output), ())]

    def _replace_constants(self, old: list[Any], nodes: list[Any]) -> None:
        """Add the slices, and remove weights and value descriptions that are no longer used."""
        graph = self._model.graph
        listed = {info.name: info for info in graph.input}
        graph.initializer.extend(self._slices.values())
        if self._model.ir_version < _LISTED:
            graph.input.extend(
                self._onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
                for tensor in self._slices.values()
            )
        used = {name for node in nodes for name in self._reads(node)} | {info.name for info in graph.output}
        unused = {name for node in old for name in self._reads(node)} - used - set(self._file.reading.network.inputs)
        _keep(graph.initializer, lambda tensor: tensor.name not in unused)
        if self._model.ir_version < _LISTED:
            _keep(graph.input, lambda info: info.name not in unused)
        there = {name for node in nodes for name in node.output} | used | listed.keys()
        _keep(graph.value_info, lambda info: info.name in there)
        _keep(graph.quantization_annotation, lambda each: each.tensor_name in there)

    def _write(self, name: str, piece: Piece) -> None:
        op = self._draft.ops[name]
        outputs = tuple(self.value_of[tensor] for tensor in op.outputs)
        reads = tuple(self.value_of[tensor] for tensor in op.inputs)
        if piece.role is PieceRole.WHOLE:
            self._emit(self._model.graph.node[self._position[name]], op.type, reads, outputs)
            return
        operands = self._draft.operands(name) or ()
        if piece.role is PieceRole.JOIN:
            inputs = [self.value_of[part.tensor] for part in operands[0].parts]
            join = self._onnx.helper.make_node("Concat", inputs, outputs, self._unused_name(name), axis=piece.axis)
            self._emit(join, "Concat", reads, outputs)
            return
        if piece.activation is not None:
            raise FormatError(f"op {name!r} has a fused activation, which ONNX does not have")
        node = self._piece_node(name, piece, [self.value_of[operand.tensors[0]] for operand in operands])
        if piece.role is PieceRole.PART:
            node.output[:] = outputs
            self._emit(node, node.op_type, reads, outputs)
        else:
            self._add(name, node, reads, self._sums[piece.of], outputs[0])

    def _piece_node(self, name: str, piece: Piece, operands: list[str]) -> Any:
        """Return the node of an op of the file that reads `operands` and slices of constants."""
        proto = type(self._model.graph.node[0])()
        proto.CopyFrom(self._model.graph.node[self._position[piece.of]])
        constant = self._file.reading.network.constant
        rest = list(operands)
        for k, value in enumerate(proto.input):
            if value and value not in constant:
                proto.input[k] = rest.pop(0)
            elif value and k not in piece.constants:
                proto.input[k] = ""
            elif value and (part := piece.constants[k]) is not None:
                proto.input[k] = self._slice(value, part)
        while proto.input and not proto.input[-1]:
            del proto.input[-1]
        if piece.groups is not None:
            _keep(proto.attribute, lambda attribute: attribute.name != "group")
            proto.attribute.append(self._onnx.helper.make_attribute("group", piece.groups))
        proto.name = self._unused_name(name)
        return proto

    def _add(self, name: str, node: Any, reads: tuple[str, ...], total: _Sum, output: str) -> None:
        """Emit a partial sum and its addition to the sum so far (a Gemm does both); the first term adds the bias."""
        before, number = total.value, total.done
        total.done += 1
        is_last, is_gemm = total.done == total.count, node.op_type == "Gemm"
        total.value = output if is_last else self._unused(f"{output}/sum{number}", output)
        if is_gemm:
            bias = self._model.graph.node[self._position[self._pieces[name].of]].input[2:3]
            node.input[:] = [*node.input[:2], *([before] if before else bias)]
            reads = (*reads, before) if before else reads
        adds = bool(before) and not is_gemm
        node.output[:] = [self._unused(f"{output}/term{number}", output) if adds else total.value]
        self._emit(node, node.op_type, reads, node.output)
        if adds:
            terms = (before, node.output[0])
            add = self._onnx.helper.make_node("Add", terms, [total.value], self._unused_name(f"{name}/add"))
            self._emit(add, "Add", terms, (total.value,))

    def _emit(self, node: Any, type_: str, reads: Iterable[str], writes: Iterable[str]) -> None:
        self._nodes.append(node)
        self.expected.append(_Expected(type_, tuple(reads), tuple(writes)))

    def _slice(self, name: str, part: ConstantSlice) -> str:
        """Return the name of an initializer with a slice of a constant."""
        found = self._slices.get((name, part))
        if found is None:
            if self._model.ir_version >= _LISTED and any(info.name == name for info in self._model.graph.input):
                raise FormatError(f"weight {short(name)} is the default of an input: not sliced", "weights", name)
            if name not in self._stored:
                raise FormatError(f"weight {short(name)} is computed in the model: not sliced", "weights", name)
            axis, start, stop = part
            array = self._onnx.numpy_helper.to_array(self._stored[name])
            sliced = array[(slice(None),) * axis + (slice(start, stop),)]
            found = self._onnx.numpy_helper.from_array(sliced, self._unused(f"{name}/{axis}:{start}-{stop}"))
            if sliced.shape[axis] != stop - start or found.data_type != self._stored[name].data_type:
                raise FormatError(f"weight {short(name)} has no elements {start} to {stop}", "weights", name)
            self._slices[name, part] = found
        return str(found.name)

    def _unused(self, name: str, like: str | None = None) -> str:
        """Return an unused name of a value, and give it the size and shape of `like` if given."""
        while name in self._taken:
            name += "'"
        self._taken.add(name)
        if like is not None:
            self.sizes[name] = self.sizes[like]
        return name

    def _unused_name(self, name: str) -> str:
        while name in self._names:
            name += "'"
        self._names.add(name)
        return name


def values_of_tensors(reading: ModelReading) -> dict[str, str]:
    """Return the value in the model of each tensor of its graph."""
    found = dict(zip(reading.graph.inputs, reading.network.inputs, strict=True))
    for op in reading.graph.ops:
        node = reading.network.nodes[reading.assembly.position_of[op.name]]
        found.update(zip(op.outputs, filter(None, node.outputs), strict=True))
    return found


def check_rewritable(file: OnnxFile) -> None:
    """Raise FormatError if weights cannot be cut: they are in other files, or training_info names them."""
    if file.has_external_data:
        raise FormatError("weights in files of their own: a rewritten model needs them inside", "external-data")
    if file.reading.model.training_info:
        raise FormatError("the model has training_info, which names its weights: not rewritten", "training-info")


def _check_read_back(made: OnnxFile, writer: _Writer) -> None:
    """Check that the model reads back as the written graph, in the same order."""
    graph, value_of = made.graph, values_of_tensors(made.reading)
    shapes = graph.meta["shapes"]
    order = {name: k for k, name in enumerate(graph.order or ())}
    found = [
        _Expected(
            op.type, tuple(sorted(value_of[t] for t in op.inputs)), tuple(value_of[t] for t in op.outputs)
        )
        for op in sorted(graph.ops, key=lambda op: order[op.name])
    ]  # fmt: skip
    wanted = [_Expected(each.type, tuple(sorted(set(each.reads))), each.writes) for each in writer.expected]
    if found != wanted:
        wrong = next((w.writes[0] for f, w in zip(found, wanted, strict=False) if f != w), "an op more or less")
        raise FormatError(f"the new model is read as another graph: {short(wrong)}; nothing is written")
    for tensor in graph.tensors:
        if writer.sizes[value_of[tensor.name]] != (tensor.size, shapes.get(tensor.name)):
            raise FormatError(f"tensor {short(tensor.name)} would have another shape: nothing is written")
    if {value_of[t] for t in graph.outputs} != {writer.value_of[t] for t in writer.graph.outputs}:
        raise FormatError("the new model is read with other outputs: nothing is written")


def _keep(items: Any, wanted: Any) -> None:
    """Remove unwanted items of a repeated field."""
    kept = [item for item in items if wanted(item)]
    if len(kept) < len(items):
        del items[:]
        items.extend(kept)
