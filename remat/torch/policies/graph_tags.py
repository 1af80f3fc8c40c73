"""Tags on one graph of forward pass, loss and backward pass, as schedules: save, recompute or offload each op."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import fx
from torch.utils.checkpoint import CheckpointPolicy

from remat.errors import CaptureError
from remat.problem import Problem
from remat.runtime.deadline import Deadline
from remat.schedule import Certificate, Schedule, simulate, with_frees
from remat.schedule.machine import on_device
from remat.schedule.saved_sets import first_backward_place, schedule_of_saved, with_moves
from remat.torch.capture.lowering import is_random, lower
from remat.torch.captured import Captured, Input, ResultValue, Traced
from remat.torch.costs import CostModel
from remat.torch.private import pytree

#: Smallest tensor in bytes that torchtitan moves to the host.
SMALLEST_MOVE = 4096
#: Tensors tried at once when tags need too much memory: the largest at the peak.
TRIED = 12


def captured_step(gm: fx.GraphModule, name: str, costs: CostModel) -> Captured:
    """Lower a graph that ``make_fx`` recorded of forward pass, loss and ``torch.autograd.grad``, without changing it.

    Random ops, ops of the loss and of ``lm_head`` run once, as torchtitan's passes want it; so do ops that change
    inputs. Raise CaptureError if the graph has no backward pass or has collectives.
    """
    mine = fx.GraphModule(gm, fx.Graph())
    copies: dict[fx.Node, fx.Node] = {}
    output = mine.graph.graph_copy(gm.graph, copies)
    mine.graph.output(output)
    for node in mine.graph.nodes:
        if getattr(node.target, "namespace", "") == "_c10d_functional":
            raise CaptureError(f"node {node.name!r} is a collective; only graphs of one device have a policy")
        if is_backward(node):
            node.meta["partitioner_tag"] = "is_backward"
    inputs = tuple(
        Input(node, "parameter", str(number), 0) for number, node in enumerate(mine.graph.find_nodes(op="placeholder"))
    )
    results = [each for each in pytree.tree_leaves(output) if isinstance(each, fx.Node)]
    traced = Traced(
        module=mine, inputs=inputs, route="make_fx",
        results=tuple(
            ResultValue(node, "gradient" if is_backward(node) else "output", str(number))
            for number, node in enumerate(results)
        ),
    )  # fmt: skip
    captured = lower(traced, name=name, costs=costs)
    if not any(op.phase == "backward" for op in captured.graph.ops):
        raise CaptureError(
            f"graph {name!r} has no node of the backward pass (meta['autograd_backward'])", "no-backward"
        )
    graph = captured.graph
    ops = [
        replace(op, recomputable=op.phase == "forward" and node is not None and _repeats(node))
        for op, node in zip(graph.ops, captured.nodes, strict=True)
    ]
    stay = sorted({tensor.name for tensor in graph.tensors} - set(_movable(captured)))
    return replace(captured, graph=replace(graph, ops=ops, meta={**graph.meta, "on_device": stay}))


def is_backward(node: fx.Node) -> bool:
    """Return True if autograd recorded a node."""
    return bool(node.meta.get("autograd_backward", False))


def is_tagged(node: fx.Node) -> bool:
    """Return True if torchtitan's policies tag a node: a call of the forward pass, before the head and the loss."""
    path = node.meta.get("custom", {}).get("module_fqn", "")
    return node.op == "call_function" and not is_backward(node) and not path.startswith(("lm_head", "loss"))


def _repeats(node: fx.Node) -> bool:
    schema = getattr(node.target, "_schema", None)
    return is_tagged(node) and schema is not None and not schema.is_mutable and not is_random(node)


def _movable(captured: Captured) -> Iterator[str]:
    """Yield the tensors that torchtitan can move: contiguous, not small, the value of a node of the forward pass."""
    results = captured.homes_of("output", "gradient")
    for node in captured.module.graph.nodes:
        homes, value = captured.homes.get(node, ()), node.meta.get("val")
        owner = node.args[0] if node.target is operator.getitem else node
        if (
            is_tagged(node) and len(homes) == 1 and homes[0] is not None and homes[0] not in results
            and captured.op_of(owner) is not None and isinstance(value, torch.Tensor) and value.is_contiguous()
            and value.nbytes >= SMALLEST_MOVE
        ):  # fmt: skip
            yield homes[0]


