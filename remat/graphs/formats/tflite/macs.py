"""Costs of TensorFlow Lite ops in multiply-accumulates; ops without products cost one per element they process."""

from __future__ import annotations

from math import prod

from remat.errors import FormatError
from remat.graphs.formats.tflite.tables import OperatorEntry, TensorEntry

_REDUCTIONS = frozenset({
    "MEAN", "SUM", "REDUCE_PROD", "REDUCE_MAX", "REDUCE_MIN", "REDUCE_ANY", "REDUCE_ALL", "ARG_MAX", "ARG_MIN", "ADD_N",
    "SOFTMAX", "LOG_SOFTMAX", "TOPK_V2",
})  # fmt: skip
#: Layers whose weight matrices multiply each step of each sequence.
_RECURRENT = frozenset({
    "LSTM", "RNN", "SVDF", "UNIDIRECTIONAL_SEQUENCE_LSTM", "UNIDIRECTIONAL_SEQUENCE_RNN",
    "BIDIRECTIONAL_SEQUENCE_LSTM", "BIDIRECTIONAL_SEQUENCE_RNN",
})  # fmt: skip


def products(operator: OperatorEntry, tensors: tuple[TensorEntry, ...]) -> int | None:
    """Return the multiply-accumulates of a matrix product or a convolution; None for other ops.

    Raise FormatError if its tensors do not match the op.
    """
    kind = operator.kind
    inputs = [tensors[position].shape if position >= 0 else () for position in operator.inputs]
    try:
        written = prod(tensors[operator.outputs[0]].shape) if operator.outputs else 0
        if kind in ("CONV_2D", "FULLY_CONNECTED"):  # axes of weights: outputs first
            return written * prod(inputs[1][1:])
        if kind == "DEPTHWISE_CONV_2D":
            return written * inputs[1][1] * inputs[1][2]
        if kind == "CONV_3D":
            return written * prod(inputs[1][:-1])
        if kind in ("CONV_3D_TRANSPOSE", "TRANSPOSE_CONV"):
            return prod(inputs[2]) * prod(inputs[1][:-1])
        if kind == "BATCH_MATMUL":
            return written * inputs[0][-2 if operator.options.get("AdjX") else -1]
        if kind in _RECURRENT:
            batch = inputs[0][:-1]
            weights = [t for t in operator.inputs[1:] if t >= 0 and tensors[t].data and len(tensors[t].shape) == 2]
            return prod(batch) * sum(tensors[position].elements for position in weights)
    except IndexError:
        raise FormatError(f"its tensors are not those of {kind}") from None
    return None


def cost(operator: OperatorEntry, tensors: tuple[TensorEntry, ...]) -> int:
    """Return the cost of an op: products, elements under a pooling's windows, or elements read or written."""
    found = products(operator, tensors)
    if found is not None:
        return found
    written = sum(tensors[position].elements for position in operator.outputs if position >= 0)
    if "FilterHeight" in operator.options:
        return written * max(operator.options["FilterHeight"], 1) * max(operator.options["FilterWidth"], 1)
    if operator.kind in _REDUCTIONS:
        read = sum(tensors[position].elements for position in operator.inputs if position >= 0)
        return max(read, written)
    return written
