"""A captured step and a schedule as one fx graph: a node per compute, views next to their readers, frees by node."""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from torch import fx
from torch.fx.node import map_arg

from remat.errors import ExecutionError
from remat.torch.captured import BEGIN_BACKWARD, Captured
from remat.torch.distributed import is_wait
from remat.torch.effects import (
    device_of,
    read_arguments,
    run_and_save_state,
    run_with_state,
    state_value,
    without_statistics,
)  # fmt: skip
from remat.torch.transfers import moves
from remat.torch.transfers.host_plan import HostPlan

#: Value of a node: the node, and the position among its values (0 if it has only one).
Value = tuple[fx.Node, int]


class Run(NamedTuple):
    """One run of an op."""

    step: int
    """Position in the schedule."""
    op: str
    number: int
    """0 for its first run, above that for recomputations."""


@dataclass(eq=False)
class Unrolled:
    """A schedule of a captured step as one fx graph."""

    graph: fx.Graph = field(default_factory=fx.Graph)
    """Its placeholders are the inputs of the step except the tangents, and `space`. A call of :func:`begin_backward`,
    with results of the forward pass, returns the tangents. The output has the results of the step, with None for
    missing ones."""
    runs: dict[fx.Node, Run] = field(default_factory=dict)
    """The op that each node computes."""
    frees: dict[fx.Node, list[fx.Node]] = field(default_factory=dict)
    """Nodes whose values are freed right before a node runs."""
    states: dict[fx.Node, str] = field(default_factory=dict)
    """States of random number generators, with the device of each."""
    begin: fx.Node | None = None
    """The call of :func:`begin_backward`."""
    space: fx.Node | None = None
    """Placeholder of the host memory (``HostSpace``), the last one; None if no step offloads."""
    transfers: dict[fx.Node, str] = field(default_factory=dict)
    """Calls that offload or fetch, with the tensor of each."""

    @property
    def inputs(self) -> list[fx.Node]:
        """Placeholders of the inputs of the step."""
        return [node for node in self.graph.find_nodes(op="placeholder") if node is not self.space]


def begin_backward(*results: Any) -> tuple[Any, ...]:
    """Mark the code between the passes: an interpreter returns the tangents instead of calling it."""
    raise ExecutionError(f"{BEGIN_BACKWARD} is carried out by an interpreter")


def unroll(captured: Captured, plan: HostPlan, *, apart: bool = False) -> Unrolled:
    """Write the graph that carries out a schedule, step by step.

    A recomputed op is copied (``x_recompute``, ``x_recompute_2``, ...), unless all its outputs are live. Its old values
    are freed first, so that memory holds only one copy. A random op restarts from the generator state of its first
    run. A batch normalisation leaves live statistics unchanged.

    A fetched value is awaited right before the first op that reads it.

    `plan`: a valid schedule, written out. `apart`: True if the passes run separately. The caller then holds
    results of the forward pass from :func:`begin_backward` on, and no step replaces them; the output has only the
    gradients.

    Raise ExecutionError with the name of an op that cannot be repeated.
    """
    _check(captured)
    writer = _Writer(captured, plan, apart)
    for step, (kind, name) in enumerate(plan.schedule.steps()):
        if kind == "free":
            writer.free(name)
        elif kind == "offload":
            writer.offload(name, plan.offsets[step])
        elif kind == "fetch":
            writer.fetch(name)
        elif kind == "discard":
            writer.discard(name)
        elif name == BEGIN_BACKWARD:
            writer.begin_backward(step)
        else:
            writer.compute(step, name)
    return writer.finish()


