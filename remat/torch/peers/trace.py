"""Schedules of traced steps with recomputations (eager checkpointing), on the graph of the step without them."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any

import torch

from remat.errors import ScheduleError
from remat.schedule import Schedule
from remat.torch.captured import BEGIN_BACKWARD, Captured
from remat.torch.private import FakeTensor, pytree

_ALIASES = (torch.ops.aten.detach.default, torch.ops.aten.alias.default)


def schedule_of_trace(base: Captured, traced: Captured, *, source: str = "eager checkpointing") -> Schedule:
    """Return the order and the recomputations of `traced` as a schedule of `base`.

    Both are captured by route ``"make_fx"`` from the same module and arguments, `base` without checkpointing and
    `traced` with it: ``torch.utils.checkpoint`` runs its regions again while the trace records them. Matching starts
    from results of the same kind and name and proceeds argument by argument. Random ops thus need no order, and equal
    ops remain distinct. Nodes that only serve a second update of batch-norm statistics match by their own arguments, or
    not at all.

    Raises
    ------
    ScheduleError
        With the name of the first node that differs, if the computations differ.
    """
    found = _Match(base, traced).nodes
    ops = base.graph.op_index
    computes: list[int] = []
    for op in traced.graph.arrays.order.tolist():
        node = traced.nodes[op]
        if node is None:
            computes.append(ops[BEGIN_BACKWARD])
        elif node in found:
            computes.append(ops[found[node].name])
    dropped = [node.name for node in traced.nodes if node is not None and node not in found]
    return Schedule.of_computes(base.graph, computes, source=source, meta={"dropped": dropped})


class _Match:
    """Match of each node of `traced` with the node of `base` that it computes, first or again."""

    def __init__(self, base: Captured, traced: Captured) -> None:
        self.base, self.traced = base, traced
        self.nodes: dict[torch.fx.Node, torch.fx.Node] = {}
        self.inputs = {each.node: (each.kind, each.name) for each in (*base.inputs, *traced.inputs)}
        theirs = {(each.kind, each.name): each.node for each in traced.results}
        waiting = [
            (theirs[each.kind, each.name], each.node)
            for each in base.results
            if each.node is not None and theirs.get((each.kind, each.name)) is not None
        ]
        if not waiting:
            raise ScheduleError(f"{traced.graph.name!r} has no result in common with {base.graph.name!r}")
        while waiting:
            waiting += self._pair(*waiting.pop())
        self._by_arguments()

    def _pair(self, node: torch.fx.Node, other: torch.fx.Node) -> list[tuple[torch.fx.Node, torch.fx.Node]]:
        """Match two nodes; return the pairs of their arguments."""
        node, other = _plain(node), _plain(other)
        known = self.nodes.get(node)
        if known is other:
            return []
        if known is not None:
            # the trace may have merged nodes that the base has twice
            if known.op == "call_function" and _key(known, {}) == _key(other, {}):
                return []
            raise self._difference(node, other, f"it is {known.name!r}, too")
        if other.op != "call_function":
            # an update of statistics that reads the previous update has an op where the base has the buffer
            if node.op == "call_function" or self._source(node) == self._source(other):
                return []
            raise self._difference(node, other, "they are different inputs")
        if node.op != "call_function" or node.target is not other.target:
            raise self._difference(node, other, f"it is {other.target}")
        mine, theirs = _leaves(node), _leaves(other)
        if len(mine) != len(theirs):
            raise self._difference(node, other, "they have different arguments")
        pairs = list(zip(mine, theirs, strict=True))
        for a, b in pairs:
            if type(a) is not type(b) or (not isinstance(a, torch.fx.Node) and a != b):
                raise self._difference(node, other, f"argument {a!r} is {b!r} there")
        self.nodes[node] = other
        return [(a, b) for a, b in pairs if isinstance(a, torch.fx.Node)]

    def _by_arguments(self) -> None:
        """Match nodes that no result needs: by target and arguments, which are matched already."""
        known = {_key(node, {}): node for node in self.base.module.graph.nodes if node.op == "call_function"}
        places = {self.inputs[each.node]: each.node for each in self.base.inputs}
        constants = {each.node: places.get((each.kind, each.name), each.node) for each in self.traced.inputs}
        for node in self.traced.module.graph.nodes:
            if node.op == "call_function" and node not in self.nodes and node.target not in _ALIASES:
                other = known.get(_key(node, {**constants, **self.nodes}))
                if other is not None:
                    self.nodes[node] = other

    def _source(self, node: torch.fx.Node) -> tuple[str, str] | None:
        """Return kind and name of an input, or the values of a constant, whose name differs between traces."""
        return _constant(node) if node.op == "get_attr" else self.inputs.get(node)

    def _difference(self, node: torch.fx.Node, other: torch.fx.Node, why: str) -> ScheduleError:
        return ScheduleError(
            f"node {node.name!r} ({node.target}) of the trace is not {other.name!r} of {self.base.graph.name!r}: {why}",
            "other-trace",
        )


def _plain(node: torch.fx.Node) -> torch.fx.Node:
    """Resolve aliases; return the original node."""
    while node.op == "call_function" and node.target in _ALIASES and isinstance(node.args[0], torch.fx.Node):
        node = node.args[0]
    return node


def _constant(node: torch.fx.Node) -> tuple[str, str]:
    """Return type and values of a constant, such as ``torch.tensor(2.0)`` in the source of a module."""
    value = operator.attrgetter(str(node.target))(node.graph.owning_module)
    return (str(value.dtype), str(node.target if isinstance(value, FakeTensor) else value.tolist()))


def _leaves(node: torch.fx.Node) -> list[Any]:
    return pytree.tree_leaves((node.args, dict(node.kwargs)))


def _key(node: torch.fx.Node, found: Mapping[torch.fx.Node, torch.fx.Node]) -> Any:
    """Return target and arguments, with aliases resolved and nodes replaced by their counterparts."""

    def shown(leaf: Any) -> Any:
        if isinstance(leaf, torch.fx.Node):
            plain = _plain(leaf)
            return _constant(plain) if plain.op == "get_attr" else found.get(plain, plain)
        return repr(leaf)

    return (node.target, tuple(shown(leaf) for leaf in _leaves(node)))
