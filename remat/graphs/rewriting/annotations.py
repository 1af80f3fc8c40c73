"""Checked shapes of tensors and attributes of ops, from the ``meta`` of a graph; attributes of parts of ops."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, TypeGuard

from remat.errors import GraphError
from remat.graphs.graph import MAX_TOTAL, ComputeGraph
from remat.graphs.rewriting.kinds import KIND, Kind
from remat.runtime.text import short

Shape = tuple[int, ...]
Attributes = Mapping[str, Any]

#: Largest number of axes of a tensor, and length of a layout.
MOST_AXES = 8


def is_whole(value: object) -> TypeGuard[int]:
    """Return True if `value` is an integer and not a Boolean."""
    return isinstance(value, int) and not isinstance(value, bool)


def read_shapes(graph: ComputeGraph) -> dict[str, Shape]:
    """Return ``meta["shapes"]``: the extent of each axis, batch first, for the tensors that have an entry.

    Raise GraphError, naming the tensor whose shape is not a list of at most 8 positive integers.

    Examples
    --------
    >>> from remat.graphs import ComputeGraph, Op, Tensor
    >>> def g(shape):
    ...     return ComputeGraph("g", [Tensor("x", 4)], [Op("a", outputs=("x",))], meta={"shapes": {"x": shape}})
    >>> read_shapes(g([1, 2, 2]))
    {'x': (1, 2, 2)}
    >>> read_shapes(g([1, -2]))
    Traceback (most recent call last):
    remat.errors.GraphError: graph 'g': the shape of tensor 'x' must be whole numbers from 1, not -2
    """
    shapes: dict[str, Shape] = {}
    for tensor, shape in _table(graph, "shapes").items():
        if tensor not in graph.tensor_index:
            continue
        what = f"graph {graph.name!r}: the shape of tensor {tensor!r}"
        if not isinstance(shape, list | tuple):
            raise GraphError(f"{what} must be a list, not {short(shape)}")
        if len(shape) > MOST_AXES:
            raise GraphError(f"{what} has {len(shape):,} axes, more than {MOST_AXES}")
        total = 1
        for extent in shape:
            if not is_whole(extent) or extent < 1:
                raise GraphError(f"{what} must be whole numbers from 1, not {short(extent)}")
            total *= extent
        if total >= MAX_TOTAL:
            raise GraphError(f"{what} has more than 2^62 elements")
        shapes[tensor] = tuple(shape)
    return shapes


def read_attributes(graph: ComputeGraph) -> dict[str, Attributes]:
    """Return ``meta["attrs"]``: a mapping for each op that has an entry.

    Raise GraphError, naming the op whose attributes are not a mapping, or whose ``kind`` is not a
    :class:`~remat.graphs.rewriting.kinds.Kind`.
    """
    found: dict[str, Attributes] = {}
    for op, attributes in _table(graph, "attrs").items():
        if op in graph.op_index:
            if not isinstance(attributes, Mapping):
                raise GraphError(
                    f"graph {graph.name!r}: the attributes of op {op!r} must be an object, not {short(attributes)}"
                )
            kind = attributes.get(KIND)
            if kind is not None and (not isinstance(kind, str) or kind not in set(Kind)):
                raise GraphError(f"attribute 'kind' of op {op!r} must be one of {', '.join(Kind)}, not {short(kind)}")
            found[op] = attributes
    if is_described(graph):
        return {op.name: {KIND: Kind.OPAQUE, **found.get(op.name, {})} for op in graph.ops}
    return found


def is_described(graph: ComputeGraph) -> bool:
    """Return ``meta["described"]``: true if ops without the attribute ``kind`` are opaque, regardless of their types.

    The readers of deployed models and the captures set it. They give a kind only to ops that they describe completely,
    so no rewrite depends on the name of a type. Raise GraphError if the value is neither true nor false.
    """
    described = graph.meta.get("described", False)
    if not isinstance(described, bool):
        raise GraphError(f"graph {graph.name!r}: meta['described'] must be true or false, not {short(described)}")
    return described


def _table(graph: ComputeGraph, key: str) -> Mapping[str, Any]:
    table = graph.meta.get(key, {})
    if not isinstance(table, Mapping):
        raise GraphError(f"graph {graph.name!r}: meta[{key!r}] must be an object, not {short(table)}")
    return table


def axis_of(attributes: Attributes, key: str, rank: int, op: str) -> int | None:
    """Return the axis that an attribute names, from 0; negative ones count from the end. None if absent.

    Raise GraphError, naming the op, for an invalid axis of a tensor with `rank` axes.

    Examples
    --------
    >>> axis_of({"axis": -1}, "axis", 4, "a")
    3
    """
    axis = attributes.get(key)
    return None if axis is None else checked_axis(axis, rank, f"attribute {key!r} of op {op!r}")


def checked_axis(axis: object, rank: int, what: str) -> int:
    """Return an axis, counted from 0; `what` names it in the message."""
    if not is_whole(axis) or not -rank <= axis < rank:
        raise GraphError(f"{what} is {short(axis)}, which is no axis of a tensor with {rank} axes")
    return axis % rank


#: Attributes of a part, of the op that computes the output from a full accumulation buffer, and of the op that
#: concatenates parts.
PART_OF, FINISH_OF, JOIN_OF = "part_of", "finish_of", "join_of"


@dataclass(frozen=True, slots=True)
class PartOf:
    """Part of an op: the elements from `start` to `stop` (exclusive) along an axis of an operand."""

    of: str
    """The original op."""
    operand: int
    """Number of the operand of the original op."""
    axis: int
    start: int
    stop: int
    extent: int
    """Extent of the axis."""
    sum: bool = False
    """True if parts are summed; otherwise they are concatenated."""
    bias: bool = True
    """True if this part adds the bias of the op."""
    finish: bool = True
    """True if an activation follows in the buffer after the last part."""

    def as_dict(self) -> dict[str, Any]:
        """Return the part as an entry of a graph's ``meta``."""
        return asdict(self)


def part_of(op: str, attributes: Attributes) -> PartOf | None:
    """Return the attribute ``part_of`` of an op; None if the op is not a part.

    Raise GraphError, naming the op, if the attribute is not a valid :class:`PartOf`.
    """
    given = attributes.get(PART_OF)
    if given is None:
        return None
    try:
        found = PartOf(**given) if isinstance(given, Mapping) else None
    except TypeError:
        found = None
    if found is not None and isinstance(found.of, str):
        counts = (found.operand, found.axis, found.start, found.stop, found.extent)
        flags = (found.sum, found.bias, found.finish)
        sound = all(is_whole(n) and 0 <= n < 2**62 for n in counts) and all(isinstance(flag, bool) for flag in flags)
        if sound and found.start < found.stop <= found.extent:
            return found
    raise GraphError(f"attribute {PART_OF!r} of op {op!r} does not name the op and the part")
