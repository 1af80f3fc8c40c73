"""Functions that an ONNX model defines for itself, expanded where they are called."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from graphlib import CycleError, TopologicalSorter
from typing import Any

from remat.errors import FormatError
from remat.graphs.formats.onnx.inference import MAX_NODES, inner_graphs
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
    bodies = {(each.domain, each.name, each.overload): list(_called(each.node)) for each in model.functions}
    sizes: dict[_Key, int] = {}
    try:
        for key in TopologicalSorter({key: bodies.keys() & body for key, body in bodies.items()}).static_order():
            # even an empty body costs work, so that calls of it count
            sizes[key] = min(1 + _size(bodies[key], sizes), 2**62)
    except CycleError as error:
        raise FormatError(f"function {short(error.args[1][0][1])} calls itself", "recursion") from None
    total = _size(_called(model.graph.node), sizes)
    if total > MAX_NODES:
        raise FormatError(
            f"its functions expand to {total:,} nodes, more than the {MAX_NODES:,} that are read", "expansion"
        )
    from onnx.inliner import inline_local_functions

    try:
        return inline_local_functions(model)
    except Exception as error:
        raise FormatError(f"its functions cannot be expanded: {clipped(one_line(str(error)), 300)}") from None


def _called(nodes: Iterable[Any]) -> Iterator[_Key]:
    """Yield what each node calls, a function or an op, those of the graphs inside nodes too."""
    for node in nodes:
        yield node.domain, node.op_type, node.overload
        for graph in inner_graphs(node):
            yield from _called(graph.node)


def _size(called: Iterable[_Key], sizes: dict[_Key, int]) -> int:
    """Return how many nodes come of calls of functions, whose sizes are known, and of ops, one of each."""
    return sum(sizes.get(key, 1) for key in called)
