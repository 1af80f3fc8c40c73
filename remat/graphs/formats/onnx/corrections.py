"""Shapes for which ONNX's inference deviates from its operators, or has no rule."""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil, isfinite
from typing import Any

from remat.graphs.formats.onnx.network import Node
from remat.graphs.formats.onnx.values import Value

_POOLINGS = frozenset({"AveragePool", "LpPool", "MaxPool"})


def with_defaults(node: Node) -> Any:
    """Return the ``NodeProto`` for ONNX's rule: ``STFT`` without ``onesided`` means 1, but its rule assumes 0."""
    if node.type != "STFT" or "onesided" in node.attributes:
        return node.proto
    proto = type(node.proto)()
    proto.CopyFrom(node.proto)
    proto.attribute.add(name="onesided", type=2, i=1)
    return proto


def range_length(node: Node, content: Mapping[str, Any]) -> int | None:
    """Return the number of elements of a ``Range`` with known inputs, otherwise None.

    ONNX's rule refuses inputs of shape (1,), which its own functions have.
    """
    found = [content.get(name) for name in node.inputs]
    if node.type != "Range" or len(found) != 3 or any(each is None or each.size != 1 for each in found):
        return None
    start, limit, delta = (each.item() for each in found if each is not None)
    steps = (limit - start) / delta if delta else float("nan")
    return max(ceil(steps), 0) if isfinite(steps) else None


def correct(node: Node, types: Mapping[str, Any], values: Mapping[str, Value]) -> None:
    """Correct the ``TypeProto`` of each output in place.

    * A pooling with ``ceil_mode`` has no window that starts in the padding after the input: older versions of
      ONNX's rule count it.
    * The mask of ``Dropout`` has the shape of its input; older versions of the rule leave it open.
    """
    if node.type in _POOLINGS and node.attributes.get("ceil_mode") and node.inputs[0] in values:
        for name in filter(None, node.outputs):
            _drop_last_windows(node.attributes, types[name].tensor_type.shape.dim, values[node.inputs[0]].shape[2:])
    elif node.type == "Dropout" and len(node.outputs) > 1 and node.outputs[1] in types:
        mask = types[node.outputs[1]].tensor_type
        if not mask.HasField("shape"):
            mask.shape.CopyFrom(values[node.inputs[0]].type.tensor_type.shape)


def _drop_last_windows(attributes: Mapping[str, Any], dims: Any, sizes: tuple[int, ...]) -> None:
    """Decrement output dimensions whose last window starts after the input and the padding before it."""
    count = len(sizes)
    strides = list(attributes.get("strides", [1] * count))
    before = list(attributes.get("pads", [0] * 2 * count))[:count]
    if attributes.get("auto_pad", b"NOTSET") != b"NOTSET" or (len(strides), len(before), len(dims)) != (
        count, count, count + 2,
    ):  # fmt: skip
        return
    for dim, size, stride, pad in zip(dims[2:], sizes, strides, before, strict=True):
        if dim.dim_value > 1 and (dim.dim_value - 1) * stride >= size + pad:
            dim.dim_value -= 1
