"""Small TensorFlow Lite models, written with the package's own builder functions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

tflite = pytest.importorskip("tflite")
flatbuffers = pytest.importorskip("flatbuffers")

OPS = tflite.BuiltinOperator
#: Values of a table of options, by name.
Fields = dict[str, int | str | tuple[int, ...]]


@dataclass
class T:
    """Tensor; `data` is its number of bytes in the file, or the bytes (``b""``: stored, and empty)."""

    name: str
    shape: tuple[int, ...]
    kind: int = tflite.TensorType.INT8
    data: int | bytes = 0
    variable: bool = False
    signature: tuple[int, ...] = ()
    scales: tuple[float, ...] = ()
    """Scales of quantisation, one for each slice along `axis`; all zero points are 0."""
    axis: int = 0


@dataclass
class O:  # noqa: E742
    """Op; `window` is that of a pooling, `options` the name of their table and its fields."""

    kind: int
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    window: tuple[int, int] | None = None
    custom: str = ""
    options: tuple[str, Fields] | None = None
    custom_options: bytes = b""


@dataclass
class G:
    """Subgraph."""

    tensors: list[T]
    ops: list[O]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    name: str = "main"


def model(*graphs: G, new_field_only: bool = False) -> bytes:
    """Return the bytes of the file."""
    b = flatbuffers.Builder(1024)
    buffers = [_table(b, "Buffer")]
    codes: dict[tuple[int, str], int] = {}
    tables = []
    for graph in graphs:
        tensors = []
        for tensor in graph.tensors:
            stored = bool(tensor.data) or tensor.data == b""
            if stored:
                buffers.append(_table(b, "Buffer", Data=b.CreateByteVector(bytes(tensor.data))))
            fields = {"ShapeSignature": _ints(b, tensor.signature)} if tensor.signature else {}
            fields |= {"Quantization": _quantization(b, tensor)} if tensor.scales else {}
            tensors.append(
                _table(
                    b, "Tensor", Shape=_ints(b, tensor.shape), Type=tensor.kind, Name=b.CreateSharedString(tensor.name),
                    Buffer=len(buffers) - 1 if stored else 0, IsVariable=tensor.variable, **fields,
                )
            )  # fmt: skip
        ops = [_op(b, op, codes.setdefault((op.kind, op.custom), len(codes))) for op in graph.ops]
        tables.append(
            _table(
                b, "SubGraph", Tensors=_tables(b, tensors), Inputs=_ints(b, graph.inputs),
                Outputs=_ints(b, graph.outputs), Operators=_tables(b, ops), Name=b.CreateString(graph.name),
            )
        )  # fmt: skip
    codes_table = _tables(b, [_code(b, *each, new_field_only) for each in codes])
    subgraphs, buffers_table = _tables(b, tables), _tables(b, buffers)
    b.Finish(
        _table(b, "Model", Version=3, OperatorCodes=codes_table, Subgraphs=subgraphs, Buffers=buffers_table), b"TFL3"
    )
    return bytes(b.Output())


def _table(b: Any, kind: str, **fields: Any) -> int:
    """Write a table; its vectors and strings must exist already."""
    getattr(tflite, f"{kind}Start")(b)
    for name, value in fields.items():
        getattr(tflite, f"{kind}Add{name}")(b, value)
    return getattr(tflite, f"{kind}End")(b)


def _tables(b: Any, offsets: list[int]) -> int:
    b.StartVector(4, len(offsets), 4)
    for offset in reversed(offsets):
        b.PrependUOffsetTRelative(offset)
    return b.EndVector()


def _ints(b: Any, numbers: tuple[int, ...]) -> int:
    b.StartVector(4, len(numbers), 4)
    for number in reversed(numbers):
        b.PrependInt32(number)
    return b.EndVector()


def _quantization(b: Any, tensor: T) -> int:
    zeros = b.CreateNumpyVector(np.zeros(len(tensor.scales), dtype=np.int64))
    scales = b.CreateNumpyVector(np.array(tensor.scales, dtype=np.float32))
    return _table(b, "QuantizationParameters", Scale=scales, ZeroPoint=zeros, QuantizedDimension=tensor.axis)


def _code(b: Any, kind: int, custom: str, new_field_only: bool) -> int:
    fields = {} if new_field_only else {"DeprecatedBuiltinCode": min(kind, 127)}
    fields |= {"BuiltinCode": kind} if new_field_only or kind > 127 else {}
    return _table(b, "OperatorCode", CustomCode=b.CreateString(custom), **fields)


def _op(b: Any, op: O, code: int) -> int:
    fields = {"OpcodeIndex": code, "Inputs": _ints(b, op.inputs), "Outputs": _ints(b, op.outputs)}
    options = op.options
    if op.window:
        options = ("Pool2DOptions", {"FilterHeight": op.window[0], "FilterWidth": op.window[1]})
    if options:
        values = {name: _value(b, value) for name, value in options[1].items()}
        fields |= {
            "BuiltinOptionsType": getattr(tflite.BuiltinOptions, options[0]),
            "BuiltinOptions": _table(b, options[0], **values),
        }
    if op.custom_options:
        fields["CustomOptions"] = b.CreateByteVector(op.custom_options)
    return _table(b, "Operator", **fields)


def _value(b: Any, value: int | str | tuple[int, ...]) -> int:
    if isinstance(value, str):
        return b.CreateString(value)
    return _ints(b, value) if isinstance(value, tuple) else value


def keyword_spotting() -> G:
    """Return a separable convolution, a pooling, a reshape and a fully connected layer."""
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
