"""Complete descriptions of ops, for readers of models: the input of the dimension rule and the reference executor.

A reader calls one of these functions if the model determines everything that the op's result depends on. Otherwise it
gives no description: in a graph with ``described`` in its ``meta``, such an op is opaque and no rewrite changes it.
Each function returns None if the op has properties that its description cannot express.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from types import MappingProxyType
from typing import Any

from remat.graphs.rewriting.annotations import MOST_AXES, Shape
from remat.graphs.rewriting.kinds import KIND, Kind

Description = dict[str, Any]

#: Bytes for each description; those of convolutions and batch normalisations are the largest.
DESCRIPTION_MEMORY = 4000


@dataclass(frozen=True)
class Site:
    """Op of a model: its inputs in the order of the model, and its only output."""

    inputs: tuple[Shape | None, ...]
    """Shapes; None for an absent input."""
    tensors: tuple[str | None, ...]
    """Tensor of the graph for each input; None for constants and absent inputs."""
    output: Shape

    def data(self, position: int) -> Shape | None:
        """Return the shape of an input that is a tensor of the graph; None for other inputs."""
        return self.inputs[position] if position < len(self.inputs) and self.tensors[position] is not None else None

    def constant(self, position: int) -> Shape | None:
        """Return the shape of an input that is a constant; None for other inputs."""
        return self.inputs[position] if position < len(self.inputs) and self.tensors[position] is None else None

    def has(self, position: int) -> bool:
        """Return True if an input is present."""
        return position < len(self.inputs) and self.inputs[position] is not None

    @property
    def operands(self) -> tuple[str, ...]:
        """Tensors of the graph that the op reads, in order."""
        return tuple(tensor for tensor in self.tensors if tensor is not None)


@dataclass(frozen=True)
class Window:
    """Sliding window: for each axis of an image a number, or the padding before and after."""

    kernel: Sequence[int]
    stride: Sequence[int]
    dilation: Sequence[int]
    pads: Sequence[tuple[int, int]]

    def as_dict(self) -> Description:
        """Return the window as attributes of an op."""
        pads = [list(pair) for pair in self.pads]
        return {
            "kernel": list(self.kernel), "stride": list(self.stride), "dilation": list(self.dilation), "pads": pads,
        }  # fmt: skip

    def fits(self, image: Sequence[int], out: Sequence[int], *, rounds_up: bool = False) -> bool:
        """Return True if the window maps `image` to `out`."""
        lengths = {len(each) for each in (self.kernel, self.stride, self.dilation, self.pads, image, out)}
        if len(lengths) != 1 or min((*self.kernel, *self.stride, *self.dilation), default=0) < 1:
            return False
        if min((n for pair in self.pads for n in pair), default=0) < 0:
            return False
        for axis, extent in enumerate(out):
            room = image[axis] + sum(self.pads[axis]) - (self.kernel[axis] - 1) * self.dilation[axis] - 1
            steps = {room // self.stride[axis] + 1} | ({-(-room // self.stride[axis]) + 1} if rounds_up else set())
            if room < 0 or extent not in steps:
                return False
        return True


def same_pads(
    image: Sequence[int], kernel: Sequence[int], stride: Sequence[int], dilation: Sequence[int], *, lower: bool = False
) -> list[tuple[int, int]]:
    """Return padding for ``ceil(image / stride)`` output elements; with `lower`, an odd element precedes the image.

    Examples
    --------
    >>> same_pads([8], [3], [2], [1]), same_pads([8], [3], [2], [1], lower=True)
    ([(0, 1)], [(1, 0)])
    """
    found: list[tuple[int, int]] = []
    for n, k, s, d in zip(image, kernel, stride, dilation, strict=True):
        total = max((-(-n // s) - 1) * s + (k - 1) * d + 1 - n, 0)
        pair = (total // 2, total - total // 2)
        found.append(pair[::-1] if lower else pair)
    return found


def described(shapes: Mapping[str, Shape], attributes: Mapping[str, Description]) -> dict[str, Any]:
    """Return the entries for the ``meta`` of a graph, without shapes that rewriting cannot use."""
    usable = {tensor: list(shape) for tensor, shape in shapes.items() if is_usable(shape)}
    return {"described": True, "shapes": usable, "attrs": dict(attributes)}


def is_usable(shape: Shape) -> bool:
    """Return True if rewriting can use a shape: at most 8 axes, none of them empty."""
    return len(shape) <= MOST_AXES and min(shape, default=1) > 0


def elementwise(
    site: Site, function: str, parameters: Mapping[str, Any] = MappingProxyType({}), activation: str | None = None
) -> Description | None:
    """Describe an elementwise function of all inputs, with numpy's broadcasting."""
    constants = []
    rank = len(site.output)
    for position, shape in enumerate(site.inputs):
        if shape is None or len(shape) > rank:
            return None
        first = rank - len(shape)
        if any(n not in {1, site.output[first + axis]} for axis, n in enumerate(shape)):
            return None
        if site.tensors[position] is None:
            along = [[first + axis, axis] for axis, n in enumerate(shape) if n != 1]
            constants.append({"input": position, "shape": list(shape), "along": along})
    given = {"parameters": dict(parameters)} if parameters else {}
    return _op(site, Kind.ELEMENTWISE, {"function": function, **given}, constants, activation)


