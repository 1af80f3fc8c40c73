"""Copies of fx nodes, one per compute step, in the graph of the pass that the step belongs to."""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx
from torch.fx.node import map_arg

from remat.errors import ScheduleError
from remat.schedule import Schedule
from remat.torch.captured import Captured
from remat.torch.effects import read_arguments, state_bytes, without_statistics

#: A value of a node: the node, and the position of the value where it has several (0 otherwise).
Value = tuple[fx.Node, int]


class Side:
    """The graph of one pass while it is being written.

    Attributes
    ----------
    graph : torch.fx.Graph
    placeholders : dict
        The placeholder of everything that comes from outside, by what it stands for.
    """

    def __init__(self) -> None:
        self.graph = fx.Graph()
        self.placeholders: dict[fx.Node, fx.Node] = {}
        self._first: fx.Node | None = None
        self._derived: dict[tuple[fx.Node, tuple[fx.Node, ...]], fx.Node] = {}

    def placeholder(self, what: fx.Node) -> fx.Node:
        """The placeholder for `what`, before all nodes that compute."""
        found = self.placeholders.get(what)
        if found is None:
            place = self.graph._root if not self.placeholders else next(reversed(self.placeholders.values()))
            with self.graph.inserting_after(place):
                found = self.graph.create_node("placeholder", what.name, name=what.name)
            found.meta = dict(what.meta)
            self.placeholders[what] = found
        return found

    def add(self, target: Any, args: Any, kwargs: Any, name: str, meta: dict[str, Any]) -> fx.Node:
        """A new node at the end."""
        node = self.graph.create_node("call_function", target, args, kwargs, name=name)
        node.meta = dict(meta)
        return node

    def derive(self, node: fx.Node, value: Callable[[fx.Node], fx.Node]) -> fx.Node:
        """A view (or any node that computes nothing) of what its inputs are now: made once for the same inputs."""
        if node.op == "get_attr":
            key: tuple[fx.Node, tuple[fx.Node, ...]] = (node, ())
            if key not in self._derived:
                self._derived[key] = self.graph.create_node("get_attr", node.target, name=node.name)
                self._derived[key].meta = dict(node.meta)
            return self._derived[key]
        inputs = {each: value(each) for each in node.all_input_nodes}
        key = (node, tuple(inputs.values()))
        found = self._derived.get(key)
        if found is None:
            args = map_arg(node.args, inputs.__getitem__)
            kwargs = map_arg(node.kwargs, inputs.__getitem__)
            found = self._derived[key] = self.add(node.target, args, kwargs, node.name, node.meta)
        return found


