"""Descriptions of TensorFlow Lite ops for rewriting, as far as they are fully known; see ``docs/rewriting.md``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from remat.graphs.formats.tflite.tables import OperatorEntry
from remat.graphs.rewriting.descriptions import (
    Description,
    Site,
    Window,
    concatenation,
    convolution,
    elementwise,
    linear,
    pooling,
    same_pads,
    softmax,
)

#: Returns a description from inputs, options and the fused activation.
Describer = Callable[[Site, Mapping[str, Any], str | None], Description | None]

_LAYOUT = "NHWC"
#: Fused activations by number, after ``ActivationFunctionType``; not all runtimes implement the others.
_ACTIVATIONS: Mapping[int, str | None] = {0: None, 1: "relu", 2: "relu_n1_to_1", 3: "relu6"}
#: Paddings by number, after ``Padding``.
_SAME, _VALID = 0, 1


def describe(operator: OperatorEntry, site: Site) -> Description | None:
    """Return the description of an op; None if it is not fully known, in which case the op must not be rewritten."""
    known = _OPS.get(operator.kind)
    options = operator.options
    if known is None or options.get("FusedActivationFunction", 0) not in _ACTIVATIONS:
        return None
    try:
        return known(site, options, _ACTIVATIONS[options.get("FusedActivationFunction", 0)])
    except KeyError:  # the options are absent or those of another op
        return None


def _window(site: Site, options: Mapping[str, Any], kernel: list[int]) -> Window | None:
    x = site.data(0)
    stride = [options["StrideH"], options["StrideW"]]
    dilation = [options.get("DilationHFactor", 1), options.get("DilationWFactor", 1)]
    if x is None or len(x) != 4 or min(*stride, *dilation, *kernel) < 1 or options["Padding"] not in {_SAME, _VALID}:
        return None
    pads = same_pads(x[1:3], kernel, stride, dilation) if options["Padding"] == _SAME else [(0, 0)] * 2
    return Window(kernel, stride, dilation, pads)


def _conv(site: Site, options: Mapping[str, Any], activation: str | None) -> Description | None:
    x, weights = site.data(0), site.constant(1)
    if x is None or weights is None or len(weights) != 4 or weights[3] != x[-1]:  # grouped ones read fewer channels
        return None
    window = _window(site, options, list(weights[1:3]))
    return None if window is None else convolution(site, window, layout=_LAYOUT, axes=(0, 3), activation=activation)


def _depthwise(site: Site, options: Mapping[str, Any], activation: str | None) -> Description | None:
    x, weights = site.data(0), site.constant(1)
    if x is None or weights is None or len(weights) != 4 or weights[0] != 1:
        return None
    window = _window(site, options, list(weights[1:3]))
    if window is None or weights[3] != x[-1] * options["DepthMultiplier"]:
        return None
    return convolution(site, window, layout=_LAYOUT, axes=(3, 0), activation=activation)


def _pool(function: str) -> Describer:
    def describe_pool(site: Site, options: Mapping[str, Any], activation: str | None) -> Description | None:
        window = _window(site, options, [options["FilterHeight"], options["FilterWidth"]])
        return None if window is None else pooling(site, function, window, layout=_LAYOUT, activation=activation)

    return describe_pool


def _function(function: str, **parameters: float) -> Describer:
    return lambda site, options, activation: elementwise(site, function, parameters)


def _sum(function: str) -> Describer:
    """Describe an op of two tensors with an optional activation; absent options mean none."""
    return lambda site, options, activation: elementwise(site, function, {}, activation)


_OPS: Mapping[str, Describer] = {
    "CONV_2D": _conv,
    "DEPTHWISE_CONV_2D": _depthwise,
    "AVERAGE_POOL_2D": _pool("average"),
    "MAX_POOL_2D": _pool("max"),
    "FULLY_CONNECTED": lambda site, o, fused: (
        None if o["WeightsFormat"] else linear(site, axes=(0, 1), activation=fused)
    ),
    "CONCATENATION": lambda site, o, fused: None if fused is not None else concatenation(site, o["Axis"]),
    "SOFTMAX": lambda site, o, fused: softmax(site, -1) if o["Beta"] == 1 else None,
    **{kind: _sum(kind.lower()) for kind in ("ADD", "SUB", "MUL", "DIV")},
    **{kind: _function(kind.lower()) for kind in ("MAXIMUM", "MINIMUM", "RELU", "RELU6", "RELU_N1_TO_1", "TANH")},
    **{kind: _function(kind.lower()) for kind in ("HARD_SWISH", "ABS", "NEG", "EXP")},
    "LOGISTIC": _function("sigmoid"),
    "ELU": _function("elu", alpha=1.0),
    "LEAKY_RELU": lambda site, o, fused: elementwise(site, "leaky_relu", {"alpha": o["Alpha"]}),
    "GELU": lambda site, o, fused: elementwise(site, "gelu", {"approximate": "tanh" if o["Approximate"] else "none"}),
    "PRELU": lambda site, o, fused: elementwise(site, "prelu") if site.data(0) == site.output else None,
}
