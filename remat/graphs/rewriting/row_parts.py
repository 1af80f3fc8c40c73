"""Splitting of consecutive layers by the rows of their images.

Patch-based inference (Lin et al., *MCUNetV2: Memory-Efficient Patch-based Inference for Tiny Deep Learning*, 2021): a
region of layers computes some rows of its result at a time. A window of convolution or pooling also reads rows of the
next band, its *halo*, so bands compute some rows of the tensors inside the region again.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from remat.graphs.graph import ComputeGraph, Op, Tensor
from remat.graphs.rewriting.annotations import Shape
from remat.graphs.rewriting.axes import Role
from remat.graphs.rewriting.draft import Draft
from remat.graphs.rewriting.kinds import KIND, PARTIAL, Kind

#: First and last row (exclusive).
Rows = tuple[int, int]

#: Ops whose rows depend on rows in a window.
_WINDOWED = frozenset({Kind.CONV, Kind.DEPTHWISE, Kind.POOL})
#: Axes of a batch of images.
_IMAGE = 4


@dataclass(frozen=True)
class Reach:
    """Rows of an input that rows of the output depend on."""

    extent: int
    """Rows of the input."""
    kernel: int = 1
    """Rows between the first and the last one of a window, both included."""
    stride: int = 1
    pad: int = 0
    """Rows of padding before the first."""

    def of(self, rows: Rows) -> Rows:
        """Return the rows of the input within the image that these rows of the output need.

        Examples
        --------
        >>> Reach(8, kernel=3, stride=1, pad=1).of((4, 8)), Reach(8, kernel=3, stride=2).of((0, 2))
        ((3, 8), (0, 5))
        """
        first = rows[0] * self.stride - self.pad
        last = (rows[1] - 1) * self.stride - self.pad + self.kernel
        begin = min(max(first, 0), self.extent - 1)
        return begin, max(min(last, self.extent), begin + 1)  # a window in the padding alone still reads a row


@dataclass(frozen=True)
class Region:
    """Layers that compute one tensor, and nothing else that is read outside.

    Attributes
    ----------
    ops : tuple of str
        In the order of the graph; the last one writes the result.
    inner : tuple of str
        Tensors that only the region reads, by name.
    output : str
        The result.
    rows : int
        Rows of the result.
    """

    ops: tuple[str, ...]
    inner: tuple[str, ...]
    output: str
    rows: int


class RowSplitter:
    """Regions of a graph, and graphs in which a region computes bands of rows.

    Raise GraphError if shapes, attributes or the layout of the graph are wrong.
    """

    def __init__(self, graph: ComputeGraph) -> None:
        self.graph = graph.plain
        self._draft = Draft(self.graph, kernels="in-place")
        self._axis = self._rows_axis()
        self._reach = {op.name: self._reach_of(op) for op in self.graph.ops}

    def _rows_axis(self) -> int:
        """Return the axis of rows by the layout of the convolutions and poolings: 2 if channels come second, or 1."""
        layouts = {str(each.get("layout", "")) for each in self._draft.attributes.values()}
        return 2 if (self._draft.layout or "").startswith("NC") or layouts & {"NCHW"} else 1

    def _reach_of(self, op: Op) -> dict[str, Reach] | None:
        """Return the reach of an op in each input; None if rows of its output need inputs in one piece."""
        draft, axis = self._draft, self._axis
        operands, shape = draft.operands(op.name), draft.output_shape(op.name)
        if not operands or shape is None or len(shape) != _IMAGE or shape[axis] < 2:
            return None
        if draft.sizes[op.outputs[0]] % shape[axis] or draft.writer(op.outputs[0]) is None:
            return None
        if draft.kind(op.name) is Kind.CONCAT:
            return self._concatenated(op, shape)
        found: dict[str, Reach] = {}
        for number, operand in enumerate(operands):
            reach = self._operand_reach(op.name, number, shape[axis]) if len(operand.parts) == 1 else None
            if reach is None or found.setdefault(operand.tensors[0], reach) != reach:
                return None
        return found

    def _concatenated(self, op: Op, shape: Shape) -> dict[str, Reach] | None:
        axis = self._axis
        shapes = [self._draft.shapes.get(tensor, ()) for tensor in op.inputs]
        along = self._draft.attributes[op.name].get("axis", axis)
        if along % _IMAGE == axis or any(len(each) != _IMAGE or each[axis] != shape[axis] for each in shapes):
            return None
        return {tensor: Reach(shape[axis]) for tensor in op.inputs}

    def _operand_reach(self, op: str, number: int, rows: int) -> Reach | None:
        reading, axis = self._draft.reading(op, number), self._axis
        if reading is None or len(reading.shape) != _IMAGE:
            return None
        extent, attributes = reading.shape[axis], reading.attributes
        if self._draft.kind(op) in _WINDOWED:
            if any(key not in attributes for key in ("layout", "kernel", "stride", "dilation", "pads")):
                return None
            kernel, stride, dilation, pads = (attributes[key][0] for key in ("kernel", "stride", "dilation", "pads"))
            return Reach(extent, (kernel - 1) * dilation + 1, stride, pads[0])  # rows are the first axis of the image
        found = self._draft.roles(op, number)
        passes = found is not None and found[axis].role is Role.PARALLEL and found[axis].output == axis
        return Reach(extent) if passes and extent == rows else None

    def regions(self, last: str) -> Iterator[Region]:
        """Yield the regions that end at an op, each with one op more than the one before; the first has two."""
        inside = {last}
        if self._reach[last] is None:
            return
        position = {name: k for k, name in enumerate(self.graph.order or ())}
        while True:
            writers = {
                writer
                for op in inside
                for source in self._reach[op] or {}
                if (writer := self._draft.writer(source)) is not None and writer not in inside
            }
            ready = [op for op in writers if self._may_join(op, inside)]
            if not ready:
                return
            inside.add(max(ready, key=position.__getitem__))
            output = self._draft.ops[last].outputs[0]
            ordered = tuple(sorted(inside, key=position.__getitem__))
            inner = tuple(sorted(self._draft.ops[name].outputs[0] for name in inside - {last}))
            yield Region(ordered, inner, output, self._draft.shapes[output][self._axis])

    def _may_join(self, op: str, inside: set[str]) -> bool:
        tensor = self._draft.ops[op].outputs[0]
        readers = self._draft.readers(tensor)
        return self._reach[op] is not None and tensor not in self._draft.kept and inside.issuperset(readers)

    def whole(self, region: Region) -> int:
        """Return the bytes that bands hold in one piece: the result and the inputs of the region."""
        read = {source for name in region.ops for source in self._reach[name] or {}}
        return sum(self._draft.sizes[tensor] for tensor in (read - {*region.inner}) | {region.output})

    def needed(self, region: Region, rows: Rows) -> dict[str, Rows]:
        """Return the rows of each tensor, inputs of the region included, that these rows of the result need."""
        found = {region.output: rows}
        for name in reversed(region.ops):
            wanted = found[self._draft.ops[name].outputs[0]]
            for source, reach in (self._reach[name] or {}).items():
                first, last = reach.of(wanted)
                known = found.get(source, (first, last))
                found[source] = min(first, known[0]), max(last, known[1])
        return found

    def split(self, region: Region, bands: int) -> ComputeGraph:
        """Return the graph in which a region computes bands of rows, one after the other, into one result.

        The bands differ by at most one row. The cost of an op is in proportion to the rows that it computes, rounded
        up; its workspace stays.
        """
        cuts = [region.rows * k // bands for k in range(bands + 1)]
        made: list[Op] = []
        tensors: list[Tensor] = []
        for number, rows in enumerate(itertools.pairwise(cuts)):
            needed = self.needed(region, rows)
            names = {tensor: self._draft.unused(f"{tensor}/rows{number}") for tensor in region.inner}
            tensors += [Tensor(names[t], self._share(self._draft.sizes[t], t, needed[t])) for t in region.inner]
            for name in region.ops:
                op = self._draft.ops[name]
                made.append(
                    replace(
                        op,
                        name=self._draft.unused(f"{name}/rows{number}"),
                        type=PARTIAL + op.type,
                        inputs=tuple(names.get(tensor, tensor) for tensor in op.inputs),
                        outputs=tuple(names.get(tensor, tensor) for tensor in op.outputs),
                        cost=self._share(op.cost, op.outputs[0], needed[op.outputs[0]]),
                    )
                )
        return self._with(region, made, tensors)

    def _share(self, amount: int, tensor: str, rows: Rows) -> int:
        return -(-amount * (rows[1] - rows[0]) // self._draft.shapes[tensor][self._axis])

    def _with(self, region: Region, made: Sequence[Op], tensors: Sequence[Tensor]) -> ComputeGraph:
        graph, gone = self.graph, set(region.ops)
        order: list[str] = []
        for name in graph.order or ():
            order += [op.name for op in made] if name == region.ops[-1] else [] if name in gone else [name]
        meta = {key: graph.meta[key] for key in ("described", "layout", "shapes") if key in graph.meta}
        meta["attrs"] = self._draft.attributes | {op.name: {KIND: Kind.OPAQUE.value} for op in made}
        return ComputeGraph(
            graph.name,
            [tensor for tensor in graph.tensors if tensor.name not in region.inner] + list(tensors),
            [op for op in graph.ops if op.name not in gone] + list(made),
            graph.inputs, graph.outputs, order=order, constant_memory=graph.constant_memory,
            cost_unit=graph.cost_unit, source=graph.source, meta=meta,
        )  # fmt: skip
