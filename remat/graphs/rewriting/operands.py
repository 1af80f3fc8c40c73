"""Operands of ops: each is a tensor, a slice of one, or several adjacent parts, as if they were concatenated.

By default each input is one operand; attributes declare other cases. ``concat_inputs`` with ``concat_axis``: all
inputs, in order, are one operand. ``operands``: a list with one entry per operand, ``{"axis": a, "parts":
[p, ...]}``, where a part is the name of a tensor, or ``[name, start, stop]`` for a slice along that axis.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from remat.errors import GraphError
from remat.graphs.graph import Op
from remat.graphs.rewriting.annotations import Attributes, Shape, axis_of, checked_axis, is_whole
from remat.graphs.rewriting.kinds import Kind, kind_of
from remat.runtime.text import short

#: Largest number of parts of an operand after rewriting; larger concatenations stay.
MOST_PARTS = 512

#: Attributes that define the operands of an op.
KEYS = ("concat_inputs", "concat_axis", "operands")


@dataclass(frozen=True, slots=True)
class Part:
    """Tensor, or its elements from `start` to `stop` (exclusive) along the axis of the operand."""

    tensor: str
    start: int
    stop: int

    @property
    def extent(self) -> int:
        """Number of elements along the axis."""
        return self.stop - self.start


@dataclass(frozen=True, slots=True)
class Operand:
    """Adjacent parts along an axis; a whole tensor has no axis.

    Examples
    --------
    >>> both = Operand((Part("x", 0, 4), Part("y", 0, 2)), 1)
    >>> both.cut(1, 3, 6)
    Operand(parts=(Part(tensor='x', start=3, stop=4), Part(tensor='y', start=0, stop=2)), axis=1)
    """

    parts: tuple[Part, ...]
    axis: int | None = None

    @property
    def tensors(self) -> tuple[str, ...]:
        """Names of the tensors, without duplicates."""
        return tuple(dict.fromkeys(part.tensor for part in self.parts))

    @property
    def extent(self) -> int:
        """Number of elements along the axis."""
        return sum(part.extent for part in self.parts)

    @property
    def boundaries(self) -> tuple[int, ...]:
        """Boundaries of the parts along the axis."""
        ends = [0]
        for part in self.parts:
            ends.append(ends[-1] + part.extent)
        return tuple(ends)

    def shape(self, shapes: Mapping[str, Shape]) -> Shape | None:
        """Return the shape of all parts together; None if the shape of a part is unknown."""
        shape = shapes.get(self.parts[0].tensor)
        if shape is None or self.axis is None:
            return shape
        return (*shape[: self.axis], self.extent, *shape[self.axis + 1 :])

    def cut(self, axis: int, start: int, stop: int) -> Operand:
        """Return the elements from `start` to `stop` (exclusive) along `axis`, the operand's own axis if it has one."""
        assert self.axis in {None, axis}
        if self.axis is None:
            return Operand((Part(self.parts[0].tensor, start, stop),), axis)
        kept: list[Part] = []
        first = 0
        for part in self.parts:
            lower, upper = max(start - first, 0), min(stop - first, part.extent)
            if lower < upper:
                kept.append(Part(part.tensor, part.start + lower, part.start + upper))
            first += part.extent
        return Operand(tuple(kept), axis)

    def with_parts_for(self, tensor: str, source: Operand) -> Operand | None:
        """Return the operand with `source` in place of a tensor; None along another axis, or with too many parts."""
        if tensor not in self.tensors:
            return self
        if self.axis is None:
            return source if len(source.parts) <= MOST_PARTS else None
        if source.axis not in {None, self.axis}:
            return None
        parts: list[Part] = []
        for part in self.parts:
            parts += source.cut(self.axis, part.start, part.stop).parts if part.tensor == tensor else [part]
        return Operand(tuple(parts), self.axis) if len(parts) <= MOST_PARTS else None

    def simple(self, shapes: Mapping[str, Shape]) -> Operand:
        """Return the simplest form: merge adjacent slices of a tensor, and drop the axis of a whole tensor."""
        if self.axis is None:
            return self
        parts: list[Part] = []
        for part in self.parts:
            last = parts[-1] if parts else None
            if last is not None and (last.tensor, last.stop) == (part.tensor, part.start):
                parts[-1] = Part(part.tensor, last.start, part.stop)
            else:
                parts.append(part)
        only = parts[0]
        if len(parts) == 1 and (only.start, only.stop) == (0, shapes[only.tensor][self.axis]):
            return whole(only.tensor)
        return Operand(tuple(parts), self.axis)


def whole(tensor: str) -> Operand:
    """Return the operand that is one tensor."""
    return Operand((Part(tensor, 0, 0),))


def read_operands(op: Op, attributes: Attributes, shapes: Mapping[str, Shape]) -> tuple[Operand, ...] | None:
    """Return the operands of an op; None if required shapes are unknown.

    Raise GraphError, naming the op, for an invalid axis, parts with inconsistent shapes, slices outside their tensor,
    and operands that differ from the inputs of the op.
    """
    if attributes.get("operands") is not None:
        return _read_list(op, attributes["operands"], shapes)
    together = kind_of(op.type, attributes) is Kind.CONCAT or attributes.get("concat_inputs") is True
    if not together or not op.inputs:
        return tuple(whole(tensor) for tensor in op.inputs)
    if any(tensor not in shapes for tensor in op.inputs):
        return None
    rank = len(shapes[op.inputs[0]])
    named = (axis_of(attributes, key, rank, op.name) for key in ("concat_axis", "axis"))
    axis = next((axis for axis in named if axis is not None), None)
    if axis is None and (axis := _only_axis(op, shapes)) is None:
        return None
    parts = tuple(Part(tensor, 0, _extent(op, tensor, axis, shapes)) for tensor in op.inputs)
    return (_checked(op, Operand(parts, axis), shapes).simple(shapes),)


