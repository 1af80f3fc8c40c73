"""TensorFlow Lite models of rewritten graphs: operators for parts, with slices of weights, additions, and joins."""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from remat.deploy.dataflow import FileOp, sequence
from remat.deploy.flat import Fields, Piece, content, links, numbers, table, text
from remat.deploy.tflite_file import OPERATOR, PLAN_NAME, TENSOR, TfliteFile
from remat.errors import FormatError
from remat.graphs import ComputeGraph
from remat.graphs.rewriting.draft import Draft
from remat.graphs.rewriting.equivalence import checked_pieces
from remat.graphs.rewriting.pieces import ConstantSlice, PieceRole
from remat.graphs.rewriting.pieces import Piece as PieceOf

_CODES, _SUBGRAPHS, _BUFFERS, _METADATA = 1, 2, 4, 6
_TENSORS, _OPERATORS = 0, 3
_SHAPE, _TYPE, _BUFFER, _NAME = range(4)
_CODE, _INPUTS, _OUTPUTS, _OPTIONS_TYPE, _OPTIONS = range(5)
#: Options of ops that are summed in parts: the fields, and which of them is the fused activation.
_SUMMED: dict[str, tuple[Fields, int]] = {
    "CONV_2D": ({0: 1, 1: 4, 2: 4, 3: 1, 4: 4, 5: 4, 6: 1}, 3),
    "FULLY_CONNECTED": (dict.fromkeys(range(5), 1), 0),
}
#: Name and number of an op, and the type of its options (``BuiltinOperator``, ``BuiltinOptions``).
_ADD, _CONCAT = ("ADD", 0, 11), ("CONCATENATION", 2, 10)
#: Numbers of activations (``ActivationFunctionType``).
_ACTIVATIONS = {None: 0, "relu": 1, "relu_n1_to_1": 2, "relu6": 3}
_ELEMENTS: dict[str, np.dtype[Any]] = {"FLOAT32": np.dtype("<f4"), "FLOAT16": np.dtype("<f2")}

#: Expected op on reading back: type, tensors read and written, by position.
_Expected = tuple[str, frozenset[int], tuple[int, ...]]


def rewritten_tflite(file: TfliteFile, graph: ComputeGraph) -> TfliteFile:
    """Return the model of a graph that rewriting made of ``file.graph``, with operators in its reference order.

    The old file, weights included, stays behind the new tables. The result is read back, and its ops, tensors and
    shapes must be as expected.

    Raise FormatError if the model cannot be written or does not read back as expected. Raise GraphError with the name
    of the op, if the graph does not compute the same as the model.
    """
    check_variables(file)
    writer = _Writer(TfliteFile(file.data), graph)
    made = TfliteFile(writer.written())
    writer.check(made)
    return made


def check_variables(file: TfliteFile) -> None:
    """Raise FormatError for a model with variables or resources, whose operators must keep the order of the file."""
    if any(op.state for op in file.operators):
        raise FormatError("the model has variables or resources: not rewritten", "variables")


