"""Shapes of tensors and attributes of ops, as the ``meta`` of a graph carries them, checked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeGuard

from remat.errors import GraphError
from remat.graphs.graph import MAX_TOTAL, ComputeGraph
from remat.graphs.rewriting.kinds import KIND, Kind
from remat.io.text import short

Shape = tuple[int, ...]
Attributes = Mapping[str, Any]

#: Axes that a tensor may have, and characters of a layout.
MOST_AXES = 8


def is_whole(value: object) -> TypeGuard[int]:
    """Whether this is a whole number, and no truth value."""
    return isinstance(value, int) and not isinstance(value, bool)


def read_shapes(graph: ComputeGraph) -> dict[str, Shape]:
    """``meta["shapes"]``: for tensors of the graph, as far as they are given, the extent of each axis, batch first.

    Raises
    ------
    GraphError
        Naming the tensor whose shape is not a list of at most 8 whole numbers from 1.

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
    """``meta["attrs"]``: for ops of the graph, as far as they are given, a mapping.

    Raises
    ------
    GraphError
        Naming the op whose attributes are something else, or whose ``kind`` is none of
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
    """Return ``meta["described"]``: ops without the attribute ``kind`` are opaque, whatever their types are called.

    The readers of deployed models and the captures set it and give a kind to the ops that they describe completely,
    so that no rewrite rests on the name of a type.

    Raises
    ------
    GraphError
        If it is neither true nor false.
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
    """The axis that an attribute names, from 0; negative ones count from the end. None where it is not there.

    Raises
    ------
    GraphError
        Naming the op, for what is no axis of a tensor with `rank` axes.

    Examples
    --------
    >>> axis_of({"axis": -1}, "axis", 4, "a")
    3
    """
    axis = attributes.get(key)
    return None if axis is None else checked_axis(axis, rank, f"attribute {key!r} of op {op!r}")


def checked_axis(axis: object, rank: int, what: str) -> int:
    """An axis from 0; `what` names it in the message."""
    if not is_whole(axis) or not -rank <= axis < rank:
        raise GraphError(f"{what} is {short(axis)}, which is no axis of a tensor with {rank} axes")
    return axis % rank
