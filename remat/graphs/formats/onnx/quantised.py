"""Quantised ops of ONNX Runtime (domain ``com.microsoft``): types of their outputs, by rules of ONNX's own ops.

Source: onnxruntime, ``docs/ContribOperators.md``. :mod:`onnxruntime.quantization` and its optimiser write these ops.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from remat.graphs.formats.onnx.network import Node
from remat.graphs.formats.onnx.values import Value

DOMAIN = "com.microsoft"
#: By op: ONNX's op with the same shapes, its inputs as slices of the inputs, and the input with the type of the output.
RULES: Mapping[str, tuple[str, tuple[slice, ...], int]] = {
    "QuantizeLinear": ("Identity", (slice(0, 1),), 2),
    "DequantizeLinear": ("Identity", (slice(0, 1),), 1),
    "QLinearAdd": ("Add", (slice(0, 1), slice(3, 4)), 0),
    "QLinearMul": ("Mul", (slice(0, 1), slice(3, 4)), 0),
    "QLinearConcat": ("Concat", (slice(2, None, 3),), 1),
    "QLinearSigmoid": ("Sigmoid", (slice(0, 1),), 0),
    "QLinearLeakyRelu": ("LeakyRelu", (slice(0, 1),), 0),
    "QLinearSoftmax": ("Softmax", (slice(0, 1),), 0),
    "QLinearAveragePool": ("AveragePool", (slice(0, 1),), 0),
    "QLinearGlobalAveragePool": ("GlobalAveragePool", (slice(0, 1),), 0),
    "QLinearReduceMean": ("ReduceMean", (slice(0, 1),), 0),
    "QGemm": ("Gemm", (slice(0, 1), slice(3, 4)), 8),
}
#: Version of ONNX's ops, whose axes are attributes, as those of the quantised ops are.
VERSION = 13
#: Attributes that ONNX's op does not have.
_OTHERS = frozenset({"channels_last", "opset"})


def output_types(node: Node, values: Mapping[str, Value]) -> dict[str, Any]:
    """Return the ``TypeProto`` of each output of a quantised op; empty without a rule, or with channels last.

    The rules run with elements of float32, since some refuse integers. Without the zero point of its output, an op
    writes the type of its scales.
    """
    import onnx

    rule = RULES.get(node.proto.op_type) if node.proto.domain == DOMAIN else None
    if rule is None or node.attributes.get("channels_last"):
        return {}
    kind, slices, typed = rule
    reads = [name for each in slices for name in node.inputs[each]]
    typed = typed if typed < len(node.inputs) and node.inputs[typed] else 1
    if not all(reads) or typed >= len(node.inputs):
        return {}
    proto = onnx.NodeProto(op_type=kind, input=reads, output=node.outputs)
    proto.attribute.extend(each for each in node.proto.attribute if each.name not in _OTHERS)
    make = onnx.helper.make_tensor_type_proto
    types: dict[str, Any] = onnx.shape_inference.infer_node_outputs(
        onnx.defs.get_schema(kind, VERSION),
        proto,
        {name: make(onnx.TensorProto.FLOAT, values[name].shape) for name in reads},
        opset_imports=[onnx.helper.make_opsetid("", VERSION)],
    )
    for type_ in types.values():
        type_.tensor_type.elem_type = values[node.inputs[typed]].type.tensor_type.elem_type
    return types