class _Writer:
    """Writes the model of a rewritten graph."""

    def __init__(self, file: TfliteFile, graph: ComputeGraph) -> None:
        self._file, self._graph, self._draft = file, graph, Draft(graph)
        self._pieces = checked_pieces(file.graph, graph)
        self._main, self._tables = file.subgraphs[0], file.tables[0]
        self._tensors: list[int | Piece] = list(file.flat.tables(self._main, _TENSORS))
        self._buffers: list[int | Piece] = list(file.flat.tables(file.flat.root, _BUFFERS))
        self._codes: list[int | Piece] = list(file.flat.tables(file.flat.root, _CODES))
        self._code_of = {
            entry.kind: file.flat.scalar(place, _CODE, "I")
            for entry, place in zip(self._tables.operators, file.places[0], strict=True)
        }
        self._position = {name: p for p, name in file.assembly.name_of.items()}
        self._slices: dict[tuple[int, ConstantSlice], int] = {}
        self._no_bias: dict[int, int] = {}
        self._count = Counter(p.of for p in self._pieces.values() if p.role is PieceRole.SUM)
        self._sums: dict[str, list[int]] = {}
        self._ops: list[tuple[FileOp, int | Piece]] = []
        self._expected: list[_Expected] = []
        self._shape: dict[int, tuple[int, ...]] = {}

    def written(self) -> bytes:
        """Return the model."""
        first = {tensor: op for op in self._graph.ops for tensor in op.outputs}
        for tensor in self._graph.tensors:
            if tensor.name not in self._position:
                of = self._position[self._file.graph.ops[self._op_index(first[tensor.name].name)].outputs[0]]
                self._position[tensor.name] = self._new_tensor(tensor.name, self._draft.shapes[tensor.name], of)
        for name in self._graph.order or ():
            if name in self._pieces and (name in self._file.assembly.position_of or self._pieces[name].of != name):
                self._write(name, self._pieces[name])
        operators = self._with_folded()
        main = self._file.with_main({_TENSORS: links(self._tensors), _OPERATORS: links(operators)})
        changed = {_SUBGRAPHS: main, _BUFFERS: links(self._buffers)}
        changed[_CODES] = links(self._codes)
        flat = self._file.flat
        notes = flat.tables(flat.root, _METADATA)
        kept = [each for each in notes if not self._is_plan(each)]
        if len(kept) < len(notes):
            changed[_METADATA] = links(kept)
        return self._file.with_fields(changed).data

    def _op_index(self, name: str) -> int:
        return self._file.graph.op_index[self._pieces[name].of]

    def _is_plan(self, entry: int) -> bool:
        name = self._file.flat.link(entry, 0)
        return name is not None and self._file.data[name + 4 :].startswith(PLAN_NAME + b"\0")

    def _with_folded(self) -> list[int | Piece]:
        """Add the operators without an op in the graph; return all. Unused tensors become empty."""
        scheduled = set(self._file.assembly.position_of.values())
        old = self._file.operators
        written = {value for op in old for value in op.writes}
        there = {value for op in old for value in op.reads if value not in written}
        there.update(value for op, _ in self._ops for value in op.writes)
        ops = list(self._ops)
        for k, op in enumerate(old):
            if k not in scheduled and there.issuperset(value for value in op.reads if value is not None):
                there.update(op.writes)
                ops.append((op, self._file.places[0][k]))
        instances = sequence([op for op, _ in ops], range(len(self._ops)), self._file.outputs)
        used = {value for each in instances for value in (*ops[each.op][0].reads, *ops[each.op][0].writes)}
        used |= {*self._tables.inputs, *self._tables.outputs}
        for p, entry in enumerate(self._tables.tensors):
            if p not in used and not entry.is_variable:
                fields = self._file.flat.fields(self._place(p), TENSOR, entry.label)
                kept = {number: fields[number] for number in (_TYPE, _NAME) if number in fields}
                self._tensors[p] = table(kept | {_SHAPE: numbers([0])})
        return [ops[each.op][1] for each in instances]

    def _is_constant(self, tensor: int) -> bool:
        if tensor in self._slices.values() or tensor in self._no_bias.values():
            return True
        computed = tensor in self._file.assembly.name_of or tensor in self._file.assembly.base
        return tensor < len(self._tables.tensors) and not computed

    def _place(self, tensor: int) -> int:
        return self._file.flat.tables(self._main, _TENSORS)[tensor]

    def _write(self, name: str, piece: PieceOf) -> None:
        op = self._draft.ops[name]
        outputs = [self._position[tensor] for tensor in op.outputs]
        operands = self._draft.operands(name) or ()
        if piece.role is PieceRole.WHOLE:
            position = self._file.assembly.position_of[name]
            self._ops.append((self._file.operators[position], self._file.places[0][position]))
            self._expected.append((op.type, frozenset(self._position[t] for t in op.inputs), tuple(outputs)))
        elif piece.role is PieceRole.JOIN:
            inputs = [self._position[part.tensor] for part in operands[0].parts]
            assert piece.axis is not None
            self._emit_new(_CONCAT, inputs, outputs, table({0: struct.pack("<i", piece.axis), 1: b"\0"}))
        else:
            self._write_part(piece, [self._position[operand.tensors[0]] for operand in operands], outputs)

    def _write_part(self, piece: PieceOf, operands: list[int], outputs: list[int]) -> None:
        position = self._file.assembly.position_of[piece.of]
        entry, place = self._tables.operators[position], self._file.places[0][position]
        inputs: list[int] = []
        for k, p in enumerate(entry.inputs):
            if p >= 0 and self._is_constant(p):
                cut = piece.constants.get(k)
                inputs.append(self._zeros(p) if k not in piece.constants else p if cut is None else self._slice(p, cut))
            else:
                inputs.append(operands.pop(0) if p >= 0 else p)
        fields: dict[int, bytes | int | Piece] = {**self._file.flat.fields(place, OPERATOR, f"op {position}")}
        fields[_INPUTS] = numbers(inputs)
        if piece.role is PieceRole.PART:
            self._emit(entry.kind, inputs, outputs, fields)
            return
        if piece.activation is not None:
            known, activation = _SUMMED[entry.kind]
            options = self._file.flat.link(place, _OPTIONS)
            assert options is not None
            found = self._file.flat.fields(options, known, f"the options of op {position}")
            fields[_OPTIONS] = table({number: each for number, each in found.items() if number != activation})
        self._add(piece, entry.kind, inputs, outputs[0], fields)

    def _add(
        self, piece: PieceOf, kind: str, inputs: list[int], output: int, fields: dict[int, bytes | int | Piece]
    ) -> None:
        """Emit a partial sum and its addition to the sum so far; the last addition applies the activation."""
        before = self._sums.setdefault(piece.of, [])
        number, is_last = len(before), len(before) + 1 == self._count[piece.of]
        shape, name = self._tables.tensors[output].shape, self._tables.tensors[output].name
        is_alone = is_last and not before and piece.activation is None
        term = output if is_alone else self._new_tensor(f"{name}/term{number}", shape, output)
        self._emit(kind, inputs, [term], fields)
        total = term
        if before:
            total = output if is_last else self._new_tensor(f"{name}/sum{number}", shape, output)
            applied = _ACTIVATIONS[piece.activation] if is_last else 0
            self._emit_new(_ADD, [before[-1], term], [total], table({0: bytes([applied])}))
        elif is_last and not is_alone:
            raise FormatError(f"the sum of op {piece.of!r} has one part", culprit=piece.of)
        before.append(total)

    def _emit_new(self, op: tuple[str, int, int], inputs: Sequence[int], outputs: list[int], options: Piece) -> None:
        kind, number, options_type = op
        if kind not in self._code_of:
            self._code_of[kind] = len(self._codes)
            self._codes.append(table({0: bytes([number]), 2: struct.pack("<i", 1), 3: struct.pack("<i", number)}))
        fields: dict[int, bytes | int | Piece] = {
            _CODE: struct.pack("<I", self._code_of[kind]), _INPUTS: numbers(inputs), _OPTIONS: options,
            _OPTIONS_TYPE: bytes([options_type]),
        }  # fmt: skip
        self._emit(kind, inputs, outputs, fields)

    def _emit(
        self, kind: str, inputs: Sequence[int], outputs: list[int], fields: dict[int, bytes | int | Piece]
    ) -> None:
        fields[_OUTPUTS] = numbers(outputs)
        reads = tuple(p for p in inputs if p >= 0)
        self._ops.append((FileOp(kind, reads, tuple(outputs)), table(fields)))
        constant = {p for p in reads if self._is_constant(p)}
        self._expected.append((kind, frozenset(reads) - constant, tuple(outputs)))

    def _new_tensor(self, name: str, shape: tuple[int, ...], like: int, buffer: int = 0) -> int:
        """Add a tensor with the element type of another; return its position."""
        fields = self._file.flat.fields(self._place(like), TENSOR, self._tables.tensors[like].label)
        new: dict[int, bytes | int | Piece] = {number: fields[number] for number in (_TYPE,) if number in fields}
        new |= {_SHAPE: numbers(shape), _BUFFER: struct.pack("<I", buffer), _NAME: text(name.encode())}
        self._tensors.append(table(new))
        self._shape[len(self._tensors) - 1] = tuple(shape)
        return len(self._tensors) - 1

    def _slice(self, tensor: int, cut: ConstantSlice) -> int:
        """Return the position of the tensor for a slice of a constant."""
        if (tensor, cut) not in self._slices:
            entry, (axis, start, stop) = self._tables.tensors[tensor], cut
            dtype = _ELEMENTS.get(entry.kind)
            if dtype is None or entry.is_sparse or entry.data != entry.bytes():
                raise FormatError(f"weights {entry.label} are computed in the model: not sliced", "weights", entry.name)
            flat = self._file.flat
            held = flat.tables(flat.root, _BUFFERS)[flat.scalar(self._place(tensor), _BUFFER, "I")]
            start_of = flat.link(held, 0)
            if start_of is None or start_of + 4 + entry.data > len(flat.data):
                raise FormatError(f"weights {entry.label} are not in the tables of the file", "weights", entry.name)
            array = np.frombuffer(flat.data, dtype, prod(entry.shape), start_of + 4).reshape(entry.shape)
            sliced = array[(slice(None),) * axis + (slice(start, stop),)]
            self._buffers.append(table({0: content(sliced.tobytes())}))
            name = f"{entry.name}/{axis}:{start}-{stop}"
            self._slices[tensor, cut] = self._new_tensor(name, sliced.shape, tensor, len(self._buffers) - 1)
        return self._slices[tensor, cut]

    def _zeros(self, tensor: int) -> int:
        """Return the position of a bias of zeros, which LiteRT's convolution requires."""
        if tensor not in self._no_bias:
            entry = self._tables.tensors[tensor]
            self._buffers.append(table({0: content(bytes(entry.bytes()))}))
            name = f"{entry.name}/zeros"
            self._no_bias[tensor] = self._new_tensor(name, entry.shape, tensor, len(self._buffers) - 1)
        return self._no_bias[tensor]

    def check(self, made: TfliteFile) -> None:
        """Check that the model reads back as the written graph, in the same order.

        Raise FormatError with the name of the operator or tensor that differs.
        """
        graph, position = made.graph, {name: p for p, name in made.assembly.name_of.items()}
        order = {name: k for k, name in enumerate(graph.order or ())}
        found = [
            (op.type, frozenset(position[t] for t in op.inputs), tuple(position[t] for t in op.outputs))
            for op in sorted(graph.ops, key=lambda op: order[op.name])
            if op.name in made.assembly.position_of
        ]
        if found != self._expected:
            wrong = next((f[0] for f, w in zip(found, self._expected, strict=False) if f != w), "an op more or less")
            raise FormatError(f"the new model is read as another graph: {wrong}; nothing is written")
        for p, name in made.assembly.name_of.items():
            wanted = self._shape.get(p) or self._tables.tensors[p].shape
            if made.tables[0].tensors[p].shape != wanted:
                raise FormatError(f"tensor {name!r} would have another shape: nothing is written")
        entries = made.tables[0].tensors
        if any(entries[p].data != entries[p].bytes() for p in (*self._slices.values(), *self._no_bias.values())):
            raise FormatError("the new model is read with other weights: nothing is written")
        if made.tables[0].outputs != self._tables.outputs or made.tables[0].inputs != self._tables.inputs:
            raise FormatError("the new model is read with other outputs: nothing is written")