class Copies:
    """Writes both graphs, step by step.

    Parameters
    ----------
    captured : Captured
    schedule : Schedule
        With its frees written out.
    random_pair : pair of callables
        See :func:`remat.torch.partition.split`.

    Attributes
    ----------
    counts : Counter of str
        How often the schedule computes each op.
    """

    def __init__(
        self, captured: Captured, schedule: Schedule, random_pair: tuple[Callable[..., Any], Callable[..., Any]]
    ) -> None:
        self.captured = captured
        self.counts = Counter(schedule.computes())
        self._pair = random_pair
        self._forward, self._backward = Side(), Side()
        self._side = self._forward
        self._op_nodes = {node for node in captured.nodes if node is not None}
        self._random = set(captured.random_ops)
        self._done: Counter[str] = Counter()
        self._live: set[str] = set()
        self._current: dict[Value, tuple[Side, fx.Node]] = {}
        self._states: dict[str, tuple[Side, fx.Node]] = {}
        self._results: list[fx.Node | None] = []
        self._handed_out: set[str] = set()
        # of what the backward pass reads: its node in the forward graph
        self._crossing: dict[fx.Node, tuple[str, int]] = {}
        self._changed = {each.name: each for each in captured.results_of("mutation")}
        self._input_of = {each.node: each for each in captured.inputs}
        for each in captured.inputs:
            if each.kind != "tangent":
                self._forward.placeholder(each.node)

    # -- steps -----------------------------------------------------------------------------------------------------

    def free(self, tensor: str) -> None:
        """Nothing reads this instance any more; the interpreter frees it after its last use by itself."""
        self._live.discard(tensor)

    def compute(self, name: str) -> None:
        """Copy an op, unless all that it writes is there already."""
        node = self.captured.node_of(name)
        assert node is not None
        outputs = self.captured.graph.ops[self.captured.graph.op_index[name]].outputs
        if outputs and self._live.issuperset(outputs):
            return
        before = self._done[name]
        self._done[name] += 1
        suffix = "" if not before else "_recompute" if before == 1 else f"_recompute_{before}"
        result, kept = self._copy(node, suffix, again=before > 0)
        self._take(node, result, suffix, kept)
        self._live.update(outputs)

    def begin_backward(self, results: Sequence[int]) -> None:
        """End the forward pass with the results at these positions; what follows is the backward pass."""
        self._results = [self._result(i) for i in results]
        given = [each.node for each in map(self.captured.results.__getitem__, results) if each.node is not None]
        self._handed_out = {home for node in given for home in self.captured.homes[node] if home is not None}
        self._side = self._backward

    def finish(self, gradients: Sequence[int]) -> tuple[fx.Graph, fx.Graph, list[tuple[str, fx.Node, int]]]:
        """Both graphs, and what crosses between them: kind, node of the forward graph, bytes."""
        self._backward.graph.output(tuple(self._result(i) for i in gradients))
        # dead copies would read what nobody needs, and make it cross
        self._backward.graph.eliminate_dead_code()
        for what, place in list(self._backward.placeholders.items()):
            if what in self._crossing and not place.users:
                self._backward.graph.erase_node(place)
                del self._crossing[what], self._backward.placeholders[what]
        self._order_placeholders()
        self._forward.graph.output((*self._results, *self._crossing))
        self._forward.graph.eliminate_dead_code()
        return (
            self._forward.graph,
            self._backward.graph,
            [(kind, node, size) for node, (kind, size) in self._crossing.items()],
        )

    def _order_placeholders(self) -> None:
        """Saved values in the order in which they cross, then the tangents."""
        graph, places = self._backward.graph, self._backward.placeholders
        tangents = [each.node for each in self.captured.inputs if each.kind == "tangent"]
        for node in tangents:
            self._backward.placeholder(node)
        last = graph._root
        for what in [*self._crossing, *tangents]:
            last.append(places[what])
            last = places[what]

    # -- copies ----------------------------------------------------------------------------------------------------

    def _copy(self, node: fx.Node, suffix: str, again: bool) -> tuple[fx.Node, int | None]:
        """The new node of an op, and how many of its results it has (None: all)."""
        name, side = node.name + suffix, self._side
        plain = without_statistics(node) if again else None
        if plain is not None:
            args = map_arg(plain[1], self._value)
            meta = {**node.meta, "val": tuple(node.meta["val"][:3])}
            return side.add(plain[0], args, {}, name, meta), 3
        args, kwargs = map_arg(read_arguments(node), self._value), map_arg(node.kwargs, self._value)
        if node.name not in self._random or self.counts[node.name] == 1:
            return side.add(node.target, args, kwargs, name, node.meta), None
        device = _device(node)
        if again:
            state = self._here(*self._states[node.name], saved=("state", state_bytes(device)))
            return side.add(self._pair[1], (device, state, node.target, *args), kwargs, name, node.meta), None
        pair = side.add(self._pair[0], (device, node.target, *args), kwargs, f"{name}_and_state", _without_value(node))
        saved = side.add(operator.getitem, (pair, 0), {}, f"{name}_state", _without_value(node))
        saved.meta["val"] = None
        self._states[node.name] = (side, saved)
        return side.add(operator.getitem, (pair, 1), {}, name, node.meta), None

    def _take(self, node: fx.Node, result: fx.Node, suffix: str, kept: int | None) -> None:
        """Note where the values of an op are from now on.

        What was live already is dropped before, so that it is not held twice: later steps read the new values. What the
        forward pass has handed out is held by others, and stays what they hold.
        """
        homes = self.captured.homes[node]
        if not isinstance(node.meta["val"], tuple | list):
            self._current[node, 0] = (self._side, result)
            return
        for item in node.users:
            if item.target is not operator.getitem:
                continue
            position = int(item.args[1])
            if (homes[position] in self._handed_out) or (kept is not None and position >= kept):
                continue
            taken = self._side.add(operator.getitem, (result, position), {}, item.name + suffix, item.meta)
            self._current[node, position] = (self._side, taken)

    def _result(self, position: int) -> fx.Node | None:
        """The node, in the graph of the present pass, of a result."""
        result = self.captured.results[position]
        if result.node is None:
            return None
        try:
            return self._value(result.node)
        except KeyError as missing:
            raise ScheduleError(
                f"op {missing.args[0][0].name!r}, which makes the {result.kind} {result.name!r}, is computed after "
                "begin_backward; it belongs to the forward pass"
            ) from None

    def _value(self, node: fx.Node) -> fx.Node:
        """The node, in the graph of the present pass, that has the value of `node` now."""
        if node in self._op_nodes:
            return self._here(*self._current[node, 0])
        if node.op == "placeholder":
            return self._outside(node)
        if node.target is operator.getitem and node.args[0] in self._op_nodes:
            return self._here(*self._current[node.args[0], int(node.args[1])])
        return self._side.derive(node, self._value)

    def _here(self, side: Side, node: fx.Node, saved: tuple[str, int] | None = None) -> fx.Node:
        """`node`, or the placeholder for it where it was computed in the forward pass and this is the backward one."""
        if side is self._side:
            return node
        if node not in self._crossing:
            self._crossing[node] = ("value", _bytes(node)) if saved is None else saved
        return self._backward.placeholder(node)

    def _outside(self, node: fx.Node) -> fx.Node:
        """A parameter, buffer, input or tangent."""
        known = self._input_of[node]
        if self._side is self._forward or known.kind == "tangent":
            return self._side.placeholder(node)
        place = self._forward.placeholder(node)
        if known.name in self._changed and known.kind in ("buffer", "input"):
            return self._here(self._forward, self._copied(place, known.size), ("copy", known.size))
        return self._here(self._forward, place, ("input", 0))

    def _copied(self, place: fx.Node, size: int) -> fx.Node:
        """A copy of an input as it is before the forward pass changes it."""
        for user in place.users:
            if user.target is torch.ops.aten.clone.default and user.name == f"{place.name}_before":
                return user
        graph = self._forward.graph
        with graph.inserting_after(next(reversed(self._forward.placeholders.values()))):
            made = graph.create_node(
                "call_function", torch.ops.aten.clone.default, (place,), name=f"{place.name}_before"
            )
        made.meta = dict(place.meta)
        return made


def _device(node: fx.Node) -> str:
    """Kind of the device that a node computes on."""
    values = node.meta["val"]
    first = next(each for each in (values if isinstance(values, tuple | list) else [values]) if each is not None)
    return str(first.device.type)


def _bytes(node: fx.Node) -> int:
    value = node.meta.get("val")
    return int(value.untyped_storage().nbytes()) if isinstance(value, torch.Tensor) else 0


def _without_value(node: fx.Node) -> dict[str, Any]:
    return {key: value for key, value in node.meta.items() if key != "val"}
