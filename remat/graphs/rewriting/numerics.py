"""Reference executor: values of all tensors of a graph, with random weights, in double precision.

Ops that a reader describes completely are computed as described (:mod:`remat.graphs.rewriting.reference_kernels`). Any
other op becomes a random function with the roles of its axes (:mod:`remat.graphs.rewriting.axes`), not the layer of its
type. Weights belong to ops of the original graph and are cut with them, so that a graph and a rewritten one can be
compared.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial, reduce
from math import prod, sqrt
from types import MappingProxyType
from typing import Any

import numpy as np

from remat.errors import GraphError
from remat.graphs.graph import Op
from remat.graphs.rewriting.annotations import FINISH_OF, Attributes, PartOf, Shape, axis_of, part_of
from remat.graphs.rewriting.axes import FIXED, Reading, Role, Roles, claimed, roles
from remat.graphs.rewriting.draft import Draft
from remat.graphs.rewriting.kinds import Kind, kind_of
from remat.graphs.rewriting.operands import Operand
from remat.graphs.rewriting.reference_kernels import KINDS, Array, Call, activate, compute, random_constant
from remat.runtime.deadline import Deadline

#: Number of features to which an operand's fixed and reduced axes together are mapped before the output.
RANK = 4


def layer(call: Call) -> list[Array]:
    """Compute the tensors that an op writes.

    Bias and activation follow unless the op is a partial sum. A duplicate bias, or an activation of a part, therefore
    shows as a difference.
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
        if roles[axis].role is Role.REDUCED:  # for other roles, parts get other weights, which exposes an invalid cut
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


#: Maps an op and an entry of its attribute ``constants`` to an array.
Weights = Callable[[str, Mapping[str, Any]], Array]

#: Largest total number of elements of all tensors.
MOST_ELEMENTS = 2**25
#: Extent to which to reduce the longest axis of images.
SMALL = 6


