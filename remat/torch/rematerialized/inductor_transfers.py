"""Moves of tensors in graphs for TorchInductor, by the operators of PyTorch that its compiler knows."""

from __future__ import annotations

import operator
from collections import Counter
from dataclasses import replace
from typing import Any

import torch
from torch import fx

from remat.errors import ExecutionError
from remat.torch import private
from remat.torch.captured import Captured
from remat.torch.execute.split import Split
from remat.torch.transfers import moves


def has_link(device: torch.device) -> bool:
    """Return True if ``torch.ops.ao`` moves tensors of a device: those of an accelerator."""
    return device.type != "cpu"


def movable(captured: Captured) -> Captured:
    """Return a captured step that moves only tensors that ``torch.ops.ao`` can: one dense value in its storage.

    Raise ExecutionError if the step has no tensor on an accelerator.
    """
    values: dict[str, Any] = {}
    counts = Counter[str]()
    for home, value in captured.placed():
        values[home] = value
        counts[home] += 1
    graph = captured.graph
    if not any(isinstance(each, torch.Tensor) and has_link(each.device) for each in values.values()):
        raise ExecutionError(
            f"{graph.name!r} has no tensor on an accelerator, and Inductor moves no others: leave out offload and "
            "machine, or use remat.torch.rematerialize(..., offload=...)",
            "inductor-device",
        )
    stay = [
        each.name for each in graph.tensors if counts[each.name] != 1 or not _can_move(values[each.name], each.size)
    ]
    held = [*graph.meta.get("on_device", ()), *stay]
    return replace(captured, graph=replace(graph, meta={**graph.meta, "on_device": held}))


def _can_move(value: Any, size: int) -> bool:
    return isinstance(value, torch.Tensor) and value.nbytes == size and has_link(value.device)


def with_operators(parts: Split) -> tuple[fx.GraphModule, fx.GraphModule]:
    """Return the graphs of a split with ``torch.ops.ao`` in place of the moves of this package.

    A tensor under way at the end of the forward pass is awaited there. Values that only a wait reads are not saved.
    """
    forward, backward = parts.forward.graph, parts.backward.graph
    output = forward.output_node()
    count = len(parts.forward_results)
    results, saved = output.args[0][:count], output.args[0][count:]
    origins: dict[fx.Node, Any] = {}
    current = _replace(forward, origins)
    places = backward.find_nodes(op="placeholder")[: len(saved)]
    handed = [current.get(node, node) for node in saved]
    for node, sent, place in zip(saved, handed, places, strict=True):
        place.meta = dict(sent.meta)
        if node in origins:
            origins[place] = origins[node]
    _replace(backward, origins)
    read = [(sent, place) for sent, place in zip(handed, places, strict=True) if place.users]
    for place in places:
        if not place.users:
            backward.erase_node(place)
    output.args = ((*results, *(sent for sent, _ in read)),)
    for graph in (forward, backward):
        for node in reversed(list(graph.nodes)):
            if _is_move(node) or (node.op == "placeholder" and node.name == "host_space"):
                graph.erase_node(node)
        graph.lint()
    for module in (parts.forward, parts.backward):
        module.recompile()
    return parts.forward, parts.backward


def _is_move(node: fx.Node) -> bool:
    return node.target in (moves.offload, moves.settle, moves.fetch, moves.arrive, moves.discard)


def _replace(graph: fx.Graph, origins: dict[fx.Node, Any]) -> dict[fx.Node, fx.Node]:
    """Insert the operators next to the moves of a graph; return the nodes that replace copies and fetched tensors.

    `origins`: the tensor on the device for each copy on the host; copies of this graph are added.
    """
    operators = private.offload_operators.torch.ops.ao
    current: dict[fx.Node, fx.Node] = {}
    under_way: dict[fx.Node, fx.Node] = {}  # copies and fetched tensors, with what must live until they are complete

    def call(target: Any, args: tuple[Any, ...], name: str, value: Any) -> fx.Node:
        node = graph.create_node("call_function", target, args, name=name)
        node.meta["val"] = value
        return node

    def wait(move: fx.Node) -> None:
        moved = current[move]
        args = moved, None, under_way.pop(move)
        current[move] = call(operators.wait_tensor.default, args, f"{moved.name}_complete", moved.meta["val"])

    for node in list(graph.nodes):
        first: Any = node.args[0] if node.args else None
        with graph.inserting_before(node):
            if node.target is moves.offload:
                source = node.args[2]
                origins[node] = value = source.meta["val"]
                with private.detect_fake_mode([value]):
                    copy = torch.empty(value.shape, dtype=value.dtype)
                current[node] = call(operators.offload.default, (source,), f"{node.name}_copy", copy)
                under_way[node] = source
            elif node.target is moves.fetch:
                copy, value = current.get(first, first), origins[first]
                args = copy, value.device, list(value.shape), list(value.stride())
                current[node] = call(operators.reload.default, args, f"{node.name}_read", value)
                under_way[node] = copy
            elif node.target in (moves.settle, moves.arrive) and first in under_way:
                wait(first)
            elif node.op == "output":
                for move in list(under_way):
                    wait(move)
        if node.target is operator.getitem and first.target is moves.arrive:
            arriving = first.args[0]
            node.replace_all_uses_with(current.get(arriving, arriving))
            graph.erase_node(node)
    for node in list(graph.nodes):
        if node.target in (moves.settle, moves.arrive, moves.discard):
            graph.erase_node(node)
    return current