def convolution(
    site: Site, window: Window, *, layout: str, axes: tuple[int, int], activation: str | None = None
) -> Description | None:
    """Describe a convolution of a tensor with constant weights and, as an optional third input, a constant bias.

    `layout` is ``"NCHW"`` or ``"NHWC"``: channels second, or last. `axes` are those of the weights for output and input
    channels, `activation` one of :data:`~remat.graphs.rewriting.reference_kernels.FUNCTIONS`.
    """
    x, weights, (out, reads) = site.data(0), site.constant(1), axes
    if x is None or weights is None or len(site.inputs) > 3 or len(weights) != len(x) or len(site.output) != len(x):
        return None
    channels = 1 if layout.index("C") == 1 else len(x) - 1
    written = site.output[channels]
    kernel = [n for axis, n in enumerate(weights) if axis not in axes]
    groups, rest = divmod(x[channels], weights[reads])
    if rest or groups < 1 or weights[out] != written or written % groups or kernel != list(window.kernel):
        return None
    if not window.fits(_image(x, channels), _image(site.output, channels)) or x[0] != site.output[0]:
        return None
    is_depthwise = groups == x[channels] > 1
    cut = out if is_depthwise else reads
    along = [[channels, cut]] if is_depthwise or groups == 1 else []
    entry = {"input": 1, "shape": list(weights), "role": "weight", "out": out, "in": reads, "along": along}
    constants = [entry]
    if site.has(2):
        if site.constant(2) != (written,):
            return None
        constants.append(
            {"input": 2, "shape": [written], "role": "bias", "along": [[channels, 0]] if is_depthwise else []}
        )
    facts: Description = {"layout": layout, **window.as_dict(), **({} if groups == 1 else {"groups": groups})}
    return _op(site, Kind.DEPTHWISE if is_depthwise else Kind.CONV, facts, constants, activation)


def linear(site: Site, *, axes: tuple[int, int], activation: str | None = None) -> Description | None:
    """Describe the product of the last axis with constant weights, and a constant bias; `axes` as for convolutions."""
    x, weights, (out, reads) = site.data(0), site.constant(1), axes
    if x is None or weights is None or len(site.inputs) > 3 or len(weights) != 2 or len(x) < 2:
        return None
    if weights[reads] != x[-1] or site.output != (*x[:-1], weights[out]):
        return None
    constants = [
        {"input": 1, "shape": list(weights), "role": "weight", "out": out, "in": reads, "along": [[len(x) - 1, reads]]}
    ]
    if site.has(2):
        bias = site.constant(2)
        if bias is None or prod(bias) not in {1, weights[out]} or (bias and bias[-1] != prod(bias)):
            return None
        if len(bias) > len(x):
            return None
        constants.append({"input": 2, "shape": list(bias), "role": "bias"})
    return _op(site, Kind.LINEAR, {"channel_axis": len(x) - 1}, constants, activation)


def product(site: Site) -> Description | None:
    """Describe the matrix product of two tensors that agree in all axes before the last two."""
    first, second = site.data(0), site.data(1)
    if first is None or second is None or len(site.inputs) != 2 or len(first) != len(second) or len(first) < 2:
        return None
    if first[:-2] != second[:-2] or site.output != (*first[:-1], second[-1]) or first[-1] != second[-2]:
        return None
    return _op(site, Kind.MATMUL, {})


