"""Layers of the reference executor: a random function with the axis roles of an op."""

from __future__ import annotations

from functools import reduce
from math import sqrt

import numpy as np

from remat.graphs.rewriting.axes import Role
from remat.graphs.rewriting.kinds import Kind
from remat.graphs.rewriting.reference_kernels import KINDS, Array, Call, compute

#: Number of features to which an operand's fixed and reduced axes together are mapped before the output.
RANK = 4


def layer(call: Call) -> list[Array]:
    """Compute the tensors that an op writes.

    Bias and activation follow unless the op is a partial sum, so that a duplicate bias or an activation of a part shows
    as a difference.
    """
    if call.kind is Kind.CONCAT:
        return call.inputs
    if call.constant is not None and call.kind in KINDS:
        return [compute(call)]
    part = call.part
    outputs = [_combined(call, number) for number in range(len(call.shapes))]
    if part is None or not part.sum or part.bias:
        outputs = [y + call.random(f"bias {number}", ()) for number, y in enumerate(outputs)]
    return outputs if part is not None and part.sum else [activated(y) for y in outputs]


def activated(x: Array) -> Array:
    """Apply a nonlinear injective function, which stands for all activations."""
    return x / (1 + np.abs(x))


def _combined(call: Call, number: int) -> Array:
    """Return the combination of all operands, before bias and activation."""
    match call.kind, call.inputs:
        case Kind.FINISH, [x]:
            return x
        case Kind.ELEMENTWISE, [_, _, *_]:
            return reduce(np.add, (x * place for place, x in enumerate(call.inputs, start=1)))
        case Kind.MATMUL, [first, second]:
            if any(call.attributes.get(key) for key in ("transpose_a", "transA", "adj_x")):
                first = first.swapaxes(-1, -2)
            if any(call.attributes.get(key) for key in ("transpose_b", "transB", "adj_y")):
                second = second.swapaxes(-1, -2)
            return first @ second
    return reduce(np.add, (_by_roles(call, operand, number) for operand in range(len(call.inputs))))


def _by_roles(call: Call, operand: int, number: int) -> Array:
    """Apply a random linear function to an operand: scale along parallel axes, multiply by matrices along others."""
    x, roles, shape, slot = call.inputs[operand], call.roles[operand], call.shapes[number], f"{operand} to {number}"
    side = {axis: role.output for axis, role in enumerate(roles) if role.output is not None}
    rest = [axis for axis in range(x.ndim) if axis not in side]
    y = np.transpose(x, [*side, *rest])
    if not rest:
        y = y[..., None]
    for axis in rest:
        extent, here = x.shape[axis], slice(None)
        if roles[axis].role is Role.REDUCED:  # otherwise parts get other weights, which exposes an invalid cut
            extent, here = call.whole(operand, axis)
        weights = call.random(f"{slot}, {roles[axis].role} {axis}", (extent, RANK))[here] / sqrt(extent)
        if axis == rest[0]:
            y = np.moveaxis(y, len(side), -1) @ weights
        else:
            y = np.einsum("...ar,ar->...r", np.moveaxis(y, len(side), -2), weights)
    for axis, extent in enumerate(shape):
        if axis not in side.values():
            y = y[..., None, :] * call.random(f"{slot}, output {axis}", (extent, y.shape[-1]))
    y = y.sum(axis=-1)
    for place, (axis, output) in enumerate(side.items()):
        extent, here = call.whole(operand, axis)
        scale = 1.5 + np.tanh(call.random(f"{slot}, scale {axis}", (extent,))[here])
        times = np.arange(shape[output]) * x.shape[axis] // shape[output]  # several outputs per element read
        along = (-1,) + (1,) * (y.ndim - place - 1)
        y = np.take(y * scale.reshape(along), times, axis=place)
    return np.moveaxis(y, range(len(side)), tuple(side.values()))