@dataclass(frozen=True)
class Tags:
    """Ops whose results are kept, and tensors that move to the host between the passes; other ops are recomputed."""

    saved: frozenset[str]
    moved: frozenset[str] = frozenset()

    @classmethod
    def of(cls, problem: Problem, schedule: Schedule) -> Tags:
        """Return the tags nearest to a schedule: by what device and host hold when the backward pass begins."""
        graph = problem.graph
        written = with_frees(graph, schedule)
        first, live = _at_backward(problem, written)
        on_host: set[str] = set()
        for kind, name in list(written.steps())[:first]:
            if kind == "offload":
                on_host.add(name)
            elif kind == "discard":
                on_host.discard(name)
        moved = frozenset(on_host - live)
        kept = live | moved
        saved = frozenset(op.name for op in graph.ops if op.phase != "backward" and kept.intersection(op.outputs))
        return cls(saved, moved)

    def schedule(self, problem: Problem) -> Schedule:
        """Return what the tags do: recompute at the first need, write after the last use, read before the next."""
        graph = problem.graph
        kept = [
            tensor for op in graph.ops if op.name in self.saved or not op.recomputable for tensor in op.outputs
        ]  # fmt: skip
        plain = schedule_of_saved(graph, kept, source="tags")
        if not self.moved:
            return plain
        computes = plain.computes()
        middle = first_backward_place(graph)
        uses: dict[str, list[int]] = {}
        for place, name in enumerate(computes):
            op = graph.ops[graph.op_index[name]]
            for tensor in self.moved.intersection((*op.inputs, *op.outputs)):
                uses.setdefault(tensor, []).append(place)
        moves: dict[str, tuple[int, int]] = {}
        for tensor, places in uses.items():
            earlier = [place for place in places if place < middle]
            if 0 < len(earlier) < len(places):
                moves[tensor] = earlier[-1], places[len(earlier)]
        return with_moves(graph, computes, moves, source="tags")

    def apply(self, gm: fx.GraphModule, captured: Captured) -> None:
        """Set ``meta["recompute"]`` of the nodes of the forward pass, views and items of tuples included."""
        mine = {node.name: node for node in captured.module.graph.nodes}
        for node in gm.graph.nodes:
            if not is_tagged(node) or node.name not in mine:
                continue
            copy = mine[node.name]
            owner = copy.args[0] if copy.target is operator.getitem else copy
            op = captured.op_of(owner) if isinstance(owner, fx.Node) else None
            homes = captured.homes.get(copy, ())
            if op is not None and len(homes) == 1 and homes[0] in self.moved:
                tag = CheckpointPolicy.MUST_CPU_OFFLOAD
            elif isinstance(node.meta.get("val"), torch.SymInt) or (op is not None and self._keeps(captured, op)):
                tag = CheckpointPolicy.MUST_SAVE
            else:
                tag = CheckpointPolicy.MUST_RECOMPUTE
            node.meta["recompute"] = tag

    def _keeps(self, captured: Captured, op: str) -> bool:
        return op in self.saved or not captured.graph.ops[captured.graph.op_index[op]].recomputable


def _at_backward(problem: Problem, schedule: Schedule) -> tuple[int, set[str]]:
    """Return the step of the first op of the backward pass, and the tensors on the device before it."""
    graph, run = problem.graph, simulate(problem.graph, schedule)
    backward = (step for step, op in enumerate(run.ops.tolist()) if op >= 0 and graph.ops[op].phase == "backward")
    first = next(backward)
    return first, {graph.tensor_names[t] for t in run.intervals.live_at(first - 1).tolist()}


def saved_bytes(problem: Problem, schedule: Schedule) -> int:
    """Return the bytes on the device when the backward pass begins."""
    _, live = _at_backward(problem, with_frees(problem.graph, schedule))
    return sum(tensor.size for tensor in problem.graph.tensors if tensor.name in live)


def fitted(problem: Problem, tags: Tags, deadline: Deadline) -> tuple[Tags, Certificate]:
    """Return tags within the budget if a search finds some: recompute or move what the peak holds, the cheapest first.

    Then keep again what fits, the dearest first.
    """

    def judged(each: Tags) -> Certificate:
        return problem.validate(each.schedule(problem))

    now = judged(tags)
    writer = {tensor: op.name for op in problem.graph.ops for tensor in op.outputs}
    stay = on_device(problem.graph)
    while not now.accepted and not deadline.expired:
        held = [name for name, _ in now.live_at_peak if writer.get(name) in tags.saved and name not in tags.moved]
        tried = []
        for name in held[:TRIED]:
            op = problem.graph.ops[problem.graph.op_index[writer[name]]]
            if op.recomputable:
                tried.append(replace(tags, saved=tags.saved - {op.name}, moved=tags.moved - set(op.outputs)))
            if problem.can_move and name not in stay:
                tried.append(replace(tags, moved=tags.moved | {name}))
        found = [(judged(each), each) for each in tried]
        better = [pair for pair in found if pair[0].accepted or pair[0].peak < now.peak]
        if not better:
            least = min(found, key=lambda pair: pair[0].peak, default=None)
            if least is None or least[0].peak > now.peak or not (least[1].saved or least[1].moved):
                break
            better = [least]
        before = now
        now, tags = min(
            better,
            key=lambda pair: (
                (problem.value(pair[0]) - problem.value(before) + 1) / max(before.peak - pair[0].peak, 1)
            ),
        )  # fmt: skip
    if now.accepted:
        again = [op for op in problem.graph.ops if op.recomputable and op.name not in tags.saved]
        for op in sorted(again, key=lambda op: -op.cost):
            if deadline.expired:
                break
            more = replace(tags, saved=tags.saved | {op.name})
            certificate = judged(more)
            if certificate.accepted and problem.value(certificate) < problem.value(now):
                tags, now = more, certificate
    return tags, now
