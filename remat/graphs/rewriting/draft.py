"""Mutable graph for rewriting: ops, tensors, shapes and attributes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from remat.errors import GraphError
from remat.graphs.graph import ComputeGraph, Op, Tensor
from remat.graphs.rewriting.annotations import Attributes, Shape, is_described, read_attributes, read_shapes
from remat.graphs.rewriting.axes import AxisRole, Reading, channel_axis, checked_layout, guessed_layout, roles
from remat.graphs.rewriting.kinds import KIND, Kind, kind_of
from remat.graphs.rewriting.operands import Operand, read_operands, write_operands
from remat.runtime.text import expect

#: Entries of `meta` that describe the original ops.
_OUTDATED = ("n_ops", "n_op_edges", "no_remat_peak", "max_op_bytes", "total_cost", "reported")


@dataclass(frozen=True, slots=True)
class NewOp:
    """New op for a draft: the op, its operands and its attributes."""

    op: Op
    operands: tuple[Operand, ...]
    attributes: Mapping[str, Any]


class Draft:
    """Mutable copy of a graph; :meth:`build` returns a checked graph.

    `kernels` is that of :class:`~remat.graphs.rewriting.RewriteOptions`. Raise GraphError if shapes, attributes or
    layout of the graph are wrong, naming the tensor or op.
    """

    def __init__(self, graph: ComputeGraph, *, kernels: str | None = None) -> None:
        expect(graph, ComputeGraph, "graph", GraphError)
        self.graph = graph
        self.described = is_described(graph)
        self.whole_kernels = self.described if kernels is None else kernels == "whole"
        self._in_place = {op.name: op for op in graph.ops if op.in_place}
        graph = graph.plain  # kernels need not write the part of an op in place
        self.shapes = read_shapes(graph)
        self.attributes: dict[str, Attributes] = read_attributes(graph)
        self.sizes = {tensor.name: tensor.size for tensor in graph.tensors}
        self.ops = {op.name: op for op in graph.ops}
        assert graph.order is not None
        self.order: dict[str, list[str]] = {name: [name] for name in graph.order}
        """Current replacements of each op of the graph, in the reference order."""
        self._origin: dict[str, str] = {}
        """Original op of each new op."""
        self.kept = {*graph.inputs, *graph.outputs}
        self._readers: dict[str, dict[str, None]] = {tensor: {} for tensor in self.sizes}
        self._writers: dict[str, dict[str, None]] = {tensor: {} for tensor in self.sizes}
        for op in graph.ops:
            for tensor in op.outputs:
                self._writers[tensor][op.name] = None
            for tensor in op.inputs:
                self._readers[tensor][op.name] = None
        self._operands: dict[str, tuple[Operand, ...] | None] = {}
        self.layout = self._layout()

    def readers(self, tensor: str) -> list[str]:
        """Return the ops that read a tensor."""
        return list(self._readers[tensor])

    def writer(self, tensor: str) -> str | None:
        """Return the only writer of a tensor; None if there are several or none."""
        return next(iter(self._writers[tensor])) if len(self._writers[tensor]) == 1 else None

    def kind(self, op: str) -> Kind:
        """Return the family of an op."""
        return kind_of(self.ops[op].type, self.attributes.get(op, {}))

    def operands(self, op: str) -> tuple[Operand, ...] | None:
        """Return the operands of an op; None if shapes are missing."""
        if op not in self._operands:
            self._operands[op] = read_operands(self.ops[op], self.attributes.get(op, {}), self.shapes)
        return self._operands[op]

    def output_shape(self, op: str) -> Shape | None:
        """Return the shape of the only output of an op; None if there are several or the shape is unknown."""
        outputs = self.ops[op].outputs
        return self.shapes.get(outputs[0]) if len(outputs) == 1 else None

    def reading(self, op: str, operand: int) -> Reading | None:
        """Return the input of the dimension rule for an operand; None if shapes are missing."""
        operands, output = self.operands(op), self.output_shape(op)
        shapes = [each.shape(self.shapes) for each in operands or ()]
        if output is None or not shapes or any(shape is None for shape in shapes):
            return None
        known = [shape for shape in shapes if shape is not None]
        attributes = self.attributes.get(op, {})
        axis = channel_axis(self.ops[op], attributes, len(known[operand]), self.layout)
        return Reading(self.ops[op], attributes, operand, known, output, axis)

    def roles(self, op: str, operand: int) -> tuple[AxisRole, ...] | None:
        """Return the role of each axis of an operand; None if shapes are missing."""
        reading = self.reading(op, operand)
        return None if reading is None else roles(reading)

    def _layout(self) -> str | None:
        """Return ``meta["layout"]``, or the layout on which the weights of convolutions agree; None without one."""
        given = self.graph.meta.get("layout")
        if given is not None:
            return checked_layout(given, f"graph {self.graph.name!r}: the layout")
        found: set[str] = set()
        for name, op in self.ops.items():
            attributes = self.attributes.get(name)
            if attributes and "weight_shape" in attributes and op.inputs:
                operands, output = self.operands(name), self.output_shape(name)
                shape = operands[0].shape(self.shapes) if operands else None
                if shape is not None and output is not None:
                    found.add(guessed_layout(op, attributes, shape, output) or "")
        found.discard("")
        return found.pop() if len(found) == 1 else None

    def unused(self, name: str) -> str:
        """Return the name, with a number appended if an op or a tensor already has it."""
        number, found = 1, name
        while found in self.ops or found in self.sizes:
            number += 1
            found = f"{name}.{number}"
        return found

    def add_tensor(self, name: str, size: int, shape: Shape) -> None:
        """Add a new tensor."""
        self.sizes[name], self.shapes[name] = size, shape
        self._readers[name], self._writers[name] = {}, {}

    def replace(self, op: str, new: Sequence[NewOp]) -> None:
        """Replace an op by other ops, or remove it; drop tensors that have neither reader nor writer left."""
        for tensor in self.ops[op].inputs:
            self._readers[tensor].pop(op)
        outputs = self.ops[op].outputs
        for tensor in outputs:
            self._writers[tensor].pop(op)
        del self.ops[op]
        self.attributes.pop(op, None)
        self._operands.pop(op, None)
        origin = self._origin.pop(op, op)
        place = self.order[origin]
        at = place.index(op)
        place[at : at + 1] = [each.op.name for each in new]
        for each in new:
            name = each.op.name
            self._origin[name] = origin
            self.ops[name] = each.op
            for tensor in each.op.outputs:
                self._writers[tensor][name] = None
            self.set_operands(name, each.operands, each.attributes)
        for tensor in outputs:
            if not self._writers[tensor] and not self._readers[tensor]:
                del self.sizes[tensor], self._readers[tensor], self._writers[tensor]
                self.shapes.pop(tensor, None)

    def set_operands(self, op: str, operands: Iterable[Operand], attributes: Mapping[str, Any] | None = None) -> None:
        """Change the operands of an op."""
        found = tuple(operand.simple(self.shapes) for operand in operands)
        before = self.ops[op]
        for tensor in before.inputs:
            self._readers[tensor].pop(op, None)
        inputs = tuple(dict.fromkeys(tensor for operand in found for tensor in operand.tensors))
        for tensor in inputs:
            self._readers[tensor][op] = None
        given = self.attributes.get(op, {}) if attributes is None else attributes
        self.ops[op] = replace(before, inputs=inputs)
        written = write_operands(before.type, found, given, self.shapes)
        if written:
            self.attributes[op] = written
        else:
            self.attributes.pop(op, None)
        self._operands[op] = found

    def can_read_parts(self, tensor: str, source: Operand) -> bool:
        """Return True if all readers of a tensor can read the parts of `source`, and the graph may drop the tensor."""
        return tensor not in self.kept and all(
            self.with_parts(op, tensor, source) is not None for op in self.readers(tensor)
        )

    def with_parts(self, op: str, tensor: str, source: Operand) -> tuple[Operand, ...] | None:
        """Return the operands of an op with the parts of `source` in place of a tensor; None if impossible."""
        able = not self.whole_kernels and self.kind(op) is not Kind.OPAQUE
        may = self.attributes.get(op, {}).get("reads_parts", able)
        if not isinstance(may, bool):
            raise GraphError(f"attribute 'reads_parts' of op {op!r} must be true or false")
        operands = self.operands(op) if may else None
        if operands is None:
            return None
        found: list[Operand] = []
        for operand in operands:
            new = operand.with_parts_for(tensor, source)
            if new is None:
                return None
            found.append(new)
        return tuple(found)

    def read_parts_instead(self, tensor: str, source: Operand) -> None:
        """Make all readers of a tensor read the parts of `source`."""
        for op in self.readers(tensor):
            operands = self.with_parts(op, tensor, source)
            assert operands is not None
            self.set_operands(op, operands)

    def is_copy(self, tensor: str) -> bool:
        """Return True if a tensor is at least as large as its writer's inputs, whose elements may be wider."""
        writer = self.writer(tensor)
        return writer is not None and sum(self.sizes[t] for t in self.ops[writer].inputs) <= self.sizes[tensor]

    def kept_for_others(self, tensor: str, op: str) -> bool:
        """Return True if a tensor stays when `op` no longer reads it."""
        return tensor in self.kept or any(reader != op for reader in self._readers[tensor])

    def remove_unread(self, tensors: Iterable[str]) -> None:
        """Remove concatenations that wrote these tensors if they have no readers left, and so on for their inputs."""
        pending = list(tensors)
        while pending:
            tensor = pending.pop()
            name = self.writer(tensor) if tensor in self.sizes else None
            if name is None or self.kind(name) is not Kind.CONCAT:
                continue
            if not any(t in self.kept or self._readers[t] for t in self.ops[name].outputs):
                pending += self.ops[name].inputs
                self.replace(name, [])

    def _placed(self, op: str) -> Op:
        """Return an op, with its original in-place pairs if no rewrite has changed it."""
        found, before = self.ops[op], self._in_place.get(op)
        if before is None or found != replace(before, in_place=()):
            return found
        alone = [pair for pair in before.in_place if max(len(self._writers[tensor]) for tensor in pair) <= 1]
        return replace(found, in_place=tuple(alone))

    def _written(self, op: str) -> dict[str, Any]:
        """Return the attributes of an op for ``meta["attrs"]``."""
        found = dict(self.attributes.get(op, {}))
        if self.described and found.get(KIND) == Kind.OPAQUE:
            del found[KIND]
        return found

    def build(self, records: list[Mapping[str, Any]], name: str) -> ComputeGraph:
        """Return the graph, with `records` in its ``meta`` under ``rewriting``."""
        order = [name for names in self.order.values() for name in names]
        meta = {key: value for key, value in self.graph.meta.items() if key not in _OUTDATED}
        meta["shapes"] = {tensor: list(self.shapes[tensor]) for tensor in self.sizes if tensor in self.shapes}
        attributes = ((op, self._written(op)) for op in order)
        meta["attrs"] = {op: found for op, found in attributes if found}
        meta["rewriting"] = records
        return ComputeGraph(
            name=name,
            tensors=[Tensor(tensor, size) for tensor, size in self.sizes.items()],
            ops=[self._placed(op) for op in order],
            inputs=self.graph.inputs,
            outputs=self.graph.outputs,
            order=order,
            constant_memory=self.graph.constant_memory,
            cost_unit=self.graph.cost_unit,
            source=self.graph.source,
            meta=meta,
        )
