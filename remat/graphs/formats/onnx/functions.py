"""Expansion of the functions that an ONNX model defines, at each call."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from graphlib import CycleError, TopologicalSorter
from typing import Any, NamedTuple

from remat.errors import FormatError
from remat.graphs.formats.onnx.inner_graphs import named_graphs
from remat.graphs.formats.onnx.shape_inference import MAX_NODES
from remat.io.limits import draw
from remat.runtime.text import clipped, one_line, short

_Key = tuple[str, str, str]


class _Size(NamedTuple):
    """Nodes and bytes of an expanded call, and number of places in the body that repeat its names and attributes."""

    nodes: int = 1
    bytes: int = 0
    places: int = 0


_OP = _Size()
#: Memory in bytes, and seconds, for each byte and node of the expanded model, which the library copies several times.
_MEMORY, _NODE_MEMORY, _SECONDS, _NODE_SECONDS = 4, 500, 1e-8, 1e-5
#: Cap on sizes, since chains of calls double them at every level.
_MOST = 2**62


def expanded(model: Any) -> Any:
    """Return the model with every call of its own functions replaced by the nodes of the function.

    Raise FormatError if a function calls itself, or the expansion exceeds a safety limit or the budget of the file.
    """
    if not model.functions:
        return model
    bodies = {(each.domain, each.name, each.overload): each for each in model.functions}
    calls = {key: bodies.keys() & {_key(node) for node in _all_nodes(each.node)} for key, each in bodies.items()}
    sizes: dict[_Key, _Size] = {}
    try:
        for key in TopologicalSorter(calls).static_order():
            body = _size(bodies[key].node, sizes)
            defaults = sum(each.ByteSize() for each in bodies[key].attribute_proto)
            # even an empty body takes work, so its calls must count
            sizes[key] = _Size(
                min(1 + body.nodes, _MOST), min(body.bytes + defaults * body.places, _MOST), min(body.places, _MOST)
            )
    except CycleError as error:
        raise FormatError(f"function {short(error.args[1][0][1])} calls itself", "recursion") from None
    total = _size(model.graph.node, sizes)
    if total.nodes > MAX_NODES:
        raise FormatError(
            f"its functions expand to {total.nodes:,} nodes, more than the {MAX_NODES:,} that are read", "expansion"
        )
    draw(_MEMORY * total.bytes + _NODE_MEMORY * total.nodes, _SECONDS * total.bytes + _NODE_SECONDS * total.nodes)
    from onnx.inliner import inline_local_functions

    try:
        return inline_local_functions(model)
    except Exception as error:
        raise FormatError(f"its functions cannot be expanded: {clipped(one_line(str(error)), 300)}") from None


def call_depths(model: Any) -> list[int]:
    """Return for each node of the :func:`expanded` model how many calls of functions it comes from."""
    bodies = {(each.domain, each.name, each.overload): each for each in model.functions}

    def depths(nodes: Iterable[Any], depth: int) -> Iterator[int]:
        for node in nodes:
            body = bodies.get(_key(node))
            if body is None:
                yield depth
            else:
                yield from depths(body.node, depth + 1)

    return list(depths(model.graph.node, 0))


def _key(node: Any) -> _Key:
    """Return the key of the function or op that a node calls."""
    return node.domain, node.op_type, node.overload


def _all_nodes(nodes: Iterable[Any]) -> Iterator[Any]:
    """Yield the nodes and those of the graphs inside them."""
    for node in nodes:
        draw()
        yield node
        for _, graph in named_graphs(node):
            yield from _all_nodes(graph.node)


def _size(nodes: Iterable[Any], sizes: dict[_Key, _Size]) -> _Size:
    """Return the totals of the expanded nodes; every place of a body repeats the names and attributes of the call."""
    count = size = places = 0
    for node in _all_nodes(nodes):
        called = sizes.get(_key(node), _OP)
        passed = 1 + len(node.input) + len(node.output) + sum(bool(each.ref_attr_name) for each in node.attribute)
        count += called.nodes
        size += called.bytes + node.ByteSize() * (1 + called.places)
        places += passed * (1 + called.places)
    return _Size(count, size, places)
