"""Graph of a model's whole step, from the graphs of its blocks and of the remainder."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from torch import fx

from remat.graphs import ComputeGraph, Op, Tensor
from remat.hierarchy.groups import Group
from remat.schedule import Schedule
from remat.torch.blocks.remainder import BlockOp, Remainder
from remat.torch.captured import BEGIN_BACKWARD, Captured

#: Name of the op at the end of a block's forward pass: until then the caller holds arguments and results.
RETURN = "return"


@dataclass(frozen=True, eq=False)
class Composed:
    """Graph of a whole step, and the ops of each call of a block in it.

    Ops and tensors of a block have the path of the block before their name in its own graph, and after it the number of
    the call if there are several.
    """

    graph: ComputeGraph
    groups: tuple[Group, ...]
    """Ops of each call of a block."""
    once: Mapping[str, int]
    """Limits of computes: the ops of the remainder run once, and those that write outputs of a block."""

    def block_schedule(self, number: int, op: BlockOp, forward: Sequence[int], backward: Sequence[int]) -> Schedule:
        """Return the schedule of a block's own graph, for computes of the whole graph before and after the rest."""
        size = len(self.groups[number].name) + 1
        names = [[self.graph.ops[k].name[size:] for k in part] for part in (forward, backward)]
        graph = op.captured.graph
        return Schedule.of_computes(graph, [graph.op_index[n] for n in [*names[0], BEGIN_BACKWARD, *names[1]]])


@dataclass(eq=False)
class _Composer:
    """Collects ops and tensors; `home` has the tensor of the whole graph for each tensor of the remainder."""

    remainder: Remainder
    labels: list[str]
    home: dict[str, str | None] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)
    ops: list[Op] = field(default_factory=list)
    once: dict[str, int] = field(default_factory=dict)
    parts: dict[tuple[int, bool], list[int]] = field(default_factory=dict)
    inner: dict[int, dict[str, str]] = field(default_factory=dict)
    """Tensors of the whole graph for tensors of each block."""
    arguments: dict[int, dict[tuple[str, str], list[str]]] = field(default_factory=dict)
    """Tensors of the whole graph that hold each argument of a block."""

    def add(self, op: Op, *, once: bool = False) -> None:
        self.ops.append(op)
        if once and op.recomputable:
            self.once[op.name] = 1

    def mapped(self, names: Sequence[str]) -> tuple[str, ...]:
        return tuple(dict.fromkeys(home for name in names if (home := self.home.get(name, name)) is not None))

    def homes(self, node: fx.Node) -> list[str]:
        found = self.remainder.captured.homes.get(node, ())
        return list(self.mapped([home for home in found if home is not None]))

    def forward(self, node: fx.Node, op: BlockOp, number: int) -> None:
        label, graph = self.labels[number], op.captured.graph
        given: Sequence[fx.Node] = node.args[0]
        arguments = {key: self.homes(each) for key, each in zip(op.inputs, given, strict=True)}
        self.arguments[number] = arguments
        inner = self.inner[number] = {}
        begin = graph.op_index[BEGIN_BACKWARD]
        results = [
            home
            for each in op.captured.results
            if each.kind != "gradient" and each.node is not None
            for home in op.captured.homes[each.node]
            if home is not None
        ]
        self._block(number, op, range(begin), set(results))
        held = [name for names in arguments.values() for name in names]
        held += [inner[name] for name in results]
        end = f"{label}/{RETURN}"
        self.sizes[end] = 0
        self.add(Op(end, tuple(dict.fromkeys(held)), (end,), type=RETURN, phase="forward", recomputable=False))
        positions = op.captured.results_of("output")
        for k, position in enumerate(op.outputs):
            result = positions[position].node
            assert result is not None
            home = op.captured.homes[result][0]
            self.home[f"{node.name}.{k}"] = None if home is None else inner[home]

    def backward(self, node: fx.Node, op: BlockOp, number: int) -> None:
        label, graph, inner = self.labels[number], op.captured.graph, self.inner[number]
        given: Sequence[fx.Node] = node.args[0]
        for each, argument in zip(op.captured.inputs_of("tangent"), given, strict=True):
            (home,) = op.captured.homes[each.node]
            if home is None:
                continue
            held, name = self.homes(argument), f"{label}/{home}"
            if len(held) == 1 and argument.meta["val"].stride() == each.node.meta["val"].stride():
                inner[home] = held[0]
            else:  # copied to the strides of the backward graph
                inner[home], self.sizes[name] = name, each.size
                self.add(Op(name, tuple(held), (name,), type="copy", phase="backward", recomputable=False))
        begin = graph.op_index[BEGIN_BACKWARD]
        self._block(number, op, range(begin + 1, len(graph.ops)), set())
        for k, gradient in enumerate(op.results(op.captured)):
            assert gradient.node is not None
            home = op.captured.homes[gradient.node][0]
            self.home[f"{node.name}.{k}"] = None if home is None else inner[home]

    def _block(self, number: int, op: BlockOp, places: range, results: set[str]) -> None:
        """Add the ops of one pass of a block; those with `results` run once."""
        captured, label, inner = op.captured, self.labels[number], self.inner[number]
        reads = argument_reads(captured)
        sizes = {each.name: each.size for each in captured.graph.tensors}
        backward = places.start > captured.graph.op_index[BEGIN_BACKWARD]
        part = self.parts[number, backward] = []
        for place in places:
            own = captured.graph.ops[place]
            for name in own.outputs:
                inner[name] = f"{label}/{name}"
                self.sizes[inner[name]] = sizes[name]
            read = [inner[name] for name in own.inputs]
            for key in reads[place]:
                read += self.arguments[number].get(key, [])
            part.append(len(self.ops))
            made = Op(
                f"{label}/{own.name}", tuple(dict.fromkeys(read)), tuple(inner[name] for name in own.outputs),
                own.cost, own.workspace, own.type, "backward" if backward else "forward", own.recomputable,
            )  # fmt: skip
            self.add(made, once=bool(results.intersection(own.outputs)))


