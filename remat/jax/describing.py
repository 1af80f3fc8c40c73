"""Descriptions of simple equations for rewriting; see ``docs/rewriting.md``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jax import numpy as jnp

from remat.graphs.rewriting.descriptions import (
    Description,
    Site,
    Window,
    concatenation,
    convolution,
    described,
    elementwise,
    is_usable,
    linear,
    product,
)
from remat.jax.inlining import Number, Trace, TracedOp


def description(trace: Trace, ops: Sequence[TracedOp]) -> dict[str, Any]:
    """Return shapes of tensors and descriptions of ops, for the ``meta`` of a graph."""
    found: dict[str, Description] = {}
    for op in ops:
        describer = _PRIMITIVES.get(op.equation.primitive.name)
        site = None if describer is None else _site(trace, op)
        what = None if describer is None or site is None else describer(site, op.equation.params)
        if what is not None:
            found[op.name] = what
    values = [trace.tensors[t] for op in ops for t in op.outputs]
    return described({name: tuple(value.shape) for name, value in values if hasattr(value, "shape")}, found)


def _site(trace: Trace, op: TracedOp) -> Site | None:
    """Return inputs and output of an op; None unless they are whole tensors of one floating-point type."""
    if len(op.outputs) != 1 or len(op.read) != len(op.equation.invars):
        return None
    result = trace.tensors[op.outputs[0]][1]
    if (
        not hasattr(result, "shape")
        or not jnp.issubdtype(result.dtype, jnp.floating)
        or not is_usable(tuple(result.shape))
    ):
        return None
    tensors: list[str | None] = []
    for value, variable in zip(op.read, op.equation.invars, strict=True):
        if getattr(variable.aval, "dtype", None) != result.dtype or not isinstance(value, int | Number):
            return None
        if isinstance(value, Number) or value < 0:
            tensors.append(None)
            continue
        name, written = trace.tensors[value]
        if written.shape != variable.aval.shape:
            return None  # a view
        tensors.append(name)
    inputs = tuple(tuple(variable.aval.shape) for variable in op.equation.invars)
    return Site(inputs, tuple(tensors), tuple(result.shape))


Describer = Callable[[Site, Mapping[str, Any]], Description | None]


def _conv(site: Site, given: Mapping[str, Any]) -> Description | None:
    reads, filters, writes = given["dimension_numbers"]
    x, weights, rank = site.data(0), site.constant(1), len(site.output)
    if x is None or weights is None or reads != writes or reads[0] != 0 or reads[1] not in {1, rank - 1}:
        return None
    if list(reads[2:]) != sorted(reads[2:]) or list(filters[2:]) != sorted(filters[2:]):
        return None
    if given["batch_group_count"] != 1 or any(n != 1 for n in given["lhs_dilation"]):
        return None
    if x[reads[1]] != weights[filters[1]] * given["feature_group_count"]:
        return None
    kernel = [weights[axis] for axis in filters[2:]]
    window = Window(kernel, given["window_strides"], given["rhs_dilation"], given["padding"])
    layout = "NCHW" if reads[1] == 1 else "NHWC"
    return convolution(site, window, layout=layout, axes=(filters[0], filters[1]))


def _dot(site: Site, given: Mapping[str, Any]) -> Description | None:
    (first, second), batch = given["dimension_numbers"]
    x, weights, other = site.data(0), site.constant(1), site.data(1)
    if x is None or tuple(first) != (len(x) - 1,) or len(second) != 1:
        return None
    if weights is not None:
        return linear(site, axes=(1 - second[0], second[0])) if batch == ((), ()) and len(weights) == 2 else None
    leading = tuple(range(len(x) - 2))
    if other is None or tuple(map(tuple, batch)) != (leading, leading) or tuple(second) != (len(other) - 2,):
        return None
    return product(site)


def _function(function: str) -> Describer:
    return lambda site, given: elementwise(site, function)


#: Elementwise functions of primitives.
_FUNCTIONS = {
    "add": "add", "add_any": "add", "sub": "sub", "mul": "mul", "div": "div", "max": "maximum", "min": "minimum",
    "tanh": "tanh", "logistic": "sigmoid", "exp": "exp", "neg": "neg", "abs": "abs", "erf": "erf",
}  # fmt: skip
_PRIMITIVES: Mapping[str, Describer] = {
    "conv_general_dilated": _conv,
    "dot_general": _dot,
    "concatenate": lambda site, given: concatenation(site, given["dimension"]),
    **{name: _function(function) for name, function in _FUNCTIONS.items()},
}