def pooling(
    site: Site, function: str, window: Window, *, layout: str, count_include_pad: bool = False,
    activation: str | None = None,
) -> Description | None:  # fmt: skip
    """Describe a pooling, ``"max"`` or ``"average"``."""
    x = site.data(0)
    if x is None or len(site.inputs) != 1 or len(x) != len(site.output) or len(x) < 3:
        return None
    channels = 1 if layout.index("C") == 1 else len(x) - 1
    if (x[0], x[channels]) != (site.output[0], site.output[channels]):
        return None
    # runtimes average differently over a window that exceeds the padding
    if not window.fits(_image(x, channels), _image(site.output, channels), rounds_up=function == "max"):
        return None
    facts = {"function": function, "layout": layout, **window.as_dict(), "count_include_pad": count_include_pad}
    return _op(site, Kind.POOL, facts, activation=activation)


def global_pooling(site: Site, function: str, *, layout: str) -> Description | None:
    """Describe a pooling of whole images to one element; the axes remain."""
    x = site.data(0)
    if x is None or len(site.inputs) != 1 or len(x) < 3:
        return None
    channels = 1 if layout.index("C") == 1 else len(x) - 1
    if site.output != tuple(n if axis in {0, channels} else 1 for axis, n in enumerate(x)):
        return None
    return _op(site, Kind.GLOBAL_POOL, {"function": function, "layout": layout})


def batch_norm(site: Site, epsilon: float, *, layout: str) -> Description | None:
    """Describe a batch normalisation with given statistics: x, scale, offset, mean, variance."""
    x = site.data(0)
    if x is None or len(x) < 2 or site.output != x or len(site.inputs) != 5:
        return None
    channels = 1 if layout.index("C") == 1 else len(x) - 1
    if any(site.constant(position) != (x[channels],) for position in range(1, 5)):
        return None
    constants = [
        {"input": position, "shape": [x[channels]], "role": role, "along": [[channels, 0]]}
        for position, role in enumerate(("scale", "offset", "mean", "variance"), start=1)
    ]
    return _op(site, Kind.BATCH_NORM, {"layout": layout, "epsilon": epsilon}, constants)


def softmax(site: Site, axis: int) -> Description | None:
    """Describe a softmax along one axis."""
    x = site.data(0)
    if x is None or len(site.inputs) != 1 or site.output != x or not -len(x) <= axis < len(x):
        return None
    return _op(site, Kind.SOFTMAX, {"axis": axis % len(x)})


def concatenation(site: Site, axis: int) -> Description | None:
    """Describe a plain concatenation of tensors."""
    rank = len(site.output)
    if not -rank <= axis < rank or len(site.operands) != len(site.inputs):
        return None
    axis %= rank
    shapes = [shape for shape in site.inputs if shape is not None]
    if any(len(shape) != rank for shape in shapes) or sum(shape[axis] for shape in shapes) != site.output[axis]:
        return None
    rest = (*site.output[:axis], *site.output[axis + 1 :])
    if any((*shape[:axis], *shape[axis + 1 :]) != rest for shape in shapes):
        return None
    found: Description = {KIND: Kind.CONCAT.value, "axis": axis}
    if len(set(site.operands)) < len(site.operands):
        found["operands"] = [{"axis": axis, "parts": list(site.operands)}]
    return found


def split(x: Shape, outputs: Sequence[Shape], axis: int) -> Description | None:
    """Describe a split of a tensor along an axis into consecutive slices that cover it."""
    rank = len(x)
    if not -rank <= axis < rank or any(len(shape) != rank for shape in outputs):
        return None
    axis %= rank
    rest = (*x[:axis], *x[axis + 1 :])
    if any((*shape[:axis], *shape[axis + 1 :]) != rest for shape in outputs):
        return None
    return {KIND: Kind.SPLIT.value, "axis": axis} if sum(shape[axis] for shape in outputs) == x[axis] else None


def _image(shape: Shape, channels: int) -> tuple[int, ...]:
    return (*shape[1:channels], *shape[channels + 1 :])


def _op(
    site: Site,
    kind: Kind,
    facts: Mapping[str, Any],
    constants: Sequence[Mapping[str, Any]] = (),
    activation: str | None = None,
) -> Description | None:
    """Return a description; None for an op that reads only constants."""
    operands = site.operands
    if not operands:
        return None
    found: Description = {KIND: kind.value, **facts}
    if len(set(operands)) < len(operands):
        found["operands"] = [{"parts": [tensor]} for tensor in operands]
    if constants:
        found["constants"] = [dict(entry) for entry in constants]
    if activation is not None:
        found["activation"] = activation
    return found
