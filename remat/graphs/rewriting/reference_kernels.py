"""Reference kernels in numpy and double precision, for ops that a reader describes completely.

The attributes of a described op (:func:`remat.graphs.rewriting.annotations.is_described`) contain all that its result
depends on; see ``docs/rewriting.md``. The same entries define how constants are cut for the parts of an op. A wrong
entry therefore shows as a difference between a graph and its rewritten version.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import reduce
from itertools import product
from math import prod, sqrt
from typing import Any

import numpy as np

from remat.graphs.rewriting.annotations import Attributes, PartOf, Shape
from remat.graphs.rewriting.axes import Roles
from remat.graphs.rewriting.kinds import Kind

Array = np.ndarray


@dataclass(frozen=True)
class Call:
    """Op with all data needed to compute it."""

    kind: Kind
    attributes: Attributes
    part: PartOf | None
    inputs: list[Array]
    """Values of its operands."""
    shapes: list[Shape]
    """Shapes of its outputs."""
    roles: list[Roles]
    """Roles of the axes of each operand; for a part of an op, the roles in the whole op."""
    random: Callable[[str, Shape], Array]
    """Maps a slot and a shape to weights that are fixed for the original op."""
    constant: Callable[[Mapping[str, Any]], Array] | None = None
    """Maps an entry of the attribute ``constants`` of a described op to an array; None: the op is a random function."""

    def whole(self, operand: int, axis: int) -> tuple[int, slice]:
        """Return the extent of an operand's axis before the op was cut, and the slice of it that this op reads."""
        part = self.part
        if part is None or (part.operand, part.axis) != (operand, axis):
            return self.inputs[operand].shape[axis], slice(None)
        return part.extent, slice(part.start, part.stop)


#: Largest number of kernel positions to compute one by one.
MOST_POSITIONS = 2**16


def compute(call: Call) -> Array:
    """Compute the output of a described op. Partial sums omit the activation, and all but one omit the bias.

    Raise ValueError, LookupError or TypeError if the description is incomplete or does not match the shapes.
    """
    part = call.part
    with np.errstate(all="ignore"):
        y = _KERNELS[call.kind](call)
        return y if part is not None and part.sum else activate(call.attributes, y)


def activate(attributes: Mapping[str, Any], y: Array) -> Array:
    """Apply the fused activation of an op, if any."""
    name = attributes.get("activation")
    return y if name is None else FUNCTIONS[name]({}, y)


def random_constant(entry: Mapping[str, Any], generator: np.random.Generator) -> Array:
    """Return random values for a constant, scaled so that results neither grow nor vanish."""
    shape, role = tuple(entry["shape"]), entry.get("role")
    values = np.asarray(generator.standard_normal(shape))
    if role == "weight":
        return values * sqrt(2 * shape[entry["out"]] / values.size)
    return np.abs(values) + 0.5 if role in {"scale", "variance"} else values


def cut_constant(
    entry: Mapping[str, Any], axis: int, start: int, stop: int, extent: int
) -> tuple[int, int, int] | None:
    """Return axis, start and stop of the slice of a constant that a part of an op reads; None for the whole constant.

    `entry` is one of the attribute ``constants``; for the other parameters see
    :class:`~remat.graphs.rewriting.annotations.PartOf`.

    Examples
    --------
    >>> cut_constant({"shape": [1, 3, 3, 8], "along": [[3, 3]]}, 3, 2, 4, 4)
    (3, 4, 8)
    """
    own = dict(entry.get("along", ())).get(axis)
    if own is None:
        return None
    times, rest = divmod(entry["shape"][own], extent)
    if rest:
        raise ValueError(f"constant {entry['input']} has {entry['shape'][own]} elements for {extent}")
    return own, start * times, stop * times


def _constants(call: Call) -> dict[int, Array]:
    """Return the constants of an op, cut as its operands are, by position among the inputs of the op."""
    found: dict[int, Array] = {}
    part = call.part
    assert call.constant is not None
    for entry in call.attributes.get("constants", ()):
        if entry.get("role") == "bias" and part is not None and part.sum and not part.bias:
            continue
        value = call.constant(entry)
        cut = None if part is None else cut_constant(entry, part.axis, part.start, part.stop, part.extent)
        if cut is not None:
            value = np.take(value, np.arange(*cut[1:]), axis=cut[0])
        found[entry["input"]] = value
    return found


def _roles(call: Call) -> dict[str, Array]:
    """Return the constants by role."""
    values = _constants(call)
    return {e["role"]: values[e["input"]] for e in call.attributes.get("constants", ()) if e["input"] in values}