def argument_reads(captured: Captured) -> list[list[tuple[str, str]]]:
    """Return the arguments that each op reads, directly or through views: pairs of kind and name."""
    origins: dict[fx.Node, dict[tuple[str, str], None]] = {
        each.node: {(each.kind, each.name): None} for each in captured.inputs if each.kind != "tangent"
    }
    for node in captured.module.graph.nodes:
        if node.op == "call_function" and captured.op_of(node) is None and not any(captured.homes[node]):
            origins[node] = {key: None for each in node.all_input_nodes for key in origins.get(each, {})}
    return [
        [] if node is None else list({key: None for each in node.all_input_nodes for key in origins.get(each, {})})
        for node in captured.nodes
    ]


def compose(remainder: Remainder) -> Composed:
    """Return the graph of the whole step: each op of a block in the remainder is replaced by the block's own ops."""
    captured = remainder.captured
    work = _Composer(remainder, list(_labels(remainder.ops)))
    sizes = {each.name: each.size for each in captured.graph.tensors}
    for op, node in zip(captured.graph.ops, captured.nodes, strict=True):
        found = remainder.op_of(node)
        if found is None:
            for name in op.outputs:
                work.sizes[name] = sizes[name]
            work.add(replace(op, inputs=work.mapped(op.inputs)), once=True)
            continue
        block, number, backward = found
        assert node is not None
        (work.backward if backward else work.forward)(node, block, number)
    meta = captured.graph.meta
    graph = ComputeGraph(
        name=captured.graph.name,
        tensors=[Tensor(name, size) for name, size in work.sizes.items()],
        ops=work.ops,
        outputs=work.mapped(captured.graph.outputs),
        constant_memory=captured.graph.constant_memory,
        cost_unit=captured.graph.cost_unit,
        source=captured.graph.source + ", composed of blocks",
        meta={key: meta[key] for key in ("cost_model", "cost_figures") if key in meta},
    )
    groups = tuple(
        Group(label, np.array(work.parts[k, False]), np.array(work.parts.get((k, True), []), dtype=np.int64))
        for k, label in enumerate(work.labels)
    )
    return Composed(graph, groups, work.once)


def _labels(ops: Sequence[BlockOp]) -> Iterator[str]:
    calls: dict[str, int] = {}
    for op in ops:
        calls[op.call.path] = number = calls.get(op.call.path, 0) + 1
        yield op.call.path if number == 1 else f"{op.call.path}#{number}"
