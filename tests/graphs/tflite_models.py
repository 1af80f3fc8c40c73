"""Small TensorFlow Lite models, written table by table with the package's own functions."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

tflite = pytest.importorskip("tflite")
flatbuffers = pytest.importorskip("flatbuffers")

OPS = tflite.BuiltinOperator


@dataclass
class T:
    """A tensor: `data` is the number of its bytes in the file."""

    name: str
    shape: tuple[int, ...]
    kind: int = tflite.TensorType.INT8
    data: int = 0
    variable: bool = False
    signature: tuple[int, ...] = ()


@dataclass
class O:  # noqa: E742
    """An op: its type (an old one is written into the old field), its tensors, and the window of a pooling."""

    kind: int
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    window: tuple[int, int] | None = None
    custom: str = ""


@dataclass
class G:
    """A subgraph."""

    tensors: list[T]
    ops: list[O]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    name: str = "main"


def model(*graphs: G, new_field_only: bool = False) -> bytes:
    """The file."""
    b = flatbuffers.Builder(1024)
    buffers = [_buffer(b, 0)]
    codes: dict[tuple[int, str], int] = {}
    tables = []
    for graph in graphs:
        tensors = []
        for tensor in graph.tensors:
            if tensor.data:
                buffers.append(_buffer(b, tensor.data))
            tensors.append(_tensor(b, tensor, len(buffers) - 1 if tensor.data else 0))
        ops = [_op(b, op, codes.setdefault((op.kind, op.custom), len(codes))) for op in graph.ops]
        name = b.CreateString(graph.name)
        parts = [_tables(b, tensors), _ints(b, graph.inputs), _ints(b, graph.outputs), _tables(b, ops)]
        tflite.SubGraphStart(b)
        tflite.SubGraphAddTensors(b, parts[0])
        tflite.SubGraphAddInputs(b, parts[1])
        tflite.SubGraphAddOutputs(b, parts[2])
        tflite.SubGraphAddOperators(b, parts[3])
        tflite.SubGraphAddName(b, name)
        tables.append(tflite.SubGraphEnd(b))
    parts = [_tables(b, [_code(b, *each, new_field_only) for each in codes]), _tables(b, tables), _tables(b, buffers)]
    tflite.ModelStart(b)
    tflite.ModelAddVersion(b, 3)
    tflite.ModelAddOperatorCodes(b, parts[0])
    tflite.ModelAddSubgraphs(b, parts[1])
    tflite.ModelAddBuffers(b, parts[2])
    b.Finish(tflite.ModelEnd(b), b"TFL3")
    return bytes(b.Output())


def _tables(b, offsets):
    b.StartVector(4, len(offsets), 4)
    for offset in reversed(offsets):
        b.PrependUOffsetTRelative(offset)
    return b.EndVector()


def _ints(b, numbers):
    b.StartVector(4, len(numbers), 4)
    for number in reversed(numbers):
        b.PrependInt32(number)
    return b.EndVector()


def _buffer(b, size):
    data = b.CreateByteVector(bytes(size)) if size else None
    tflite.BufferStart(b)
    if data is not None:
        tflite.BufferAddData(b, data)
    return tflite.BufferEnd(b)


def _tensor(b, tensor, buffer):
    name, shape, signature = b.CreateString(tensor.name), _ints(b, tensor.shape), _ints(b, tensor.signature)
    tflite.TensorStart(b)
    tflite.TensorAddShape(b, shape)
    tflite.TensorAddType(b, tensor.kind)
    tflite.TensorAddBuffer(b, buffer)
    tflite.TensorAddName(b, name)
    tflite.TensorAddIsVariable(b, tensor.variable)
    if tensor.signature:
        tflite.TensorAddShapeSignature(b, signature)
    return tflite.TensorEnd(b)


def _code(b, kind, custom, new_field_only):
    name = b.CreateString(custom)
    tflite.OperatorCodeStart(b)
    if not new_field_only:
        tflite.OperatorCodeAddDeprecatedBuiltinCode(b, min(kind, 127))
    if new_field_only or kind > 127:
        tflite.OperatorCodeAddBuiltinCode(b, kind)
    tflite.OperatorCodeAddCustomCode(b, name)
    return tflite.OperatorCodeEnd(b)


def _op(b, op, code):
    inputs, outputs = _ints(b, op.inputs), _ints(b, op.outputs)
    if op.window:
        tflite.Pool2DOptionsStart(b)
        tflite.Pool2DOptionsAddFilterHeight(b, op.window[0])
        tflite.Pool2DOptionsAddFilterWidth(b, op.window[1])
        options = tflite.Pool2DOptionsEnd(b)
    tflite.OperatorStart(b)
    tflite.OperatorAddOpcodeIndex(b, code)
    tflite.OperatorAddInputs(b, inputs)
    tflite.OperatorAddOutputs(b, outputs)
    if op.window:
        tflite.OperatorAddBuiltinOptionsType(b, tflite.BuiltinOptions.Pool2DOptions)
        tflite.OperatorAddBuiltinOptions(b, options)
    return tflite.OperatorEnd(b)


def keyword_spotting() -> G:
    """A separable convolution, a pooling, a reshape and a fully connected layer, as on a microcontroller."""
    return G(
        [
            T("serving/x", (1, 8, 8, 4)),
            T("net/block/depthwise;net/block/bias", (1, 8, 8, 4)),
            T("net/block/pointwise", (1, 8, 8, 16)),
            T("net/pool", (1, 1, 1, 16)),
            T("flat", (1, 16)),
            T("y", (1, 10)),
            T("w1", (1, 3, 3, 4), data=36),
            T("w2", (16, 1, 1, 4), data=64),
            T("w3", (10, 16), data=160),
        ],
        [
            O(OPS.DEPTHWISE_CONV_2D, (0, 6, -1), (1,)),
            O(OPS.CONV_2D, (1, 7, -1), (2,)),
            O(OPS.AVERAGE_POOL_2D, (2,), (3,), (8, 8)),
            O(OPS.RESHAPE, (3,), (4,)),
            O(OPS.FULLY_CONNECTED, (4, 8, -1), (5,)),
        ],
        (0,),
        (5,),
    )
