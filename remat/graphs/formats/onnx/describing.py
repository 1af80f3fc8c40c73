"""Descriptions of ONNX nodes for rewriting, as far as they are fully known; see ``docs/rewriting.md``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from remat.graphs.formats.onnx.network import Network, Node
from remat.graphs.formats.onnx.shape_inference import is_training_dropout
from remat.graphs.rewriting.annotations import Shape
from remat.graphs.rewriting.descriptions import (
    Description,
    Site,
    Window,
    batch_norm,
    concatenation,
    convolution,
    elementwise,
    global_pooling,
    is_usable,
    linear,
    pooling,
    product,
    same_pads,
    softmax,
    split,
)

#: Element types whose arithmetic is that of real numbers, up to rounding.
REAL = frozenset({"FLOAT", "FLOAT16", "BFLOAT16", "DOUBLE"})
_LAYOUT = "NCHW"


def describe(node: Node, network: Network, root: Callable[[str], str], names: Mapping[str, str]) -> Description | None:
    """Return the description of a node; None if it is not fully known, in which case the node must not be rewritten.

    A node has no description if it is of a foreign domain or has an unexpected attribute. It has none if it reads or
    writes more than real numbers, reads a tensor in another shape than it was written in, or if weights depend on the
    inputs.

    `root` returns the value that a view renames; `names` maps values to tensors of the graph.
    """
    values = network.values
    known = _NODES.get(node.type)
    written = [name for name in node.outputs if name]
    if known is None or node.captured or not written:
        return None
    allowed, function = known
    if not node.attributes.keys() <= allowed:
        return None
    data = [name for name in node.inputs if name and name not in network.constant]
    if any(values[name].dtype not in REAL for name in (*data, *written)):
        return None
    if len({values[name].dtype for name in (*data, *written)}) > 1:
        return None
    if any(values[root(name)].shape != values[name].shape for name in data):
        return None
    if not all(is_usable(values[name].shape) for name in (*data, *written)):
        return None
    inputs = list(node.inputs)
    while inputs and not inputs[-1]:
        inputs.pop()
    site = Site(
        tuple(values[name].shape if name else None for name in inputs),
        tuple(names[root(name)] if name in data else None for name in inputs),
        values[written[0]].shape,
    )
    if node.type == "Split":
        x = site.data(0)
        return None if x is None else split(x, [values[name].shape for name in written], node.attributes.get("axis", 0))
    if len(written) != 1 or not node.outputs[0] or (node.type == "Dropout" and is_training_dropout(node, network)):
        return None
    return function(site, node.attributes)


def _window(site: Site, attributes: Mapping[str, Any], kernel: list[int]) -> Window | None:
    """Return the window of a convolution or a pooling; None if the attributes do not match the kernel."""
    x, count = site.inputs[0], len(kernel)
    if x is None or len(x) != count + 2:
        return None
    stride, dilation = list(attributes.get("strides", [1] * count)), list(attributes.get("dilations", [1] * count))
    pads = list(attributes.get("pads", [0] * 2 * count))
    if (len(stride), len(dilation), len(pads)) != (count, count, 2 * count) or min(*stride, *dilation, *kernel) < 1:
        return None
    match attributes.get("auto_pad", b"NOTSET"):
        case b"NOTSET":
            pairs = list(zip(pads[:count], pads[count:], strict=True))
        case b"VALID":
            pairs = [(0, 0)] * count
        case b"SAME_UPPER" | b"SAME_LOWER" as word:
            pairs = same_pads(x[2:], kernel, stride, dilation, lower=word == b"SAME_LOWER")
        case _:
            return None
    return Window(kernel, stride, dilation, pairs)


def _conv(site: Site, attributes: Mapping[str, Any]) -> Description | None:
    weights = site.constant(1)
    if weights is None or len(weights) < 3 or list(attributes.get("kernel_shape", weights[2:])) != list(weights[2:]):
        return None
    x, window = site.data(0), _window(site, attributes, list(weights[2:]))
    if x is None or window is None or x[1] != weights[1] * attributes.get("group", 1):
        return None
    return convolution(site, window, layout=_LAYOUT, axes=(0, 1))


def _pool(function: str) -> Callable[[Site, Mapping[str, Any]], Description | None]:
    def describe_pool(site: Site, attributes: Mapping[str, Any]) -> Description | None:
        window = _window(site, attributes, list(attributes.get("kernel_shape", [])))
        if window is None or attributes.get("storage_order"):
            return None
        counted = bool(attributes.get("count_include_pad", 0))
        return pooling(site, function, window, layout=_LAYOUT, count_include_pad=counted)

    return describe_pool


def _gemm(site: Site, attributes: Mapping[str, Any]) -> Description | None:
    if attributes.get("transA") or attributes.get("alpha", 1.0) != 1.0 or attributes.get("beta", 1.0) != 1.0:
        return None
    return linear(site, axes=(0, 1) if attributes.get("transB") else (1, 0))


def _softmax(site: Site, attributes: Mapping[str, Any]) -> Description | None:
    # Before version 13, softmax spanned all axes from `axis` (default 1): equivalent for the last axis.
    last = len(site.output) - 1
    axis = attributes.get("axis", 1 if last == 1 else None)
    return softmax(site, last) if axis in {last, -1} else None


def _batch_norm(site: Site, attributes: Mapping[str, Any]) -> Description | None:
    if attributes.get("training_mode") or attributes.get("spatial", 1) != 1:
        return None
    return batch_norm(site, attributes.get("epsilon", 1e-5), layout=_LAYOUT)


def _elementwise(function: str, **defaults: Any) -> Callable[[Site, Mapping[str, Any]], Description | None]:
    def describe_function(site: Site, attributes: Mapping[str, Any]) -> Description | None:
        parameters = {name: attributes.get(name, default) for name, default in defaults.items()}
        if function == "gelu":
            parameters = {"approximate": attributes.get("approximate", b"none").decode("ascii", "replace")}
        elif function == "clip":
            parameters = {name: attributes[name] for name in ("min", "max") if name in attributes}
        return elementwise(site, function, parameters)

    return describe_function


Describer = Callable[[Site, Mapping[str, Any]], Description | None]
_NONE = frozenset[str]()
_SLIDING = frozenset({"auto_pad", "dilations", "kernel_shape", "pads", "strides"})


def _plain(*names: str) -> Mapping[str, tuple[frozenset[str], Describer]]:
    functions = {"Max": "maximum", "Min": "minimum", "Relu": "relu", "Dropout": "identity"}
    return {name: (frozenset(), _elementwise(functions.get(name, name.lower()))) for name in names}


#: For each type, the attributes that a supported node may have, and the function that describes it.
_NODES: Mapping[str, tuple[frozenset[str], Describer]] = {
    **_plain("Add", "Sub", "Mul", "Div", "Max", "Min", "Sum", "Mean", "Relu", "Sigmoid", "Tanh", "Softplus"),
    **_plain("Abs", "Neg", "Exp", "Erf", "Identity"),
    "Clip": (frozenset({"min", "max"}), _elementwise("clip")),
    "Conv": (_SLIDING | {"group"}, _conv),
    "MaxPool": (_SLIDING | {"ceil_mode", "storage_order"}, _pool("max")),
    "AveragePool": (_SLIDING | {"ceil_mode", "count_include_pad"}, _pool("average")),
    "GlobalAveragePool": (_NONE, lambda site, _: global_pooling(site, "average", layout=_LAYOUT)),
    "GlobalMaxPool": (_NONE, lambda site, _: global_pooling(site, "max", layout=_LAYOUT)),
    "Gemm": (frozenset({"alpha", "beta", "transA", "transB"}), _gemm),
    "MatMul": (_NONE, lambda site, _: linear(site, axes=(1, 0)) if site.constant(1) is not None else product(site)),
    "Softmax": (frozenset({"axis"}), _softmax),
    "Concat": (
        frozenset({"axis"}),
        lambda site, given: concatenation(site, given["axis"]) if "axis" in given else None,
    ),
    "Split": (frozenset({"axis", "split", "num_outputs"}), lambda site, _: None),  # `describe` has its outputs
    "BatchNormalization": (frozenset({"epsilon", "momentum", "spatial", "training_mode", "is_test"}), _batch_norm),
    "Dropout": (
        frozenset({"ratio", "seed", "is_test"}),
        lambda site, _: elementwise(Site(site.inputs[:1], site.tensors[:1], site.output), "identity"),
    ),
    "LeakyRelu": (frozenset({"alpha"}), _elementwise("leaky_relu", alpha=0.01)),
    "Elu": (frozenset({"alpha"}), _elementwise("elu", alpha=1.0)),
    "HardSigmoid": (frozenset({"alpha", "beta"}), _elementwise("hard_sigmoid", alpha=0.2, beta=0.5)),
    "HardSwish": (_NONE, _elementwise("hard_swish")),
    "Gelu": (frozenset({"approximate"}), _elementwise("gelu")),
    "PRelu": (_NONE, lambda site, _: elementwise(site, "prelu") if site.data(0) == site.output else None),
}


def shapes_of(network: Network, names: Mapping[str, str]) -> dict[str, Shape]:
    """Return the shape of each tensor of the graph."""
    return {tensor: network.values[value].shape for value, tensor in names.items()}