class _Writer:
    """Graph under construction, and the present nodes of the captured nodes' values."""

    def __init__(self, captured: Captured, plan: HostPlan, apart: bool) -> None:
        self.captured, self.apart = captured, apart
        self.made = Unrolled()
        counts = Counter(plan.schedule.computes())
        self._drawn_again = {name for name in captured.random_ops if counts[name] > 1}
        self._ops = {node for node in captured.nodes if node is not None}
        self._done: Counter[str] = Counter()
        self._live: set[str] = set(captured.graph.inputs)
        self._current: dict[Value, fx.Node] = {}
        self._values_in: dict[str, list[Value]] = {name: [] for name in captured.graph.tensor_names}
        self._held: set[fx.Node] = set()
        self._owners: set[fx.Node] = set()  # all nodes that were ever held
        self._waiting: list[fx.Node] = []  # freed before the next node
        self._derived: dict[tuple[fx.Node, tuple[fx.Node, ...]], fx.Node] = {}
        self._states: dict[str, fx.Node] = {}
        self._handed_out = frozenset[str | None]()
        self._copies: dict[str, tuple[fx.Node, list[Value]]] = {}  # on the host, and the values in each
        self._unsettled: set[str] = set()  # live tensors whose copy may not be complete
        self._arriving: dict[str, fx.Node] = {}  # fetched tensors that no op has waited for
        for each in captured.inputs:
            if each.kind != "tangent":
                self._current[each.node, 0] = self._copy(each.node, {})
        if plan.offsets:
            self.made.space = self.made.graph.placeholder("host_space")

    def free(self, tensor: str) -> None:
        """Free all values that live in a tensor, after copies from and to it have ended."""
        self._end_transfers(tensor)
        self._live.discard(tensor)
        for value in self._values_in[tensor]:
            self._drop(value)

    def offload(self, tensor: str, offset: int) -> None:
        """Copy the storage of a tensor to the host."""
        self._arrive(tensor)
        values = [value for value in self._values_in[tensor] if self._current.get(value) in self._held]
        held = [self._current[value] for value in values]
        name = f"{held[0].name}_host"
        copy = self._add(moves.offload, (self.made.space, offset, *held), {}, name, {})
        self._copies[tensor] = copy, values
        self._unsettled.add(tensor)
        self.made.transfers[copy] = tensor

    def fetch(self, tensor: str) -> None:
        """Begin to read a copy back."""
        copy, _ = self._copies[tensor]
        arriving = self._add(moves.fetch, (copy,), {}, f"{copy.name}_fetched", {})
        self._arriving[tensor] = arriving
        self.made.transfers[arriving] = tensor
        self._live.add(tensor)

    def discard(self, tensor: str) -> None:
        """Release a copy."""
        self._arrive(tensor)
        self._unsettled.discard(tensor)
        copy, _ = self._copies.pop(tensor)
        self._add(moves.discard, (copy,), {}, f"{copy.name}_discarded", {})

    def _end_transfers(self, tensor: str) -> None:
        """Wait for copies from and to a tensor."""
        self._arrive(tensor)
        if tensor in self._unsettled:
            self._unsettled.remove(tensor)
            copy, values = self._copies[tensor]
            held = (self._current[value] for value in values)
            self._add(moves.settle, (copy, *held), {}, f"{copy.name}_settled", {})

    def _arrive(self, tensor: str) -> None:
        """Wait for a tensor that was fetched."""
        arriving = self._arriving.pop(tensor, None)
        if arriving is None:
            return
        copy, values = self._copies[tensor]
        arrived = self._add(moves.arrive, (arriving, copy), {}, f"{arriving.name}_arrived", {})
        for place, value in enumerate(values):
            node, item = value
            meta = {**node.meta, "val": node.meta["val"][item] if _several(node) else node.meta["val"]}
            self._hold(value, self._add(operator.getitem, (arrived, place), {}, f"{node.name}_{item}_back", meta))

    def compute(self, step: int, name: str) -> None:
        """Compute an op, unless all its outputs are live."""
        node = self.captured.node_of(name)
        assert node is not None
        op = self.captured.graph.ops[self.captured.graph.op_index[name]]
        outputs = op.outputs
        for tensor in op.inputs:
            self._arrive(tensor)
        number = self._done[name]
        if number and self._live.issuperset(outputs):
            return
        for tensor in outputs:
            self._end_transfers(tensor)
        self._done[name] += 1
        suffix = "" if not number else "_recompute" if number == 1 else f"_recompute_{number}"
        lean = without_statistics(node) if number else None
        if lean is not None and not self.apart and not self._live.issuperset(outputs[3:]):
            lean = None
        homes = self.captured.homes[node][: 3 if lean else None]
        taken = [place for place, home in enumerate(homes) if home not in self._handed_out]
        for place in taken:
            self._drop((node, place))
        run = Run(step, name, number)
        if lean is None:
            result = self._call(node, name + suffix, run)
        else:
            args, meta = map_arg(lean[1], self._value), {**node.meta, "val": tuple(node.meta["val"][:3])}
            result = self._add(lean[0], args, {}, name + suffix, meta, run=run)
        self._take(node, result, taken, suffix)
        self._live.update(outputs)
        for user in node.users:
            if is_wait(user) and user not in self._ops:  # until then the collective holds its argument
                self._value(user)

    def begin_backward(self, step: int) -> None:
        """Return the results of the forward pass, and take the tangents."""
        op = self.captured.graph.ops[self.captured.graph.op_index[BEGIN_BACKWARD]]
        for tensor in op.inputs:
            self._arrive(tensor)
        given = [each.node for each in self.captured.results if each.kind in self._handed_kinds]
        known = [None if node is None else self._computed(node) for node in given]
        run = Run(step, BEGIN_BACKWARD, 0)
        self.made.begin = begin = self._add(begin_backward, tuple(known), {}, BEGIN_BACKWARD, {}, run=run)
        if self.apart:
            self._handed_out = self.captured.homes_of(*self._handed_kinds)
        for place, each in enumerate(self.captured.inputs_of("tangent")):
            self._hold((each.node, 0), self._add(operator.getitem, (begin, place), {}, each.node.name, each.node.meta))
        self._derived.clear()  # views of the forward pass end here
        self._live.update(op.outputs)

    def finish(self) -> Unrolled:
        """Write the output; free values outside the schedule's tensors after their last use.

        Copies that no step discards stay.
        """
        for tensor in list(self._arriving):
            self._arrive(tensor)
        left_out = self._handed_kinds if self.apart else ()
        results = [each for each in self.captured.results if each.kind not in left_out]
        values = tuple(None if each.node is None else self._value(each.node) for each in results)
        graph = self.made.graph
        self._free_before(graph.output(values))
        order, kept = list(graph.nodes), self._owners.union(copy for copy, _ in self._copies.values())
        place = {node: number for number, node in enumerate(order)}
        for node in order:
            last = max((place[user] for user in node.users), default=place[node])
            if node.op == "call_function" and node not in kept and last + 1 < len(order):
                self.made.frees.setdefault(order[last + 1], []).append(node)
        return self.made

    def _call(self, node: fx.Node, name: str, run: Run) -> fx.Node:
        """Call an op; save or restore the generator state if it is a random op that runs several times."""
        args, kwargs = map_arg(read_arguments(node), self._value), map_arg(node.kwargs, self._value)
        if node.name not in self._drawn_again:
            return self._add(node.target, args, kwargs, name, node.meta, run=run)
        device = device_of(node)
        if run.number:
            args = (device, self._states[node.name], node.target, *args)
            return self._add(run_with_state, args, kwargs, name, node.meta, run=run)
        plain = {key: value for key, value in node.meta.items() if key != "val"}
        pair = self._add(run_and_save_state, (device, node.target, *args), kwargs, f"{name}_and_state", plain, run=run)
        state = self._add(operator.getitem, (pair, 0), {}, f"{name}_state", {**plain, "val": state_value(node)})
        self._states[node.name], self.made.states[state] = state, device
        return self._add(operator.getitem, (pair, 1), {}, name, node.meta)

    def _take(self, node: fx.Node, result: fx.Node, places: list[int], suffix: str) -> None:
        """Record the nodes that now hold the values of an op."""
        if not _several(node):
            self._hold((node, 0), result)
            return
        items = {int(user.args[1]): user for user in node.users if user.target is operator.getitem}
        for place in places:
            if place in items:
                name, meta = items[place].name, items[place].meta
            elif self.captured.homes[node][place] is not None:
                name, meta = f"{node.name}_item_{place}", {}
            else:
                continue
            self._hold((node, place), self._add(operator.getitem, (result, place), {}, name + suffix, meta))

    def _hold(self, value: Value, made: fx.Node) -> None:
        self._current[value] = made
        home = self.captured.homes[value[0]][value[1]]
        if home is not None:
            if value not in self._values_in[home]:
                self._values_in[home].append(value)
            self._held.add(made)
            self._owners.add(made)

    def _drop(self, value: Value) -> None:
        held = self._current.get(value)
        if held in self._held:
            self._held.remove(held)
            self._waiting.append(held)

    def _value(self, node: fx.Node) -> fx.Node:
        """Return the node that now has the value of a captured node."""
        if node in self._ops or node.op == "placeholder":
            return self._current[node, 0]
        if node.target is operator.getitem and node.args[0] in self._ops:
            return self._current[node.args[0], int(node.args[1])]
        inputs = {each: self._value(each) for each in node.all_input_nodes}
        key = (node, tuple(inputs.values()))
        if key not in self._derived:
            self._derived[key] = self._copy(node, inputs)
        return self._derived[key]

    def _computed(self, node: fx.Node) -> fx.Node | None:
        """Return the same as :meth:`_value`, or None if it is not computed yet."""
        try:
            return self._value(node)
        except KeyError:
            return None

    def _copy(self, node: fx.Node, inputs: Mapping[fx.Node, fx.Node]) -> fx.Node:
        made = self.made.graph.node_copy(node, inputs.__getitem__)
        self._free_before(made)
        return made

    def _add(
        self, target: Any, args: Any, kwargs: Any, name: str, meta: dict[str, Any], *, run: Run | None = None
    ) -> fx.Node:
        made = self.made.graph.create_node("call_function", target, args, kwargs, name=name)
        made.meta = dict(meta)
        if run is not None:
            self.made.runs[made] = run
        self._free_before(made)
        return made

    def _free_before(self, node: fx.Node) -> None:
        if self._waiting:
            self.made.frees[node], self._waiting = self._waiting, []

    @property
    def _handed_kinds(self) -> tuple[str, ...]:
        return ("output", "mutation") if self.apart else ("output",)


def _several(node: fx.Node) -> bool:
    """Return True if a node has several values."""
    return isinstance(node.meta["val"], tuple | list)


def _check(captured: Captured) -> None:
    """Refuse ops that cannot be repeated step by step."""
    for node, op in zip(captured.nodes, captured.graph.ops, strict=True):
        if node is None:
            continue
        schema = getattr(node.target, "_schema", None)
        if schema is not None and schema.is_mutable:
            raise ExecutionError(
                f"op {op.name!r} ({node.target}) changes its inputs in place; it cannot be repeated", "in-place"
            )
        foreign = {home for home in captured.homes[node] if home is not None}.difference(op.outputs)
        if foreign:
            raise ExecutionError(
                f"op {op.name!r} returns a view of tensor {min(foreign)!r} together with values of its own"
            )