def write_operands(
    op_type: str, operands: Sequence[Operand], attributes: Attributes, shapes: Mapping[str, Shape]
) -> dict[str, Any]:
    """Return the attributes of an op with these operands, in the shortest form."""
    rest = {key: value for key, value in attributes.items() if key not in KEYS}
    tensors = {operand.parts[0].tensor for operand in operands}
    if all(operand.axis is None for operand in operands) and len(tensors) == len(operands):
        return rest
    if len(operands) == 1 and _is_plain(operands[0], shapes):
        axis = operands[0].axis
        is_concat = kind_of(op_type, attributes) is Kind.CONCAT
        return rest | ({"axis": axis} if is_concat else {"concat_inputs": True, "concat_axis": axis})
    return rest | {
        "operands": [
            {"parts": [operand.parts[0].tensor]} if operand.axis is None
            else {"axis": operand.axis, "parts": [[part.tensor, part.start, part.stop] for part in operand.parts]}
            for operand in operands
        ]
    }  # fmt: skip


def _is_plain(operand: Operand, shapes: Mapping[str, Shape]) -> bool:
    """Return True if the operand consists of distinct whole tensors."""
    axis = operand.axis
    assert axis is not None
    return len(operand.tensors) == len(operand.parts) and all(
        (part.start, part.stop) == (0, shapes[part.tensor][axis]) for part in operand.parts
    )


def _read_list(op: Op, entries: object, shapes: Mapping[str, Shape]) -> tuple[Operand, ...] | None:
    what = f"attribute 'operands' of op {op.name!r}"
    if not isinstance(entries, list | tuple):
        raise GraphError(f"{what} must be a list, not {short(entries)}")
    operands: list[Operand] = []
    for entry in entries:
        if not isinstance(entry, Mapping) or not isinstance(entry.get("parts"), list | tuple) or not entry["parts"]:
            raise GraphError(f"{what} must hold objects with 'parts', a list that is not empty, not {short(entry)}")
        named = [part[0] if isinstance(part, list | tuple) and len(part) == 3 else part for part in entry["parts"]]
        for tensor in named:
            if not isinstance(tensor, str) or tensor not in op.inputs:
                raise GraphError(f"{what} names {short(tensor)}, which the op does not read")
        if entry.get("axis") is None:
            if len(named) > 1 or named[0] != entry["parts"][0]:
                raise GraphError(f"{what}: several parts, or a slice, need an axis")
            operands.append(whole(named[0]))
        elif any(tensor not in shapes for tensor in named):
            return None
        else:
            axis = checked_axis(entry["axis"], len(shapes[named[0]]), what)
            parts = tuple(_part(op, part, axis, shapes) for part in entry["parts"])
            operands.append(_checked(op, Operand(parts, axis), shapes).simple(shapes))
    unread = set(op.inputs) - {tensor for operand in operands for tensor in operand.tensors}
    if unread:
        raise GraphError(f"{what} does not name {min(unread)!r}, which the op reads")
    return tuple(operands)


def _part(op: Op, given: Any, axis: int, shapes: Mapping[str, Shape]) -> Part:
    tensor, start, stop = (given, None, None) if isinstance(given, str) else given
    extent = _extent(op, tensor, axis, shapes)
    if start is None and stop is None:
        return Part(tensor, 0, extent)
    if not is_whole(start) or not is_whole(stop) or not 0 <= start < stop <= extent:
        raise GraphError(
            f"op {op.name!r} reads {short(start)} to {short(stop)} of tensor {tensor!r}, "
            f"which has {extent} elements there"
        )
    return Part(tensor, start, stop)


def _extent(op: Op, tensor: str, axis: int, shapes: Mapping[str, Shape]) -> int:
    shape = shapes[tensor]
    if axis >= len(shape):
        raise GraphError(f"op {op.name!r} reads tensor {tensor!r} along axis {axis}; it has {len(shape)} axes")
    return shape[axis]


def _checked(op: Op, operand: Operand, shapes: Mapping[str, Shape]) -> Operand:
    """Return the operand after checking that its parts fit together."""
    axis = operand.axis
    assert axis is not None
    first = shapes[operand.parts[0].tensor]
    for part in operand.parts:
        shape = shapes[part.tensor]
        if len(shape) != len(first) or shape[:axis] + shape[axis + 1 :] != first[:axis] + first[axis + 1 :]:
            raise GraphError(
                f"op {op.name!r}: {list(first)} and {list(shape)} (tensor {part.tensor!r}) "
                f"cannot be concatenated along axis {axis}"
            )
    return operand


def _only_axis(op: Op, shapes: Mapping[str, Shape]) -> int | None:
    """Return the axis along which inputs make up the output, if only one is possible and no attribute names it."""
    out = shapes.get(op.outputs[0]) if len(op.outputs) == 1 else None
    given = [shapes[tensor] for tensor in op.inputs]
    if out is None or any(len(shape) != len(out) for shape in given):
        return None
    axes = [
        axis
        for axis in range(len(out))
        if sum(shape[axis] for shape in given) == out[axis]
        and all(shape[:axis] + shape[axis + 1 :] == out[:axis] + out[axis + 1 :] for shape in given)
    ]
    return axes[0] if len(axes) == 1 else None
