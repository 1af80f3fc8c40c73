"""One op of the reference executor: from its operands and random weights to its outputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import reduce
from math import prod, sqrt

import numpy as np

from remat.graphs.graph import Op
from remat.graphs.rewriting import kernels
from remat.graphs.rewriting.annotations import Attributes, Shape, axis_of, numbers
from remat.graphs.rewriting.axes import Reading, groups_of, linear_axis
from remat.graphs.rewriting.kernels import Array, Window, softsign
from remat.graphs.rewriting.kinds import Kind, kind_of, plain
from remat.graphs.rewriting.parts import FINISH_OF, PartOf

#: Elements of a window that are worth computing.
MOST = 4096


@dataclass(frozen=True)
class Call:
    """An op with all that it takes to compute it.

    Attributes
    ----------
    inputs : list of array
        Its operands.
    shapes : list of tuple
        Of the tensors that it writes.
    reading : Reading or None
        The first operand as the dimension rule sees it, in full size; None where the op has several outputs.
    random : callable
        Weights: a slot and a shape to an array, always the same for the op before it was rewritten.
    """

    op: Op
    kind: Kind
    attributes: Attributes
    part: PartOf | None
    inputs: list[Array]
    shapes: list[Shape]
    reading: Reading | None
    random: Callable[[str, Shape], Array]

    @property
    def x(self) -> Array:
        """The first operand."""
        return self.inputs[0]

    @property
    def channels(self) -> int:
        """The axis of channels; the last where it is not known."""
        axis = self.reading.channels if self.reading is not None else None
        return self.x.ndim - 1 if axis is None else axis

    def weights(self, slot: str, shape: Shape, axis: int | None = None, of: int | None = None) -> Array:
        """Weights of a shape; where axis `of` of the operand is what was cut, those of this part along `axis`."""
        part = self.part
        if part is None or axis is None or part.axis != of:
            return self.random(slot, shape)
        whole = self.random(slot, (*shape[:axis], part.extent, *shape[axis + 1 :]))
        return np.take(whole, np.arange(part.start, part.stop), axis=axis)


def layer(call: Call) -> list[Array]:
    """What an op writes."""
    if call.reading is not None and call.kind in {Kind.OPAQUE, Kind.COMPOSITE} and is_declared(call.attributes):
        return [_declared(call)]
    if len(call.shapes) != 1 or call.reading is None or call.kind in {Kind.OPAQUE, Kind.COMPOSITE, Kind.SOURCE}:
        return [_some_function(call, number) for number in range(len(call.shapes))]
    return [_LAYERS[call.kind](call)]


def finished(kind: Kind, attributes: Attributes, y: Array) -> Array:
    """What becomes of a sum of partial ops when it is complete."""
    return named_function(attributes.get("activation"), (lambda value: value) if kind is Kind.REDUCE_SUM else softsign)(
        y
    )


def named_function(name: object, default: Callable[[Array], Array]) -> Callable[[Array], Array]:
    """A function of one tensor by its name, as attributes have it."""
    return kernels.UNARY.get(plain(name), default) if isinstance(name, str) else default


# -- layers with weights -----------------------------------------------------------------------------------------------


def _completed(call: Call, y: Array) -> Array:
    """Bias and activation after a linear layer with channels last, unless somebody else adds them."""
    part = call.part
    if part is None or not part.sum or part.bias:
        y = y + call.random("bias", (y.shape[-1],))
    return y if part is not None and part.sum else named_function(call.attributes.get("activation"), softsign)(y)


def _before(call: Call) -> Array:
    """The operand with channels last, after an activation that comes before the layer."""
    x = np.moveaxis(call.x, call.channels, -1)
    return named_function(call.attributes.get("pre_activation"), lambda value: value)(x)


def _convolution(call: Call) -> Array:
    assert call.reading is not None
    x, window, axis = _before(call), _window(call), call.channels
    groups = 1 if call.kind is Kind.CONV_TRANSPOSE else groups_of(call.reading)
    outside = call.shapes[0][axis]
    cut = call.part is not None and call.part.axis == axis
    if groups == 1:
        fan = sqrt(prod(window.kernel) * (call.part.extent if call.part is not None and cut else x.shape[-1]))
        weights = call.weights("weights", (*window.kernel, x.shape[-1], outside), len(window.kernel), axis) / fan
        apply = kernels.transposed_convolution if call.kind is Kind.CONV_TRANSPOSE else kernels.convolution
        return np.moveaxis(_completed(call, apply(x, weights, window)), -1, axis)
    if cut:  # one channel for each group, so that parts are depthwise convolutions
        return _depthwise(call)
    if x.shape[-1] % groups or outside % groups:
        raise ValueError(f"{x.shape[-1]} and {outside} channels cannot be in {groups} groups")
    if groups == x.shape[-1]:
        return _depthwise(call)
    weights = call.random("weights", (*window.kernel, x.shape[-1] // groups, outside))
    return np.moveaxis(_completed(call, kernels.convolution(x, weights, window, groups)), -1, axis)


def _depthwise(call: Call) -> Array:
    x, window, axis = _before(call), _window(call), call.channels
    times = call.shapes[0][axis] // x.shape[-1]
    shape = (*window.kernel, x.shape[-1], times)
    y = kernels.depthwise_convolution(x, call.weights("weights", shape, len(window.kernel), axis), window)
    bias = call.weights("bias", (x.shape[-1], times), 0, axis).reshape(-1)
    return np.moveaxis(named_function(call.attributes.get("activation"), softsign)(y + bias), -1, axis)


def _window(call: Call) -> Window:
    """Kernel, stride, dilation and padding, from the attributes; what is missing follows from the shapes."""
    assert call.reading is not None
    full, out, name, given = call.reading.shape, call.reading.output, call.op.name, dict(call.attributes)
    axes = [axis for axis in range(1, len(full)) if axis != call.channels]
    extents, results, count = [full[axis] for axis in axes], [out[axis] for axis in axes], len(axes)
    words = {"stride": ["strides"], "dilation": ["dilations"], "kernel": ["kernel_size", "kernel_shape"]}
    for key, others in words.items():
        given[key] = next((given[word] for word in (key, *others) if given.get(word) is not None), None)
    weights = given.get("weight_shape")
    if given["kernel"] is None and isinstance(weights, list | tuple) and len(weights) == count + 2:
        given["kernel"] = list(weights[1:-1] if call.channels == len(full) - 1 else weights[2:])
    pooled = call.kind is Kind.POOL
    strides = numbers(given, "stride", count, name, default=None)
    if strides is None:
        strides = tuple(max(1, round(n / m)) for n, m in zip(extents, results, strict=True))
    kernel = numbers(given, "kernel", count, name, default=None)
    if kernel is None:
        kernel = strides if pooled else (3 if call.kind is Kind.DEPTHWISE else 1,) * count
    dilation = numbers(given, "dilation", count, name) or ()
    padding = _padding(call, extents, results, strides)
    if max([*kernel, *dilation, *(n for both in padding or () for n in both)], default=0) > MOST or prod(kernel) > MOST:
        raise ValueError("its window is too large for a check")
    return Window(kernel, strides, dilation, padding)


def _padding(call: Call, extents: list[int], results: list[int], strides: Shape) -> tuple[tuple[int, int], ...] | None:
    padding = call.attributes.get("padding", call.attributes.get("pads"))
    if isinstance(padding, str) and padding.upper() in {"SAME", "SAME_UPPER"}:
        return None
    count = len(extents)
    if isinstance(padding, str) and padding.upper() == "VALID":
        return ((0, 0),) * count
    if padding is None:
        if call.kind is Kind.CONV_TRANSPOSE:
            same = all(m == n * s for n, m, s in zip(extents, results, strides, strict=True))
        else:
            same = all(m == -(-n // s) for n, m, s in zip(extents, results, strides, strict=True))
        return None if same else ((0, 0),) * count
    if isinstance(padding, list | tuple) and len(padding) == 2 * count != count:
        ends = numbers({"padding": padding}, "padding", 2 * count, call.op.name, least=0) or ()
        return tuple(zip(ends[:count], ends[count:], strict=True))
    both = numbers({"padding": padding}, "padding", count, call.op.name, least=0) or ()
    return tuple((n, n) for n in both)


def _linear(call: Call) -> Array:
    assert call.reading is not None
    axis = linear_axis(call.reading)
    if axis is None:
        return _some_function(call, 0)
    x = np.moveaxis(call.x, axis, -1)
    cut = call.part is not None and call.part.axis == axis
    fan = sqrt(call.part.extent if call.part is not None and cut else x.shape[-1])
    weights = call.weights("weights", (x.shape[-1], call.shapes[0][axis]), 0, axis) / fan
    return np.moveaxis(_completed(call, x @ weights), -1, axis)


def _matmul(call: Call) -> Array:
    if len(call.inputs) == 1:
        return _linear(call)
    first, second = call.inputs
    attributes = call.attributes
    if any(attributes.get(key) for key in ("transpose_a", "transA", "adj_x")):
        first = first.swapaxes(-1, -2)
    if any(attributes.get(key) for key in ("transpose_b", "transB", "adj_y")):
        second = second.swapaxes(-1, -2)
    y = first @ second
    return y if call.part is not None and call.part.sum else finished(call.kind, attributes, y)


# -- layers element by element, and normalisations ---------------------------------------------------------------------


def _elementwise(call: Call) -> Array:
    word = plain(call.op.type)
    if len(call.inputs) > 1:
        y = reduce(kernels.SEVERAL.get(word, np.add), call.inputs)
        return named_function(call.attributes.get("activation"), lambda value: value)(y)
    if word == "activation":
        if str(call.attributes.get("activation", "")).lower() == "softmax":
            return _softmax(call)
        return named_function(call.attributes.get("activation"), softsign)(call.x)
    return kernels.UNARY.get(word, softsign)(call.x)


def _affine(call: Call, y: Array, axis: int) -> Array:
    """Times a weight and plus another for each element along an axis."""
    shape = (y.shape[axis],)
    along = (1,) * axis + (-1,) + (1,) * (y.ndim - axis - 1)
    scale, offset = (call.weights(slot, shape, 0, axis).reshape(along) for slot in ("scale", "offset"))
    return named_function(call.attributes.get("activation"), lambda value: value)(y * (1.5 + np.tanh(scale)) + offset)


def _batch_norm(call: Call) -> Array:
    axis, y = call.channels, call.x
    if call.attributes.get("training"):
        y = kernels.normalised(y, tuple(other for other in range(y.ndim) if other != axis))
    return _affine(call, y, axis)


def _layer_norm(call: Call) -> Array:
    first = axis_of(call.attributes, "axis", call.x.ndim, call.op.name)
    first = call.x.ndim - 1 if first is None else first
    return _affine(call, kernels.normalised(call.x, tuple(range(first, call.x.ndim))), call.x.ndim - 1)


def _group_norm(call: Call) -> Array:
    return _affine(call, kernels.normalised(call.x, tuple(range(1, call.x.ndim))), call.channels)


def _instance_norm(call: Call) -> Array:
    inner = tuple(axis for axis in range(1, call.x.ndim) if axis != call.channels)
    return _affine(call, kernels.normalised(call.x, inner), call.channels)


def _softmax(call: Call) -> Array:
    axis = axis_of(call.attributes, "axis", call.x.ndim, call.op.name)
    return kernels.softmax(call.x, call.x.ndim - 1 if axis is None else axis)


def _finish(call: Call) -> Array:
    given = call.attributes.get(FINISH_OF)
    if not isinstance(given, Mapping):
        return _some_function(call, 0)
    kind = kind_of(str(given.get("type", "")))
    axis = given.get("channels")
    axis = call.channels if axis is None else axis
    y = np.moveaxis(call.x, axis, -1)
    if kind in {Kind.CONV, Kind.CONV_TRANSPOSE, Kind.LINEAR} or (kind is Kind.MATMUL and given.get("operands") == 1):
        y = y + call.random("bias", (y.shape[-1],))
    return np.moveaxis(finished(kind, call.attributes, y), -1, axis)


# -- layers without weights over windows and axes ----------------------------------------------------------------------


def _pool(call: Call) -> Array:
    x = np.moveaxis(call.x, call.channels, -1)
    return np.moveaxis(kernels.pooling(x, _window(call), largest="max" in plain(call.op.type)), -1, call.channels)


def _global_pool(call: Call) -> Array:
    inner = tuple(axis for axis in range(1, call.x.ndim) if axis != call.channels)
    keep = len(call.reading.output) == call.x.ndim if call.reading is not None else True
    return (np.max if "max" in plain(call.op.type) else np.mean)(call.x, axis=inner, keepdims=keep)


def _spatial(call: Call) -> Array:
    shape, axis = call.shapes[0], call.channels
    extents = [n for other, n in enumerate(shape) if other not in {0, axis}]
    return np.moveaxis(kernels.resampled(np.moveaxis(call.x, axis, -1), extents), -1, axis)


def _reduce_sum(call: Call) -> Array:
    if not isinstance(call.attributes.get("axes"), list | tuple):
        return _some_function(call, 0)
    axes = tuple(axis % call.x.ndim for axis in call.attributes["axes"])
    keep = len(call.shapes[0]) == call.x.ndim
    y = call.x.sum(axis=axes, keepdims=keep)
    if "mean" not in plain(call.op.type):
        return y
    count = prod(call.x.shape[axis] for axis in axes)
    if call.part is not None and call.part.axis in axes:
        count = count * call.part.extent // (call.part.stop - call.part.start)
    return y / count


def _some_function(call: Call, number: int) -> Array:
    """Some function of everything that an unknown op reads; sample by sample where the batch axis is parallel."""
    shape = call.shapes[number]
    batch = call.kind is Kind.COMPOSITE and len(shape) > 1
    rows = shape[0] if batch else 1
    flat = np.concatenate([x.reshape(rows, -1) for x in call.inputs], axis=1)
    middle = np.tanh(flat @ call.random(f"in{number}", (flat.shape[1], 8)) / sqrt(flat.shape[1]))
    return np.sin(middle @ call.random(f"out{number}", (8, prod(shape) // rows))).reshape(shape)


def is_declared(attributes: Attributes) -> bool:
    """Whether the attributes of an op say which axes are parallel or reduced."""
    return attributes.get("parallel_axes") is not None or attributes.get("reduced_axes") is not None


def _declared(call: Call) -> Array:
    """Some function that is as the attributes say: linear over reduced axes, apart along parallel ones."""
    rank = call.x.ndim
    side = [axis % rank for axis in call.attributes.get("parallel_axes") or ()]
    rest = [axis for axis in range(rank) if axis not in side]
    out = [n for axis, n in enumerate(call.shapes[0]) if axis not in side]
    shape = tuple(call.x.shape[axis] for axis in rest)
    cut = call.part.axis if call.part is not None else None
    weights = call.weights("weights", (*shape, prod(out)), rest.index(cut) if cut in rest else None, cut)
    y = np.tensordot(np.transpose(call.x, [*side, *rest]), weights, axes=len(rest))
    for place, axis in enumerate(side):
        scale = call.weights(f"scale{axis}", (call.x.shape[axis],), 0, axis)
        y = y * scale.reshape((1,) * place + (-1,) + (1,) * (y.ndim - place - 1))
    y = np.moveaxis(y.reshape(*y.shape[:-1], *out), range(len(side)), side)
    return y if call.part is not None and call.part.sum else finished(call.kind, call.attributes, y)


_LAYERS: dict[Kind, Callable[[Call], Array]] = {
    Kind.CONV: _convolution,
    Kind.DEPTHWISE: _depthwise,
    Kind.CONV_TRANSPOSE: _convolution,
    Kind.LINEAR: _linear,
    Kind.MATMUL: _matmul,
    Kind.ELEMENTWISE: _elementwise,
    Kind.BATCH_NORM: _batch_norm,
    Kind.LAYER_NORM: _layer_norm,
    Kind.GROUP_NORM: _group_norm,
    Kind.INSTANCE_NORM: _instance_norm,
    Kind.SOFTMAX: _softmax,
    Kind.POOL: _pool,
    Kind.GLOBAL_POOL: _global_pool,
    Kind.SPATIAL: _spatial,
    Kind.SLICE: _spatial,
    Kind.REDUCE_SUM: _reduce_sum,
    Kind.CONCAT: lambda call: call.x,
    Kind.FINISH: _finish,
}
