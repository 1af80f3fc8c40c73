"""Costs of ONNX ops in FLOPs: a multiply-add counts two, a moved element one.

* Products (convolutions, matrix products, recurrent layers, attention): 2 per multiply-add, plus the elementwise
  operations that follow.
* Pooling: one per element of a window; reductions: one per element read.
* Normalisation and softmax: as many passes over their input as their formulas have.
* Other ops, including data movement: one per element written. A free op could be recomputed without limit, so only
  views (:mod:`remat.graphs.formats.onnx.assembly`) are free.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

from remat.errors import FormatError
from remat.graphs.formats.onnx.network import Network, Node
from remat.runtime.text import short

Shape = tuple[int, ...]

#: Operations per element read, for normalisations and softmax.
PASSES = {
    "BatchNormalization": 2,  # scale, shift; more in training, see `_batch_normalization`
    "InstanceNormalization": 7,  # mean, difference, square, mean, quotient, scale, shift
    "GroupNormalization": 7,
    "LayerNormalization": 7,
    "MeanVarianceNormalization": 5,
    "RMSNormalization": 4,  # square, mean, quotient, scale
    "LpNormalization": 3,
    "LRN": 5,
    "Softmax": 5,  # maximum, difference, exponential, sum, quotient
    "LogSoftmax": 5,
    "Hardmax": 2,
    "SoftmaxCrossEntropyLoss": 5,
    "NegativeLogLikelihoodLoss": 1,
    "com.microsoft.SkipLayerNormalization": 8,
    "com.microsoft.SimplifiedLayerNormalization": 4,
    "com.microsoft.SkipSimplifiedLayerNormalization": 5,
}
_ONE_PASS = frozenset({
    "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean", "ReduceMin",
    "ReduceProd", "ReduceSum", "ReduceSumSquare", "ArgMax", "ArgMin", "GlobalAveragePool", "GlobalMaxPool",
    "GlobalLpPool", "TopK", "CumSum", "CumProd", "Mean", "Sum", "Max", "Min", "NonZero", "Unique", "Det",
})  # fmt: skip
_WINDOWS = frozenset({"AveragePool", "MaxPool", "LpPool"})


class Costs:
    """Costs of the nodes of a network; `unknown` collects the types of foreign domains, which have no formula."""

    def __init__(self, network: Network) -> None:
        self._values = network.values
        self._content = network.content
        self.unknown: set[str] = set()

    def cost(self, node: Node) -> int:
        """Return the FLOPs of a node.

        Raise FormatError, naming the node, if its attributes do not match its shapes.
        """
        written = sum(self._values[name].elements for name in node.outputs if name)
        inputs = [self._values[name].shape if name else None for name in node.inputs]
        outputs = [self._values[name].shape if name else None for name in node.outputs]
        try:
            product = _PRODUCTS.get(node.type.removeprefix("com.microsoft."))
            if product is not None:
                return max(product(node.attributes, inputs, outputs), 0)
            read = sum(prod(shape) for shape in inputs if shape is not None)
            first = prod(inputs[0]) if inputs and inputs[0] is not None else 0
            if node.type in PASSES:
                passes = PASSES[node.type]
                if node.type == "BatchNormalization" and node.attributes.get("training_mode"):
                    passes = 7
                return passes * first
            if node.type in _ONE_PASS:
                return max(read, written)
            if node.type in _WINDOWS:
                return written * prod(node.attributes.get("kernel_shape", ()))
        except (IndexError, TypeError, ValueError, ZeroDivisionError, KeyError, AttributeError):
            raise FormatError(
                f"node {short(node.name)} ({node.type}): its attributes and the shapes that it reads do not fit"
            ) from None
        if "." in node.type:
            self.unknown.add(node.type)
        return written


Inputs = Sequence[Shape | None]
Product = Callable[[dict[str, Any], Inputs, Inputs], int]


def _shape(shapes: Inputs, position: int) -> Shape:
    shape = shapes[position]
    if shape is None:
        raise ValueError(position)
    return shape


def _has(shapes: Inputs, position: int) -> bool:
    return len(shapes) > position and shapes[position] is not None


def _conv(weight: int, bias: int) -> Product:
    def flops(attributes: dict[str, Any], inputs: Inputs, outputs: Inputs) -> int:
        out = _shape(outputs, 0)
        return prod(out) * (2 * prod(_shape(inputs, weight)[1:]) + _has(inputs, bias))

    return flops


def _deform_conv(attributes: dict[str, Any], inputs: Inputs, outputs: Inputs) -> int:
    # each value under the kernel is interpolated between four neighbours
    window = prod(_shape(inputs, 1)[2:])
    return prod(_shape(outputs, 0)) * (2 * prod(_shape(inputs, 1)[1:]) + _has(inputs, 3)) + 8 * window * prod(
        _shape(inputs, 0)[:2]
    ) * prod(_shape(outputs, 0)[2:])


def _matmul(attributes: dict[str, Any], inputs: Inputs, outputs: Inputs) -> int:
    shape = _shape(inputs, 0)
    inner = shape[-2] if attributes.get("transA") and len(shape) > 1 else shape[-1]
    return 2 * inner * prod(_shape(outputs, 0))


def _gemm(attributes: dict[str, Any], inputs: Inputs, outputs: Inputs) -> int:
    inner = _shape(inputs, 0)[0 if attributes.get("transA") else 1]
    return prod(_shape(outputs, 0)) * (2 * inner + _has(inputs, 2))


def _einsum(attributes: dict[str, Any], inputs: Inputs, outputs: Inputs) -> int:
    equation = attributes["equation"].decode("ascii").replace(" ", "")
    terms = equation.partition("->")[0].split(",")
    sizes: dict[str, int] = {}
    for term, shape in zip(terms, (_shape(inputs, each) for each in range(len(inputs))), strict=True):
        before, dots, after = term.partition("...")
        hidden = len(shape) - len(before) - len(after)
        if hidden < 0 or (hidden and not dots):
            raise ValueError(term)
        axes = [*before, *(f".{hidden - each}" for each in range(hidden)), *after]
        for axis, size in zip(axes, shape, strict=True):
            sizes[axis] = max(sizes.get(axis, 1), size)
    return max(len(terms), 1) * prod(sizes.values())


def _recurrent(gates: int) -> Product:
    def flops(attributes: dict[str, Any], inputs: Inputs, outputs: Inputs) -> int:
        x, weights, recurrence = (_shape(inputs, each) for each in range(3))
        steps = x[0] * x[1] * weights[0]  # of the sequence and the batch, per direction
        hidden = recurrence[2]
        # gates from input and state, biases and activation of each gate, and the update of the state
        return steps * gates * hidden * (2 * (weights[2] + hidden) + 3) + steps * 4 * hidden * (gates > 1)

    return flops


def _attention(attributes: dict[str, Any], inputs: Inputs, outputs: Inputs) -> int:
    query, key, value = (_shape(inputs, each) for each in range(3))
    out = _shape(outputs, 0)
    if len(query) == 4:
        batch, heads, length = query[:3]
        keys, width, value_width = key[2], query[3], value[3]
    else:
        batch, length, heads = query[0], query[1], attributes.get("q_num_heads") or attributes["num_heads"]
        keys, width = key[1], query[2] // heads
        value_width = out[2] // heads
    if _has(inputs, 4):  # keys in the cache
        keys += _shape(inputs, 4)[2]
    return batch * heads * length * keys * (2 * (width + value_width) + PASSES["Softmax"])


def _fourier(attributes: dict[str, Any], inputs: Inputs, outputs: Inputs) -> int:
    elements = prod(_shape(outputs, 0))
    longest = max(_shape(inputs, 0), default=1)
    return 5 * elements * max(longest.bit_length() - 1, 1)


def _interpolated(attributes: dict[str, Any], inputs: Inputs, outputs: Inputs) -> int:
    neighbours = {b"linear": 4, b"bilinear": 4, b"cubic": 16, b"bicubic": 16}.get(attributes.get("mode", b""), 1)
    return prod(_shape(outputs, 0)) * (2 * neighbours if neighbours > 1 else 1)


_PRODUCTS: dict[str, Product] = {
    **dict.fromkeys(("Conv", "FusedConv"), _conv(1, 2)),
    "ConvInteger": _conv(1, 99),
    "QLinearConv": _conv(3, 8),
    "ConvTranspose": lambda _, inputs, outputs: (
        2 * prod(_shape(inputs, 0)) * prod(_shape(inputs, 1)[1:]) + _has(inputs, 2) * prod(_shape(outputs, 0))
    ),
    "DeformConv": _deform_conv,
    **dict.fromkeys(("MatMul", "FusedMatMul", "TransposeMatMul", "MatMulInteger", "QLinearMatMul"), _matmul),
    **dict.fromkeys(("Gemm", "FusedGemm"), _gemm),
    "Einsum": _einsum,
    "LSTM": _recurrent(4),
    "GRU": _recurrent(3),
    "RNN": _recurrent(1),
    **dict.fromkeys(("Attention", "MultiHeadAttention"), _attention),
    **dict.fromkeys(("DFT", "STFT"), _fourier),
    "RoiAlign": lambda given, _, outputs: 8 * prod(_shape(outputs, 0)) * (given.get("sampling_ratio", 0) or 2) ** 2,
    **dict.fromkeys(("Resize", "Upsample", "GridSample"), _interpolated),
}
