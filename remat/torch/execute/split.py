"""Forward and backward graph of a captured training step and a schedule, with copies of recomputed ops."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import fx

from remat.errors import ScheduleError
from remat.schedule import Schedule
from remat.schedule.simulate import simulate_valid
from remat.torch.capture.traced import storage_bytes
from remat.torch.captured import BEGIN_BACKWARD, Captured
from remat.torch.effects import state_bytes
from remat.torch.execute.unrolled import Unrolled, unroll
from remat.torch.private import BoxedCodeGen
from remat.torch.transfers import moves
from remat.torch.transfers.host_plan import HostPlan

#: Kinds of values between the passes that are no tensors.
NO_TENSORS = frozenset({"arriving", "host", "space"})


@dataclass(frozen=True)
class Saved:
    """Value that the backward pass reads from the forward pass.

    Attributes
    ----------
    kind : str
        ``"value"`` (a tensor that the forward pass computed), ``"state"`` (a state of a random number generator),
        ``"input"`` (an unchanged parameter, buffer or input), ``"copy"`` (a buffer or input before the forward pass
        changed it), ``"arriving"`` (a value under way from the host), ``"host"`` (a copy of a tensor on the host) or
        ``"space"`` (the host memory of the step).
    name : str
        Name of the fx node.
    size : int
        Bytes held in addition to parameters, buffers and inputs; on the host for ``"host"``.
    """

    kind: str
    name: str
    size: int


@dataclass(frozen=True, eq=False)
class Split:
    """The two graphs of a training step.

    Both modules are *boxed*: they take one list, empty it, and free every value after its last use.

    Attributes
    ----------
    captured : Captured
    schedule : Schedule
    forward : torch.fx.GraphModule
        Takes the inputs at `forward_inputs`; returns the results at `forward_results`, then `saved`.
    backward : torch.fx.GraphModule
        Takes `saved`, then the tangents at `tangents`; returns the results at `gradients`.
    forward_inputs, tangents : tuple of int
        Positions in ``captured.inputs``. The forward graph also takes a host space if the schedule moves tensors.
    forward_results, gradients : tuple of int
        Positions in ``captured.results``.
    saved : tuple of Saved
    recomputed : tuple of str
        Ops computed more than once.
    host : HostPlan
        The schedule written out, with places for its copies on the host.
    """

    captured: Captured
    schedule: Schedule
    forward: fx.GraphModule
    backward: fx.GraphModule
    forward_inputs: tuple[int, ...]
    tangents: tuple[int, ...]
    forward_results: tuple[int, ...]
    gradients: tuple[int, ...]
    saved: tuple[Saved, ...]
    recomputed: tuple[str, ...]
    host: HostPlan

    @property
    def saved_bytes(self) -> int:
        """Bytes that the backward pass reads from the forward pass, except parameters, buffers and inputs."""
        return sum(each.size for each in self.saved if each.kind != "host")

    def __repr__(self) -> str:
        return (
            f"Split({self.captured.graph.name!r}, {len(self.forward.graph.nodes)} + {len(self.backward.graph.nodes)} "
            f"nodes, {len(self.saved)} saved)"
        )


def split(captured: Captured, schedule: Schedule) -> Split:
    """Return the forward and the backward graph that carry out `schedule`, step by step.

    The forward pass is everything before ``begin_backward``, the backward pass everything after it. A recomputed op is
    copied (``x_recompute``, ``x_recompute_2``, ...). Views are derived again at their readers, items of tuples are
    taken right after their producer, and every value is freed after its last use. A recomputed random op starts from
    the generator state of its first run. A recomputed batch normalisation leaves its statistics unchanged.

    Parameters
    ----------
    captured : Captured
        A training step with tangents (route ``joint``).
    schedule : Schedule
        A valid schedule of its graph.

    Raises
    ------
    ScheduleError
        If the schedule does not run on the graph; if it computes random ops in another order than the module, so that
        they would draw other numbers; if it computes the new value of a buffer after the forward pass, or fetches a
        result of the forward pass in the backward pass, since the caller holds it.

    Examples
    --------
    >>> from torch import nn, randn
    >>> from remat import Schedule
    >>> from remat.torch import capture
    >>> step = capture(nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)), (randn(2, 3),))
    >>> parts = split(step, Schedule.reference(step.graph))
    >>> sum(step.results[position].node is not None for position in parts.gradients), parts.recomputed
    (4, ())
    """
    if captured.mode != "training" or BEGIN_BACKWARD not in captured.graph.op_index:
        raise ScheduleError(f"graph {captured.graph.name!r} has no {BEGIN_BACKWARD!r}: it is not a training step")
    simulate_valid(captured.graph, schedule)
    plan = HostPlan.of(captured.graph, schedule)
    written = plan.schedule
    _check_random_order(captured, written)
    _check_handed_out(captured, written)
    unrolled = unroll(captured, plan, apart=True)
    forward_results = _forward_results(captured, unrolled)
    forward, backward, saved = _halves(captured, unrolled)
    counts = Counter(written.computes())
    return Split(
        captured, schedule, _boxed(captured.module, forward, "Forward"), _boxed(captured.module, backward, "Backward"),
        tuple(i for i, each in enumerate(captured.inputs) if each.kind != "tangent"),
        tuple(i for i, each in enumerate(captured.inputs) if each.kind == "tangent"),
        forward_results,
        tuple(i for i, each in enumerate(captured.results) if each.kind == "gradient"),
        saved,
        tuple(name for name in captured.graph.op_names if counts[name] > 1),
        plan,
    )  # fmt: skip


def _forward_results(captured: Captured, unrolled: Unrolled) -> tuple[int, ...]:
    """Return the positions of the results of the forward pass, all of which it must compute."""
    if unrolled.begin is None:
        raise ScheduleError(f"the schedule never computes {BEGIN_BACKWARD!r}")
    positions = tuple(i for i, each in enumerate(captured.results) if each.kind != "gradient")
    for position, value in zip(positions, unrolled.begin.args, strict=True):
        result = captured.results[position]
        if result.node is not None and value is None:
            raise ScheduleError(
                f"op {result.node.name!r}, which makes the {result.kind} {result.name!r}, is computed after "
                "begin_backward; it belongs to the forward pass"
            )
    return positions


def _halves(captured: Captured, unrolled: Unrolled) -> tuple[fx.Graph, fx.Graph, tuple[Saved, ...]]:
    """Return the nodes before and after ``begin_backward`` as two graphs, and the values that cross between them."""
    begin = unrolled.begin
    assert begin is not None
    order = list(unrolled.graph.nodes)
    before, after = order[: order.index(begin)], order[order.index(begin) + 1 :]
    early = set(before)
    crossing = dict.fromkeys(each for node in after for each in node.all_input_nodes if each in early)
    saved = _saved(captured, unrolled, crossing)
    forward, backward = fx.Graph(), fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    for node in (*crossing, *begin.users):  # tangents last
        name = saved[node].name if node in saved else node.name
        copies[node] = backward.create_node("placeholder", name, name=name)
        copies[node].meta = dict(node.meta)
    _add_copies(backward, after, copies)
    backward.eliminate_dead_code()  # dead copies would read values that no other node needs
    for node in crossing:
        if not copies[node].users:
            backward.erase_node(copies[node])
            del saved[node]
    copies = {}
    _add_copies(forward, unrolled.graph.find_nodes(op="placeholder"), copies)
    handed_over = dict(copies)
    for node, each in saved.items():
        if each.kind == "copy":  # before the forward pass changes it
            handed_over[node] = forward.create_node(
                "call_function", torch.ops.aten.clone.default, (copies[node],), name=each.name
            )
            handed_over[node].meta = dict(node.meta)
    _add_copies(forward, before, copies)
    results = [None if node is None else copies[node] for node in begin.args]
    forward.output((*results, *({**copies, **handed_over}[node] for node in saved)))
    forward.eliminate_dead_code()
    return forward, backward, tuple(saved.values())


def _add_copies(graph: fx.Graph, nodes: Iterable[fx.Node], copies: dict[fx.Node, fx.Node]) -> None:
    """Copy those of `nodes` that have no copy yet."""
    for node in nodes:
        if node not in copies:
            copies[node] = graph.node_copy(node, copies.__getitem__)


def _saved(captured: Captured, unrolled: Unrolled, crossing: Iterable[fx.Node]) -> dict[fx.Node, Saved]:
    """Return the form in which each node crosses from the forward to the backward pass."""
    inputs = dict(zip(unrolled.inputs, (each for each in captured.inputs if each.kind != "tangent"), strict=True))
    changed = {each.name for each in captured.results_of("mutation")}
    found = {}
    for node in crossing:
        if node in unrolled.transfers:
            tensor = captured.graph.tensor_index[unrolled.transfers[node]]
            kind = "arriving" if node.target is moves.fetch else "host"
            found[node] = Saved(kind, node.name, captured.graph.tensors[tensor].size)
        elif node == unrolled.space:
            found[node] = Saved("space", node.name, 0)
        elif node in unrolled.states:
            found[node] = Saved("state", node.name, state_bytes(unrolled.states[node]))
        elif node not in inputs:
            found[node] = Saved("value", node.name, storage_bytes(node.meta.get("val")))
        elif inputs[node].name in changed and inputs[node].kind != "parameter":
            found[node] = Saved("copy", f"{node.name}_before", inputs[node].size)
        else:
            found[node] = Saved("input", node.name, 0)
    return found


def _boxed(root: torch.nn.Module, graph: fx.Graph, name: str) -> fx.GraphModule:
    graph.set_codegen(BoxedCodeGen())
    graph.lint()
    return fx.GraphModule(root, graph, name)


def _check_random_order(captured: Captured, schedule: Schedule) -> None:
    """Require random ops to be first computed in the module's order, in which they draw the generator's numbers."""
    random = set(captured.random_ops)
    expected = [
        name for name in (captured.graph.op_names[i] for i in captured.graph.arrays.order.tolist()) if name in random
    ]
    drawn = list(dict.fromkeys(name for name in schedule.computes() if name in random))
    for wanted, found in zip(expected, drawn, strict=False):
        if wanted != found:
            raise ScheduleError(
                f"random op {found!r} is computed before {wanted!r}, which the module runs first: it would draw other "
                "numbers; ask for a schedule of fixed order",
                "random-order",
            )


def handed_out(captured: Captured) -> frozenset[str]:
    """Return the tensors of results of the forward pass, which its caller holds from its end on."""
    return captured.homes_of("output", "mutation")


def _check_handed_out(captured: Captured, schedule: Schedule) -> None:
    """Require that the backward pass fetches no result of the forward pass."""
    held, after = handed_out(captured), False
    for kind, name in schedule.steps() if schedule.has_transfers else ():
        after |= name == BEGIN_BACKWARD
        if after and kind == "fetch" and name in held:
            raise ScheduleError(
                f"the schedule moves {name!r} to the host during the backward pass, but it is a result of the forward "
                "pass, which the caller holds",
                "handed-out",
            )
