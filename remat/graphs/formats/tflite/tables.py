"""Tables of a TensorFlow Lite model, checked: offsets stay in the file, without loops or unbounded growth."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

from remat.errors import FormatError
from remat.io.limits import draw
from remat.runtime.text import clipped, printable, short

#: Bits of an element by the names of ``TensorType``; text and variants have no fixed size.
BITS = {
    "FLOAT32": 32, "FLOAT16": 16, "INT32": 32, "UINT8": 8, "INT64": 64, "BOOL": 8, "INT16": 16, "COMPLEX64": 64,
    "INT8": 8, "FLOAT64": 64, "COMPLEX128": 128, "UINT64": 64, "UINT32": 32, "UINT16": 16, "INT4": 4, "BFLOAT16": 16,
    "INT2": 2, "UINT4": 4, "FLOAT8_E4M3FN": 8, "FLOAT8_E5M2": 8,
    "RESOURCE": 0,  # handles lie outside the arena
}  # fmt: skip
#: Types that the package does not name yet (``schema.fbs`` of LiteRT 2.3).
_NEW_TYPES = {19: "INT2", 20: "UINT4", 21: "FLOAT8_E4M3FN", 22: "FLOAT8_E5M2"}
#: Most tensors, ops, buffers or subgraphs: tables may be shared, so that a small file could have billions.
MAX_COUNT = 300_000
#: Most inputs and outputs of all ops together, and most axes of all tensors.
MAX_ENTRIES = 4_000_000
MAX_NAME = 4096
#: Bytes for each entry, and for each table.
_ENTRY_MEMORY, _TABLE_MEMORY = 40, 1500
_SLIDING = ("Padding", "StrideH", "StrideW", "FusedActivationFunction")
_DILATED = (*_SLIDING, "DilationHFactor", "DilationWFactor")
#: Tables of options, and the fields of each that describe an op.
_OPTIONS = {
    "Conv2DOptions": _DILATED, "DepthwiseConv2DOptions": (*_DILATED, "DepthMultiplier"),
    "Pool2DOptions": (*_SLIDING, "FilterHeight", "FilterWidth"),
    "FullyConnectedOptions": ("FusedActivationFunction", "WeightsFormat"),
    "ConcatenationOptions": ("FusedActivationFunction", "Axis"), "SoftmaxOptions": ("Beta",),
    "LeakyReluOptions": ("Alpha",), "GeluOptions": ("Approximate",), "BatchMatMulOptions": ("AdjX",),
    **dict.fromkeys(("AddOptions", "SubOptions", "MulOptions", "DivOptions"), ("FusedActivationFunction",)),
    "IfOptions": ("ThenSubgraphIndex", "ElseSubgraphIndex"), "WhileOptions": ("CondSubgraphIndex", "BodySubgraphIndex"),
    "CallOptions": ("Subgraph",), "CallOnceOptions": ("InitSubgraphIndex",),
}  # fmt: skip
#: Options that name subgraphs.
_CALLS = {"IF": "IfOptions", "WHILE": "WhileOptions", "CALL": "CallOptions", "CALL_ONCE": "CallOnceOptions"}
#: Position of the newer field in the table of an operator code.
_BUILTIN_CODE = 10
_TROUBLE = (struct.error, IndexError, ValueError, TypeError, OverflowError, AttributeError, KeyError)


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """Tensor; `label` names it in messages, `data` is the number of its bytes in the file (0 if it is computed)."""

    name: str
    label: str
    kind: str
    shape: tuple[int, ...]
    is_open: bool
    is_variable: bool
    data: int
    is_sparse: bool = False

    @property
    def elements(self) -> int:
        """Number of elements."""
        return prod(self.shape)

    @property
    def is_apart(self) -> bool:
        """True for constants, variables and handles of resources, which have no place in LiteRT's arena."""
        return bool(self.data or self.is_variable or self.kind == "RESOURCE")

    def bytes(self, *, packed: bool = True) -> int:
        """Return its size in bytes; elements of less than a byte are packed, and the last byte is rounded up.

        `packed=False`: such elements have a byte each, as in the arena of TensorFlow Lite Micro (``memory_helpers.cc``,
        ``TfLiteTypeSizeOf``). Raise FormatError for a tensor whose elements or shape have no fixed size.
        """
        if self.kind not in BITS:
            raise FormatError(f"{self.label} has elements of type {self.kind.lower()}, which have no size")
        if min(self.shape, default=0) < 0:
            raise FormatError(
                f"{self.label} has no fixed shape: {list(self.shape)}; convert the model with fixed shapes"
            )
        bits = BITS[self.kind]
        return -(-self.elements * (bits if packed or not bits else max(bits, 8)) // 8)


@dataclass(frozen=True, slots=True)
class OperatorEntry:
    """Op: its type, the positions of its tensors (-1: absent), and the options that describe it."""

    kind: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    options: Mapping[str, Any]
    calls: tuple[int, ...] = ()
    """Subgraphs that the op runs."""


@dataclass(frozen=True)
class ModelTables:
    """Requested subgraph, and the names of all subgraphs."""

    name: str
    subgraphs: tuple[str, ...]
    tensors: tuple[TensorEntry, ...]
    operators: tuple[OperatorEntry, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    counts: tuple[int, ...]
    """Number of tensors of each subgraph."""
    position: int
    """Number of this subgraph."""


def model_tables(data: bytes, subgraph: int | str) -> ModelTables:
    """Return the tables of a subgraph, given by its position (0 is the main one) or name.

    Raise FormatError if the package is missing, offsets lead outside the file, or there is no such subgraph.
    """
    try:
        import tflite
    except ImportError:
        raise FormatError(
            "reading TensorFlow Lite models needs the package tflite: pip install 'remat[tflite]'"
        ) from None
    try:
        return _Reader(tflite, data).read(subgraph)
    except _TROUBLE:
        raise FormatError(
            f"no complete TensorFlow Lite model: its tables do not fit its {len(data):,} bytes; copy or convert the "
            "model again"
        ) from None


class _Reader:
    def __init__(self, tflite: Any, data: bytes) -> None:
        from flatbuffers.number_types import Int32Flags

        self._flags = Int32Flags
        self._tflite = tflite
        self._model = tflite.Model.GetRootAs(data, 0)
        self._size = len(data)
        self._entries = 0
        known = {number: name for name, number in vars(tflite.TensorType).items() if not name.startswith("_")}
        self._types = _NEW_TYPES | known
        self._option_types = {number: name for name, number in vars(tflite.BuiltinOptions).items() if name[0] != "_"}
        self._ops = {number: name for name, number in vars(tflite.BuiltinOperator).items() if not name.startswith("_")}

    def read(self, subgraph: int | str) -> ModelTables:
        """Return the tables."""
        model = self._model
        graphs = self._all("subgraphs", model.SubgraphsLength(), model.Subgraphs)
        names = tuple(self._text(graph.Name()) for graph in graphs)
        position = self._chosen(subgraph, names)
        graph = graphs[position]
        codes = [
            self._code(code) for code in self._all("operator codes", model.OperatorCodesLength(), model.OperatorCodes)
        ]
        stored = self._all("buffers", model.BuffersLength(), model.Buffers)
        # bytes of each buffer, which lies in the tables or, for files of gigabytes, after them
        buffers = [int(each.Size() if each.Offset() > 1 else each.DataLength()) for each in stored]
        tensors = self._all("tensors", graph.TensorsLength(), graph.Tensors)
        operators = self._all("ops", graph.OperatorsLength(), graph.Operators)
        count = len(tensors)
        return ModelTables(
            self._text(graph.Name()) or self._text(model.Description()),
            names,
            tuple(self._tensor(tensor, position, buffers) for position, tensor in enumerate(tensors)),
            tuple(self._operator(each, k, codes, count, len(graphs)) for k, each in enumerate(operators)),
            self._positions(graph.InputsLength(), graph.InputsAsNumpy, count, "the inputs of the graph"),
            self._positions(graph.OutputsLength(), graph.OutputsAsNumpy, count, "the outputs of the graph"),
            tuple(each.TensorsLength() for each in graphs),
            position,
        )

    def _chosen(self, subgraph: int | str, names: tuple[str, ...]) -> int:
        text = str(subgraph)
        if text in names:
            return names.index(text)
        if text.isascii() and text.isdigit() and len(text) < 9 and int(text) < len(names):
            return int(text)
        known = clipped(", ".join(f"{number} {name!r}" for number, name in enumerate(names)), 200) or "none"
        raise FormatError(f"no subgraph {short(text)} (there are {known})", "subgraph")

    def _all(self, what: str, count: int, entry: Callable[[int], Any]) -> list[Any]:
        """Return all entries of a vector of tables, four bytes each."""
        if count > MAX_COUNT or 4 * count > self._size:
            raise FormatError(f"{count:,} {what}, more than the file can have or the {MAX_COUNT:,} that are read")
        draw(_TABLE_MEMORY * count)
        return [entry(position) for position in range(count)]

    def _positions(self, count: int, entries: Callable[[], Any], limit: int, of: str) -> tuple[int, ...]:
        """Return a vector of positions of tensors; -1 means none."""
        result = self._numbers(count, entries, of)
        wrong = [position for position in result if not -1 <= position < limit]
        if wrong:
            raise FormatError(f"{of}: there is no tensor {wrong[0]:,}")
        return result

    def _numbers(self, count: int, entries: Callable[[], Any], of: str) -> tuple[int, ...]:
        """Return the `count` numbers of a vector; vectors may be shared, so that few bytes stand for many numbers."""
        draw(_ENTRY_MEMORY * count)
        self._entries += count
        if 4 * count > self._size or self._entries > MAX_ENTRIES:
            raise FormatError(
                f"{of}: {count:,} entries, more than the file can have or the {MAX_ENTRIES:,} that are read"
            )
        return tuple(entries().tolist()) if count else ()

    def _text(self, text: bytes | None) -> str:
        if text is not None and len(text) > MAX_NAME:
            raise FormatError(f"a name of {len(text):,} bytes, more than {MAX_NAME:,}")
        draw(4 * len(text or b""))
        return printable((text or b"").decode("utf-8", "replace"))

    def _code(self, code: Any) -> str:
        """Return the type of an op: the larger of two fields, of which old writers set one and new writers both.

        The package's ``BuiltinCode()`` returns the old field if the new one is below 127.
        """
        table = code._tab
        place = table.Offset(_BUILTIN_CODE)
        new = table.Get(self._flags, place + table.Pos) if place else 0
        number = max(new, code.DeprecatedBuiltinCode())
        if number == self._tflite.BuiltinOperator.CUSTOM:
            return f"custom.{self._text(code.CustomCode())}"
        return self._ops.get(number, f"operator {number}")

    def _tensor(self, tensor: Any, position: int, buffers: list[int]) -> TensorEntry:
        name = self._text(tensor.Name())
        label = f"tensor {position}" + (f" ({short(name)})" if name else "")
        axes, signature = tensor.ShapeLength(), tensor.ShapeSignatureLength()
        if tensor.Buffer() >= len(buffers):
            raise FormatError(f"{label}: there is no buffer {tensor.Buffer():,}")
        return TensorEntry(
            name,
            label,
            self._types.get(tensor.Type(), f"type {tensor.Type()}"),
            self._numbers(axes, tensor.ShapeAsNumpy, label),
            min(self._numbers(signature, tensor.ShapeSignatureAsNumpy, label), default=0) < 0,
            bool(tensor.IsVariable()),
            buffers[tensor.Buffer()],
            tensor.Sparsity() is not None,
        )

    def _operator(self, operator: Any, position: int, codes: list[str], tensors: int, subgraphs: int) -> OperatorEntry:
        if operator.OpcodeIndex() >= len(codes):
            raise FormatError(f"op {position}: there is no operator code {operator.OpcodeIndex():,}")
        kind = codes[operator.OpcodeIndex()]
        of = f"op {position} ({kind})"
        options = self._options(operator)
        calls = tuple(int(options[name]) for name in _OPTIONS.get(_CALLS.get(kind, ""), ()) if name in options)
        if wrong := [k for k in calls if not 0 <= k < subgraphs]:
            raise FormatError(f"{of} runs subgraph {wrong[0]}, which does not exist", "subgraph")
        return OperatorEntry(
            kind,
            self._positions(operator.InputsLength(), operator.InputsAsNumpy, tensors, of),
            self._positions(operator.OutputsLength(), operator.OutputsAsNumpy, tensors, of),
            options,
            calls,
        )

    def _options(self, operator: Any) -> dict[str, Any]:
        """Return the options that describe an op; empty for types whose options are not needed."""
        table, name = operator.BuiltinOptions(), self._option_types.get(operator.BuiltinOptionsType(), "")
        if table is None or name not in _OPTIONS:
            return {}
        options = getattr(self._tflite, name)()
        options.Init(table.Bytes, table.Pos)
        return {field: getattr(options, field)() for field in _OPTIONS[name]}
