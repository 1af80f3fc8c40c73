"""Functions that an ONNX model defines for itself, expanded where they are called."""

from __future__ import annotations

from typing import Any

from remat.errors import FormatError
from remat.graphs.formats.onnx.inference import MAX_NODES
from remat.io.text import clipped, one_line, short

_Key = tuple[str, str, str]


def expanded(model: Any) -> Any:
    """The model without functions of its own: their nodes stand where they were called.

    Raises
    ------
    FormatError
        If a function calls itself, or so many nodes would come of it that somebody must have meant harm.
    """
    if not model.functions:
        return model
    bodies = {(each.domain, each.name, each.overload): each.node for each in model.functions}
    sizes: dict[_Key, int] = {}
    for key in bodies:
        _measure(key, bodies, sizes)
    total = sum(_size(node, bodies, sizes) for node in model.graph.node)
    if total > MAX_NODES:
        raise FormatError(
            f"its functions expand to {total:,} nodes, more than the {MAX_NODES:,} that are read", "expansion"
        )
    from onnx.inliner import inline_local_functions

    try:
        return inline_local_functions(model)
    except Exception as error:
        raise FormatError(f"its functions cannot be expanded: {clipped(one_line(str(error)), 300)}") from None


def _key(node: Any) -> _Key:
    return node.domain, node.op_type, node.overload


def _size(node: Any, bodies: dict[_Key, Any], sizes: dict[_Key, int]) -> int:
    """How many nodes come of a call whose function has been measured, and of the graphs inside it; 1 for an op."""
    size = sizes[_key(node)] if _key(node) in bodies else 1
    for attribute in node.attribute:
        for graph in [attribute.g] if attribute.HasField("g") else attribute.graphs:
            size += sum(_size(each, bodies, sizes) for each in graph.node)
    return size


def _calls(node: Any, bodies: dict[_Key, Any]) -> list[_Key]:
    """Functions that a node calls, itself or in the graphs inside it."""
    found = [_key(node)] if _key(node) in bodies else []
    for attribute in node.attribute:
        for graph in [attribute.g] if attribute.HasField("g") else attribute.graphs:
            for each in graph.node:
                found += _calls(each, bodies)
    return found


def _measure(start: _Key, bodies: dict[_Key, Any], sizes: dict[_Key, int]) -> None:
    """Note how many nodes come of a function, and of those that it calls, without recursion."""
    open_: list[_Key] = [start]
    inside: set[_Key] = set()
    while open_:
        key = open_[-1]
        if key in sizes:
            inside.discard(open_.pop())
            continue
        calls = {each for node in bodies[key] for each in _calls(node, bodies) if each not in sizes}
        if not calls:
            # even an empty body costs work, so that calls of it count
            sizes[key] = min(1 + sum(_size(node, bodies, sizes) for node in bodies[key]), 2**62)
            continue
        if key in inside or key in calls:
            raise FormatError(f"function {short(key[1])} calls itself", "recursion")
        inside.add(key)
        open_.extend(calls)