class Shrink:
    """Reduction of images: divides all axes between batch and channels by one factor.

    If any op concatenates or cuts along these axes, all sizes stay.
    """

    def __init__(self, drafts: Sequence[Draft], smallest: int = SMALL) -> None:
        self.layout = drafts[0].layout
        self.factor = 1
        for draft in drafts:
            _require_shapes(draft)
        if self.layout is None or any(_cut_along_images(draft) for draft in drafts):
            return
        extents = [n for draft in drafts for shape in draft.shapes.values() for n in self._image(shape)]
        self.factor = max(1, max(extents, default=1) // smallest)

    def _image(self, shape: Shape) -> Shape:
        if self.layout is None or len(shape) < 3:
            return ()
        return shape[2:] if self.layout.index("C") == 1 else shape[1:-1]

    def __call__(self, shape: Shape) -> Shape:
        """Return the shape of the reduced tensor."""
        small = tuple(-(-n // self.factor) for n in self._image(shape))
        if not small:
            return shape
        assert self.layout is not None
        return (*shape[:2], *small) if self.layout.index("C") == 1 else (shape[0], *small, shape[-1])


def run(
    draft: Draft,
    shrink: Callable[[Shape], Shape],
    seed: int,
    deadline: Deadline | None = None,
    *,
    inputs: Mapping[str, Array] = MappingProxyType({}),
    weights: Weights | None = None,
    keep: Collection[str] | None = None,
) -> dict[str, Array]:
    """Compute all tensors of a draft in double precision, with images reduced by `shrink`.

    Inputs and weights that are not given are random numbers that depend on names and the seed. `inputs` gives them by
    tensor (op outputs included), `weights` for an op and an entry of its attribute ``constants``. With `keep`, other
    tensors are discarded after their last use, so that larger graphs can be computed.

    Raises
    ------
    GraphError
        Naming the op, if shapes are missing or inconsistent, or the total is too large.
    """
    clock = deadline or Deadline()
    _require_shapes(draft)
    if keep is None and elements(draft, shrink) > MOST_ELEMENTS:
        raise GraphError(f"the tensors of graph {draft.graph.name!r} are too large to be computed for a check")
    found: dict[str, Array] = {
        tensor: generator(seed, "tensor", tensor).standard_normal(shrink(draft.shapes[tensor]))
        for tensor in draft.graph.inputs
    }
    found.update(inputs)
    waiting = Counter(tensor for op in draft.ops.values() for tensor in op.outputs)
    readers = Counter(tensor for op in draft.ops.values() for tensor in op.inputs)
    for names in draft.order.values():
        for name in names:
            clock.check()
            op = draft.ops[name]
            if op.outputs and not inputs.keys().isdisjoint(op.outputs):
                continue
            try:
                shapes = [_written(draft, name, shrink(draft.shapes[tensor])) for tensor in op.outputs]
                outputs = _computed(draft, op, found, shapes, seed=seed, weights=weights or partial(_random, seed))
                for tensor, shape, value in zip(op.outputs, shapes, outputs, strict=True):
                    waiting[tensor] -= 1
                    if value.shape != shape:
                        raise ValueError(f"it gives {list(value.shape)} where tensor {tensor!r} is {list(shape)}")
                    whole = shrink(draft.shapes[tensor])
                    found[tensor] = _put(found.get(tensor), draft, op, (value, whole), last=not waiting[tensor])
                    if not waiting[tensor] and np.isnan(found[tensor]).any():
                        raise ValueError(f"after it tensor {tensor!r} is not complete")
                if keep is not None:
                    readers.subtract(op.inputs)
                    for tensor in op.inputs:
                        if not readers[tensor] and tensor not in keep:
                            del found[tensor]
                    if sum(value.size for value in found.values()) > MOST_ELEMENTS:
                        raise ValueError("the tensors that are alive then are too large for a check")
            except (ValueError, LookupError, TypeError, ArithmeticError, AttributeError) as error:
                raise GraphError(f"op {name!r} cannot be computed: {error}") from None
    return found


def elements(draft: Draft, shrink: Callable[[Shape], Shape]) -> int:
    """Return the total number of elements of all tensors of a draft."""
    return sum(prod(shrink(shape)) for shape in draft.shapes.values())


def _require_shapes(draft: Draft) -> None:
    """Refuse tensors without shapes; in a described graph only opaque ops use them, so any shape is acceptable."""
    for tensor in draft.sizes:
        if draft.described:
            draft.shapes.setdefault(tensor, (1,))
        if tensor not in draft.shapes:
            raise GraphError(f"graph {draft.graph.name!r} has no shape for tensor {tensor!r}", "no-shape")


def generator(seed: int, *names: object) -> np.random.Generator:
    """Return a random generator that depends on a seed and names."""
    digest = hashlib.sha256(repr((seed, names)).encode()).digest()
    return np.random.default_rng(int.from_bytes(digest[:8], "little"))


def _computed(
    draft: Draft, op: Op, found: Mapping[str, Array], shapes: list[Shape], *, seed: int, weights: Weights
) -> list[Array]:
    operands = draft.operands(op.name)
    if operands is None:
        raise GraphError(f"graph {draft.graph.name!r} has no shapes for what op {op.name!r} reads")
    attributes = draft.attributes.get(op.name, {})
    if not operands:
        return [generator(seed, "tensor", t).standard_normal(s) for t, s in zip(op.outputs, shapes, strict=True)]
    inputs = [_gathered(operand, found) for operand in operands]
    kind = draft.kind(op.name)
    is_copy = shapes == [inputs[0].shape]
    if kind is Kind.SPLIT or (kind is Kind.SLICE and (is_copy or attributes.get("axis") is not None)):
        return _slices(op, attributes, inputs[0], shapes)
    part = part_of(op.name, attributes)
    finished = attributes.get(FINISH_OF) if kind is Kind.FINISH else None
    finished_op = str(finished.get("of")) if isinstance(finished, Mapping) else None
    origin = part.of if part is not None else finished_op or op.name

    def random(slot: str, shape: Shape) -> Array:
        if prod(shape) > MOST_ELEMENTS:
            raise ValueError(f"{prod(shape):,} weights are too many for a check")
        return np.asarray(generator(seed, "weights", origin, slot).standard_normal(shape))

    found_roles = [_roles(draft, op.name, number, part) or (FIXED,) * x.ndim for number, x in enumerate(inputs)]
    constant = partial(weights, origin) if draft.described else None
    return layer(Call(kind, attributes, part, inputs, shapes, found_roles, random, constant))


def _random(seed: int, op: str, entry: Mapping[str, Any]) -> Array:
    """Return random values of a constant of a described op."""
    if prod(entry["shape"]) > MOST_ELEMENTS:
        raise ValueError(f"{prod(entry['shape']):,} weights are too many for a check")
    return random_constant(entry, generator(seed, "constant", op, entry["input"]))


def _roles(draft: Draft, op: str, operand: int, part: PartOf | None) -> Roles | None:
    """Return the roles of the axes of an operand; for a part of an op, the roles in the whole op."""
    reading = draft.reading(op, operand)
    if reading is None or part is None:
        return None if reading is None else _checked(reading)
    shapes, output, length = list(reading.shapes), reading.output, part.stop - part.start
    shapes[part.operand] = _with_extent(shapes[part.operand], part.axis, part.extent)
    if not part.sum and draft.attributes[op].get("output_slice") is None:
        found = roles(reading)[part.axis].output
        axis = part.axis if found is None else found
        output = _with_extent(output, axis, output[axis] * part.extent // length)
    return _checked(replace(reading, shapes=shapes, output=output))


def _checked(reading: Reading) -> Roles:
    found = roles(reading)
    if found != claimed(reading):
        raise ValueError(f"{list(reading.shape)} that it reads and {list(reading.output)} do not go together")
    return found


def _with_extent(shape: Shape, axis: int, extent: int) -> Shape:
    return (*shape[:axis], extent, *shape[axis + 1 :])


def _gathered(operand: Operand, found: Mapping[str, Array]) -> Array:
    if operand.axis is None:
        return found[operand.parts[0].tensor]
    pieces = []
    for part in operand.parts:
        whole = found[part.tensor]
        if part.stop > whole.shape[operand.axis]:
            raise ValueError(f"tensor {part.tensor!r} has fewer than {part.stop} elements along axis {operand.axis}")
        pieces.append(np.take(whole, np.arange(part.start, part.stop), axis=operand.axis))
    return np.concatenate(pieces, axis=operand.axis)


def _slices(op: Op, attributes: Attributes, x: Array, shapes: list[Shape]) -> list[Array]:
    axis = axis_of(attributes, "axis", x.ndim, op.name)
    if axis is None and shapes == [x.shape]:
        return [x]
    if axis is None:
        raise ValueError("it has no axis")
    start = attributes.get("start", 0) if kind_of(op.type, attributes) is Kind.SLICE else 0
    found = []
    for shape in shapes:
        found.append(np.take(x, np.arange(start, start + shape[axis]), axis=axis))
        start += shape[axis]
    return found


def _written(draft: Draft, op: str, shape: Shape) -> Shape:
    """Return the shape of an op's contribution to a tensor of this shape: the whole or its slice."""
    place = draft.attributes.get(op, {}).get("output_slice")
    if place is None:
        return shape
    axis, start, stop = place
    if not 0 <= axis < len(shape) or not 0 <= start < stop <= shape[axis]:
        raise ValueError(f"it writes {start} to {stop} along axis {axis}, which its output does not have")
    return (*shape[:axis], stop - start, *shape[axis + 1 :])


def _put(before: Array | None, draft: Draft, op: Op, given: tuple[Array, Shape], *, last: bool) -> Array:
    """Return a tensor after an op wrote it: replaced, updated in a slice, or increased."""
    value, shape = given
    attributes = draft.attributes.get(op.name, {})
    place = attributes.get("output_slice")
    if place is not None:
        axis, start, stop = place
        whole = np.full(shape, np.nan) if before is None else before
        whole[(slice(None),) * axis + (slice(start, stop),)] = value
        return whole
    total = value if before is None else before + value
    part = part_of(op.name, attributes)
    if part is None or not (part.sum and part.finish and last):
        return total
    return activate(attributes, total) if draft.described else activated(total)


def _cut_along_images(draft: Draft) -> bool:
    """Return True if any op concatenates or cuts along an axis other than batch and channels."""
    for name, op in draft.ops.items():
        kind = draft.kind(name)
        if kind in {Kind.REDUCE_SUM, Kind.MATMUL}:
            return True
        axes = [(operand.axis, operand.tensors[0]) for operand in draft.operands(name) or ()]
        if kind in {Kind.SPLIT, Kind.SLICE} and op.inputs and op.inputs[0] in draft.shapes:
            rank = len(draft.shapes[op.inputs[0]])
            axes.append((axis_of(draft.attributes.get(name, {}), "axis", rank, name), op.inputs[0]))
        for axis, tensor in axes:
            rank = len(draft.shapes[tensor])
            channels = 1 % rank if draft.layout is not None and draft.layout.index("C") == 1 else rank - 1
            if axis not in {None, 0, channels}:
                return True
    return False
