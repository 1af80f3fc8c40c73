"""How values of fx nodes are had while a schedule runs: from slots that own storage, and views beside each reader."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch

from remat.errors import ExecutionError
from remat.torch.captured import Captured

Node: TypeAlias = torch.fx.Node

#: Values by slot; None: not live.
Values = list[Any]


@dataclass(frozen=True, slots=True)
class Derivation:
    """What some fx nodes need: values out of slots, then views and items of them, in order.

    Attributes
    ----------
    reads : tuple of (torch.fx.Node, int)
        Nodes whose value lies in a slot.
    views : tuple of torch.fx.Node
        What is computed from these without new storage.
    """

    reads: tuple[tuple[Node, int], ...]
    views: tuple[Node, ...]

    def values(self, slots: Values) -> dict[Node, Any]:
        """The values of all nodes; the caller must not keep them, since they hold on to storage."""
        known = {node: slots[slot] for node, slot in self.reads}
        for node in self.views:
            known[node] = called(node.target, node.args, node.kwargs, known)
        return known


@dataclass(frozen=True, slots=True)
class OpCall:
    """One op as a call.

    Attributes
    ----------
    op : str
    node : torch.fx.Node
    target, args, kwargs
        What is called with what; fx nodes stand for their values.
    arguments : Derivation
    items : tuple of (int, int)
        Item of the result (0 where it is no tuple) and the slot where it goes.
    is_tuple : bool
        Whether the result has items.
    """

    op: str
    node: Node
    target: Callable[..., Any]
    args: Any
    kwargs: Any
    arguments: Derivation
    items: tuple[tuple[int, int], ...]
    is_tuple: bool

    def run(self, slots: Values) -> None:
        """Compute the op; everything that it made but the items is gone when this returns."""
        values = self.arguments.values(slots)
        made = called(self.target, self.args, self.kwargs, values)
        for item, slot in self.items:
            slots[slot] = made[item] if self.is_tuple else made


def called(target: Callable[..., Any], args: Any, kwargs: Any, values: Mapping[Node, Any]) -> Any:
    """The result of a call whose arguments name fx nodes for their values."""
    args, kwargs = torch.fx.node.map_arg((args, kwargs), values.__getitem__)
    return target(*args, **kwargs)


class Layout:
    """Slots for all values that own storage, and for all constants.

    Attributes
    ----------
    captured : Captured
    count : int
        Number of slots.
    slots_of : dict of str to list of int
        The slots of each tensor of the graph: several where several items of a result share one storage.
    constants : list of (int, torch.fx.Node)
        Slots of placeholders that are constant memory, and of attributes of the fx module.
    tangents : list of (int, torch.fx.Node)
        Slots of what ``begin_backward`` writes.
    """

    def __init__(self, captured: Captured) -> None:
        self.captured = captured
        self.count = 0
        self.slots_of: dict[str, list[int]] = {name: [] for name in captured.graph.tensor_names}
        self.constants: list[tuple[int, Node]] = []
        self.tangents: list[tuple[int, Node]] = []
        self._of_item: dict[tuple[Node, int], int] = {}
        self._ops = {node for node in captured.nodes if node is not None}
        self._kinds = {each.node: each.kind for each in captured.inputs}
        for node in captured.module.graph.nodes:
            if node in self._ops:
                self._place_op(node)
            elif node.op in {"placeholder", "get_attr"}:
                self._place_constant(node)
            elif node.op not in {"call_function", "output"}:
                raise ExecutionError(f"fx node {node} is a {node.op}: only calls of functions can be executed")
        empty = [name for name, slots in self.slots_of.items() if not slots and name not in captured.graph.inputs]
        if empty:
            raise ExecutionError(f"no fx node owns the storage of tensor {empty[0]!r} of graph {captured.graph.name!r}")

    def _take(self, node: Node, item: int, tensor: str | None) -> int:
        slot = self._of_item[node, item] = self.count
        self.count += 1
        if tensor is not None:
            self.slots_of[tensor].append(slot)
        return slot

    def _place_constant(self, node: Node) -> None:
        if self._kinds.get(node) == "tangent":
            self.tangents.append((self._take(node, 0, self.captured.homes[node][0]), node))
        else:
            self.constants.append((self._take(node, 0, None), node))

    def _place_op(self, node: Node) -> None:
        if node.op != "call_function":
            raise ExecutionError(f"fx node {node} is a {node.op}: only calls of functions can be executed")
        schema = getattr(node.target, "_schema", None)
        if schema is not None and schema.is_mutable:
            raise ExecutionError(f"op {node.name!r} ({node.target}) changes its inputs in place; it cannot be repeated")
        own = self.captured.graph.ops[self.captured.graph.op_index[node.name]].outputs
        for item, tensor in enumerate(self.captured.homes[node]):
            if tensor is not None and tensor not in own:
                raise ExecutionError(f"op {node.name!r} returns a view of tensor {tensor!r} beside values of its own")
            # What lives in no tensor (a number, None, a view of a parameter) is kept from each run to the next.
            self._take(node, item, tensor)

    def derivation(self, wanted: Iterable[Node]) -> Derivation:
        """How the values of `wanted` are had; an op among them must have a single result."""
        reads: dict[Node, int] = {}
        views: dict[Node, None] = {}
        # Depth first with an explicit stack: chains of views may be long.
        stack: list[tuple[Node, bool]] = [(node, False) for node in reversed(list(wanted))]
        while stack:
            node, ready = stack.pop()
            if node in reads or node in views:
                continue
            slot = self._slot(node)
            if slot is not None:
                reads[node] = slot
            elif ready:
                views[node] = None
            else:
                stack.append((node, True))
                stack.extend((other, False) for other in reversed(node.all_input_nodes))
        return Derivation(tuple(reads.items()), tuple(views))

    def _slot(self, node: Node) -> int | None:
        if node.op == "call_function" and node.target is operator.getitem and node.args[0] in self._ops:
            return self._of_item[node.args[0], node.args[1]]
        if node in self._ops and _has_items(node):
            raise ExecutionError(f"the whole result of op {node.name!r} is read, not one of its items")
        return self._of_item.get((node, 0))

    def call(self, node: Node) -> OpCall:
        """The op of an fx node."""
        items = tuple((item, self._of_item[node, item]) for item in range(len(self.captured.homes[node])))
        arguments = self.derivation(node.all_input_nodes)
        return OpCall(node.name, node, node.target, node.args, node.kwargs, arguments, items, _has_items(node))


def _has_items(node: Node) -> bool:
    return isinstance(node.meta.get("val"), (tuple, list))


def results_of(layout: Layout, nodes: Sequence[Node | None], slots: Values) -> list[Any]:
    """The values of `nodes`, None for None."""
    values = layout.derivation([node for node in nodes if node is not None]).values(slots)
    return [None if node is None else values[node] for node in nodes]