def _weight(call: Call) -> Mapping[str, Any]:
    for entry in call.attributes.get("constants", ()):
        if entry.get("role") == "weight":
            found: Mapping[str, Any] = entry
            return found
    raise LookupError("it has no constant that is its weight")


def _channels_first(call: Call, x: Array) -> tuple[Array, int, tuple[int, ...]]:
    """Return an image with channels second, the original axis of its channels, and the extents of the output image."""
    axis = _channels(call, x.ndim)
    shape = call.shapes[0]
    return np.moveaxis(x, axis, 1), axis, (*shape[1:axis], *shape[axis + 1 :])


def _channels(call: Call, rank: int) -> int:
    layout = call.attributes["layout"]
    return 1 if layout.index("C") == 1 else rank - 1


def _windows(call: Call, x: Array, out: tuple[int, ...], fill: float) -> Callable[[tuple[int, ...]], Array]:
    """Return a function from a kernel position to the elements that it meets, one per element of the output image."""
    attributes, rank = call.attributes, len(out)
    kernel, stride = attributes["kernel"], attributes.get("stride", [1] * rank)
    dilation, pads = attributes.get("dilation", [1] * rank), attributes.get("pads", [[0, 0]] * rank)
    if max(prod(kernel), *(n for pair in pads for n in pair), *dilation, *stride) > MOST_POSITIONS:
        raise ValueError(f"its window has more than {MOST_POSITIONS:,} positions, or steps that are longer")
    around = [(0, 0), (0, 0)]
    for axis, n in enumerate(out):
        reach = (kernel[axis] - 1) * dilation[axis] + 1
        room = x.shape[2 + axis] + sum(pads[axis]) - reach
        if n not in {room // stride[axis] + 1, -(-room // stride[axis]) + 1}:
            raise ValueError(f"axis {axis} of its images has {n} windows, not {room // stride[axis] + 1}")
        missing = (n - 1) * stride[axis] + reach - x.shape[2 + axis] - pads[axis][0]
        around.append((pads[axis][0], max(missing, pads[axis][1])))
    padded = np.pad(x, around, constant_values=fill)

    def at(position: tuple[int, ...]) -> Array:
        places = [
            slice(p * d, p * d + (n - 1) * s + 1, s) for p, d, n, s in zip(position, dilation, out, stride, strict=True)
        ]
        return padded[(slice(None), slice(None), *places)]

    return at


def _conv(call: Call) -> Array:
    """Compute a convolution: x (N, groups * in, image), weights (out, in, kernel)."""
    entry = _weight(call)
    x, axis, out = _channels_first(call, call.inputs[0])
    roles = _roles(call)
    weights = np.moveaxis(roles["weight"], (entry["out"], entry["in"]), (0, 1))
    groups, rest = divmod(x.shape[1], weights.shape[1])
    if rest or weights.shape[0] % groups or list(weights.shape[2:]) != list(call.attributes["kernel"]):
        raise ValueError(f"weights {list(weights.shape)} do not go with {x.shape[1]} channels")
    at = _windows(call, x, out, 0.0)
    grouped = weights.reshape(groups, -1, *weights.shape[1:])
    y = np.zeros((x.shape[0], groups, grouped.shape[1], int(np.prod(out))))
    for position in product(*map(range, weights.shape[2:])):
        met = at(position).reshape(x.shape[0], groups, weights.shape[1], -1)
        here: tuple[Any, ...] = (..., *position)
        y += grouped[here] @ met
    y = y.reshape(x.shape[0], -1, *out)
    if "bias" in roles:
        y += roles["bias"].reshape(-1, *[1] * len(out))
    return np.moveaxis(y, 1, axis)


def _pool(call: Call) -> Array:
    x, axis, out = _channels_first(call, call.inputs[0])
    positions = list(product(*map(range, call.attributes["kernel"])))
    if call.attributes["function"] == "max":
        at = _windows(call, x, out, -np.inf)
        return np.moveaxis(reduce(np.maximum, map(at, positions)), 1, axis)
    at = _windows(call, x, out, 0.0)
    total = reduce(np.add, map(at, positions))
    if call.attributes.get("count_include_pad"):
        return np.moveaxis(total / len(positions), 1, axis)
    counts = reduce(np.add, map(_windows(call, np.ones((1, 1, *x.shape[2:])), out, 0.0), positions))
    return np.moveaxis(total / counts, 1, axis)


def _global_pool(call: Call) -> Array:
    x = call.inputs[0]
    channels = _channels(call, x.ndim)
    axes = tuple(axis for axis in range(1, x.ndim) if axis != channels)
    y = x.max(axis=axes, keepdims=True) if call.attributes["function"] == "max" else x.mean(axis=axes, keepdims=True)
    return y.reshape(call.shapes[0])


def _linear(call: Call) -> Array:
    """Multiply the last axis by a matrix."""
    entry = _weight(call)
    roles = _roles(call)
    y = np.tensordot(call.inputs[0], roles["weight"], axes=(-1, entry["in"]))
    return y + roles["bias"] if "bias" in roles else y


def _batch_norm(call: Call) -> Array:
    x, roles = call.inputs[0], _roles(call)
    along = [1] * x.ndim
    along[_channels(call, x.ndim)] = -1
    scale, bias, mean, variance = (roles[each].reshape(along) for each in ("scale", "offset", "mean", "variance"))
    return (x - mean) / np.sqrt(variance + call.attributes["epsilon"]) * scale + bias


def _softmax(call: Call) -> Array:
    x, axis = call.inputs[0], call.attributes["axis"]
    powers = np.exp(x - x.max(axis=axis, keepdims=True))
    return powers / powers.sum(axis=axis, keepdims=True)


def _elementwise(call: Call) -> Array:
    """Apply a function to all inputs in order: operands, and constants at their positions."""
    constants, operands = _constants(call), list(call.inputs)
    count = len(constants) + len(call.inputs)
    values = [constants[place] if place in constants else operands.pop(0) for place in range(count)]
    return np.asarray(FUNCTIONS[call.attributes["function"]](call.attributes.get("parameters", {}), *values))


def _sigmoid(x: Array) -> Array:
    return np.asarray(0.5 * (1 + np.tanh(0.5 * x)))


def _gelu(x: Array, approximate: str) -> Array:
    tanh = approximate == "tanh"
    return 0.5 * x * (1 + (np.tanh(sqrt(2 / np.pi) * (x + 0.044715 * x**3)) if tanh else _erf(x / sqrt(2))))


def _erf(x: Array) -> Array:
    from scipy.special import erf

    return np.asarray(erf(x))


def _clip(parameters: Mapping[str, Any], x: Array, *limits: Array) -> Array:
    low = limits[0] if limits else parameters.get("min", -np.inf)
    high = limits[1] if len(limits) > 1 else parameters.get("max", np.inf)
    return np.minimum(np.maximum(x, low), high)


Function = Callable[..., Any]

#: Elementwise functions by the name that the attributes ``function`` and ``activation`` use: parameters, then inputs.
FUNCTIONS: Mapping[str, Function] = {
    "add": lambda p, x, y: x + y,
    "sub": lambda p, x, y: x - y,
    "mul": lambda p, x, y: x * y,
    "div": lambda p, x, y: x / y,
    "maximum": lambda p, *x: reduce(np.maximum, x),
    "minimum": lambda p, *x: reduce(np.minimum, x),
    "sum": lambda p, *x: reduce(np.add, x),
    "mean": lambda p, *x: reduce(np.add, x) / len(x),
    "prelu": lambda p, x, slope: np.where(x < 0, x * slope, x),
    "identity": lambda p, x: x,
    "relu": lambda p, x: np.maximum(x, 0),
    "relu6": lambda p, x: np.clip(x, 0, 6),
    "relu_n1_to_1": lambda p, x: np.clip(x, -1, 1),
    "leaky_relu": lambda p, x: np.where(x < 0, p["alpha"] * x, x),
    "elu": lambda p, x: np.where(x < 0, p["alpha"] * np.expm1(np.minimum(x, 0)), x),
    "sigmoid": lambda p, x: _sigmoid(x),
    "hard_sigmoid": lambda p, x: np.clip(p["alpha"] * x + p["beta"], 0, 1),
    "hard_swish": lambda p, x: x * np.clip(x / 6 + 0.5, 0, 1),
    "silu": lambda p, x: x * _sigmoid(x),
    "softplus": lambda p, x: np.logaddexp(x, 0),
    "gelu": lambda p, x: _gelu(x, p["approximate"]),
    "erf": lambda p, x: _erf(x),
    "tanh": lambda p, x: np.tanh(x),
    "abs": lambda p, x: np.abs(x),
    "neg": lambda p, x: -x,
    "exp": lambda p, x: np.exp(x),
    "clip": _clip,
}

_KERNELS: Mapping[Kind, Callable[[Call], Array]] = {
    Kind.CONV: _conv,
    Kind.DEPTHWISE: _conv,
    Kind.LINEAR: _linear,
    Kind.MATMUL: lambda call: np.asarray(call.inputs[0] @ call.inputs[1]),
    Kind.ELEMENTWISE: _elementwise,
    Kind.BATCH_NORM: _batch_norm,
    Kind.SOFTMAX: _softmax,
    Kind.POOL: _pool,
    Kind.GLOBAL_POOL: _global_pool,
}
#: Kinds of ops that have a reference kernel.
KINDS = frozenset(_KERNELS)
