"""Rewriting rules: patterns and their replacements. ``docs/rewriting.md`` has the names and the mathematics."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import replace
from itertools import pairwise
from math import prod
from typing import Any, ClassVar

from remat.graphs.graph import Op
from remat.graphs.rewriting.annotations import (
    FINISH_OF,
    JOIN_OF,
    PART_OF,
    Attributes,
    PartOf,
    axis_of,
    is_whole,
    part_of,
)
from remat.graphs.rewriting.axes import Role
from remat.graphs.rewriting.draft import Draft, NewOp
from remat.graphs.rewriting.kinds import KIND, PARTIAL, Kind
from remat.graphs.rewriting.operands import KEYS, Operand, Part, whole
from remat.graphs.rewriting.rewrite import Rewrite, RewriteOptions, RuleName
from remat.graphs.rewriting.splitting import cuts, expanded, merged, share


class Rule(ABC):
    """Pattern and its replacement."""

    name: ClassVar[str]

    @abstractmethod
    def match(self, draft: Draft, op: str, options: RewriteOptions) -> Rewrite | None:
        """Return the rewrite of this op, or None if the pattern does not match."""

    @abstractmethod
    def perform(self, draft: Draft, rewrite: Rewrite) -> None:
        """Apply the rewrite to the draft."""


class ZeroCopyConcat(Rule):
    """Removal of a concatenation: its readers read its parts in place.

    A copying concatenation holds its parts twice for one step. It stays if its output is a graph output, or if a reader
    needs that output in one piece.
    """

    name = RuleName.ZERO_COPY_CONCAT

    def match(self, draft: Draft, op: str, options: RewriteOptions) -> Rewrite | None:
        found = draft.ops[op]
        operands = draft.operands(op) if draft.kind(op) is Kind.CONCAT and len(found.outputs) == 1 else None
        if not operands or len(operands) != 1 or draft.writer(found.outputs[0]) != op:
            return None
        operand = operands[0]
        if found.outputs[0] not in draft.shapes or not draft.can_read_parts(found.outputs[0], operand):
            return None
        ends = operand.boundaries if operand.axis is not None else (0, 1)
        parts = tuple(pairwise(ends))
        return Rewrite(
            self.name, op, 0, operand.axis or 0, parts, operand.tensors,
            never_worse=draft.is_copy(found.outputs[0]),
        )  # fmt: skip

    def perform(self, draft: Draft, rewrite: Rewrite) -> None:
        operands = draft.operands(rewrite.op)
        assert operands
        draft.read_parts_instead(draft.ops[rewrite.op].outputs[0], operands[0])
        draft.replace(rewrite.op, [])


class ZeroCopySplit(Rule):
    """Removal of a split or a slice: readers of its outputs read slices of its input in place.

    The input then stays until its last slice is read, which may be longer than before.
    """

    name = RuleName.ZERO_COPY_SPLIT

    def match(self, draft: Draft, op: str, options: RewriteOptions) -> Rewrite | None:
        found = draft.ops[op]
        if draft.kind(op) not in {Kind.SPLIT, Kind.SLICE} or not found.outputs:
            return None
        operands = draft.operands(op)
        shape = operands[0].shape(draft.shapes) if operands and len(operands) == 1 else None
        if not operands or shape is None or any(tensor not in draft.shapes for tensor in found.outputs):
            return None
        attributes = draft.attributes.get(op, {})
        axis = axis_of(attributes, "axis", len(shape), op)
        if axis is None and [draft.shapes[tensor] for tensor in found.outputs] == [shape]:
            axis = operands[0].axis or 0  # a single output
        if axis is None or operands[0].axis not in {None, axis}:
            return None
        start = attributes.get("start", 0) if draft.kind(op) is Kind.SLICE else 0
        if not is_whole(start) or start < 0:
            return None
        parts: list[tuple[int, int]] = []
        for tensor in found.outputs:
            out = draft.shapes[tensor]
            if len(out) != len(shape) or out[:axis] + out[axis + 1 :] != shape[:axis] + shape[axis + 1 :]:
                return None
            parts.append((start, start + out[axis]))
            start += out[axis]
        if start > shape[axis] or (draft.kind(op) is Kind.SPLIT and start != shape[axis]):
            return None
        for tensor, (first, last) in zip(found.outputs, parts, strict=True):
            if draft.writer(tensor) != op or not draft.can_read_parts(tensor, operands[0].cut(axis, first, last)):
                return None
        # The output copies the whole input: readers then keep the input no longer than they kept the copy.
        copied = len(parts) == 1 and parts[0] == (0, shape[axis]) and draft.is_copy(found.outputs[0])
        return Rewrite(self.name, op, 0, axis, tuple(parts), operands[0].tensors, never_worse=copied)

    def perform(self, draft: Draft, rewrite: Rewrite) -> None:
        operands = draft.operands(rewrite.op)
        assert operands
        for tensor, (first, last) in zip(draft.ops[rewrite.op].outputs, rewrite.parts, strict=True):
            draft.read_parts_instead(tensor, operands[0].cut(rewrite.axis, first, last))
        draft.replace(rewrite.op, [])


class _Splitting(Rule):
    """Base of the two rules that split an op."""

    role: ClassVar[Role]

    def match(self, draft: Draft, op: str, options: RewriteOptions) -> Rewrite | None:
        found = draft.ops[op]
        operands = draft.operands(op)
        if not operands or len(found.outputs) != 1 or draft.writer(found.outputs[0]) != op:
            return None
        for number in range(len(operands)):
            operand, _ = expanded(draft, operands[number])
            roles = draft.roles(op, number)
            if roles is None or operand.axis is None or operand.axis >= len(roles):
                continue
            if roles[operand.axis].role is not self.role:
                continue
            output = roles[operand.axis].output
            together = cuts(draft, op, number, operand.axis, output)
            if together is None:
                continue
            ends = sorted({end for cut in together for end in cut.boundaries})
            if len(ends) - 1 < (options.min_parts if self.role is Role.REDUCED else 2):
                continue
            parts = merged(ends, options.parts)
            read = (cut.of(start, stop).simple(draft.shapes) for cut in together for start, stop in parts)
            if draft.whole_kernels and any(each.axis is not None for each in read):
                continue
            # outputs of concatenations that the parts no longer read
            split = (each for each, cut in zip(operands, together, strict=True) if cut.axis is not None)
            passed = {tensor for each in split for tensor in expanded(draft, each)[1]}
            rewrite = Rewrite(
                self.name, op, number, operand.axis, parts, operand.tensors,
                split_workspace=options.split_workspace,
                never_worse=all(draft.is_copy(t) and not draft.kept_for_others(t, op) for t in passed)
                and not (draft.whole_kernels and self.role is Role.REDUCED),
            )  # fmt: skip
            chosen = self._chosen(draft, rewrite, options, output)
            if chosen is not None:
                return chosen
        return None

    @abstractmethod
    def _chosen(self, draft: Draft, rewrite: Rewrite, options: RewriteOptions, output: int | None) -> Rewrite | None:
        """Return the completed rewrite if the rule applies."""

    def _parts(
        self, draft: Draft, rewrite: Rewrite, output: int | None
    ) -> list[tuple[Op, tuple[Operand, ...], dict[str, Any]]]:
        """Return the ops that compute the parts, with operands and attributes; their outputs are still the op's."""
        op, attributes = draft.ops[rewrite.op], draft.attributes.get(rewrite.op, {})
        together = cuts(draft, rewrite.op, rewrite.operand, rewrite.axis, output)
        assert together is not None
        extent = rewrite.parts[-1][1]
        costs = share(op.cost, [stop - start for start, stop in rewrite.parts])
        found = []
        for number, ((start, stop), cost) in enumerate(zip(rewrite.parts, costs, strict=True)):
            workspace = -(-op.workspace * (stop - start) // extent) if rewrite.split_workspace else op.workspace
            name = draft.unused(f"{op.name}/part{number}")
            kind = op.type if op.type.startswith(PARTIAL) else PARTIAL + op.type
            part = replace(op, name=name, cost=cost, workspace=workspace, type=kind)
            about = _about(attributes, rewrite, start, stop)
            found.append((part, tuple(cut.of(start, stop) for cut in together), about))
        return found


class PartialSums(_Splitting):
    """Partial sums for a concatenation along an axis that its reader sums over: one op per part, one shared buffer.

    Serenity's channel-wise partitioning (Ahn et al., MLSys 2020, equations 3 to 6). The partial ops run in any order.
    The bias is added once, and an activation follows the complete sum.
    """

    name = RuleName.PARTIAL_SUMS
    role = Role.REDUCED

    def _chosen(self, draft: Draft, rewrite: Rewrite, options: RewriteOptions, output: int | None) -> Rewrite | None:
        if part_of(rewrite.op, draft.attributes.get(rewrite.op, {})) is not None:
            return None
        if options.accumulator_bytes is None:
            return rewrite
        size = _accumulator_size(draft, rewrite.op, options.accumulator_bytes)
        if size == draft.sizes[draft.ops[rewrite.op].outputs[0]]:
            return rewrite
        if draft.whole_kernels:
            return None  # whole kernels cannot write wider elements
        return replace(rewrite, accumulator_bytes=options.accumulator_bytes, never_worse=False)

    def perform(self, draft: Draft, rewrite: Rewrite) -> None:
        op, attributes = draft.ops[rewrite.op], dict(draft.attributes.get(rewrite.op, {}))
        target = op.outputs[0]
        shape = draft.shapes[target]
        buffer = target
        if rewrite.accumulator_bytes is not None:
            buffer = draft.unused(f"{target}/sum")
            draft.add_tensor(buffer, _accumulator_size(draft, rewrite.op, rewrite.accumulator_bytes), shape)
        new: list[NewOp] = []
        result = draft.sizes[buffer] if draft.whole_kernels else 0  # of a part, before the addition
        for number, (part, operands, about) in enumerate(self._parts(draft, rewrite, None)):
            bias = number == 0 and buffer == target
            about[PART_OF] = replace(about[PART_OF], sum=True, bias=bias, finish=buffer == target).as_dict()
            part = replace(part, outputs=(buffer,), workspace=part.workspace + result)
            new.append(NewOp(part, operands, about))
        if buffer != target:
            finish = Op(
                draft.unused(f"{op.name}/finish"), (), (target,), type="Finish", phase=op.phase,
                recomputable=op.recomputable,
            )  # fmt: skip
            about = {key: attributes[key] for key in ("activation", "bias") if key in attributes}
            if draft.described:
                about[KIND] = Kind.FINISH.value
            about[FINISH_OF] = {
                "of": op.name,
                "type": op.type,
                "operands": len(draft.operands(op.name) or ()),
                "channels": rewrite.axis,
            }
            new.append(NewOp(finish, (whole(buffer),), about))
        draft.replace(op.name, new)
        draft.remove_unread(op.inputs)


class ParallelParts(_Splitting):
    """Separate ops on the parts of a concatenation along an axis that its reader treats elementwise.

    Serenity's kernel-wise partitioning of depthwise convolutions (equations 7 and 8). Readers of the result read its
    parts in place. If it is a graph output, or a reader needs it in one piece, the parts are written into one tensor.
    Where kernels only write whole tensors, an op joins them instead.
    """

    name = RuleName.PARALLEL_PARTS
    role = Role.PARALLEL

    def _chosen(self, draft: Draft, rewrite: Rewrite, options: RewriteOptions, output: int | None) -> Rewrite | None:
        before = part_of(rewrite.op, draft.attributes.get(rewrite.op, {}))
        if before is not None and (before.sum or before.axis != rewrite.axis):
            return None
        target = draft.ops[rewrite.op].outputs[0]
        extent = rewrite.parts[-1][1]
        exact = all(draft.sizes[target] * (stop - start) % extent == 0 for start, stop in rewrite.parts)
        return rewrite if exact and output is not None else None

    def perform(self, draft: Draft, rewrite: Rewrite) -> None:
        op = draft.ops[rewrite.op]
        target = op.outputs[0]
        roles = draft.roles(rewrite.op, rewrite.operand)
        axis = roles[rewrite.axis].output if roles else None
        assert axis is not None
        shape, size, extent = draft.shapes[target], draft.sizes[target], rewrite.parts[-1][1]
        times = shape[axis] // extent
        ends = [(start * times, stop * times) for start, stop in rewrite.parts]
        names = [draft.unused(f"{target}/part{number}") for number in range(len(ends))]
        pieces = Operand(
            tuple(Part(name, 0, stop - start) for name, (start, stop) in zip(names, ends, strict=True)), axis
        )
        apart = draft.can_read_parts(target, pieces)
        new: list[NewOp] = []
        for (part, operands, about), name, (start, stop) in zip(
            self._parts(draft, rewrite, axis), names, ends, strict=True
        ):
            if apart or draft.whole_kernels:
                draft.add_tensor(
                    name, size * (stop - start) // shape[axis], (*shape[:axis], stop - start, *shape[axis + 1 :])
                )
            else:
                about["output_slice"] = [axis, start, stop]
            about[PART_OF] = about[PART_OF].as_dict()
            written = name if apart or draft.whole_kernels else target
            new.append(NewOp(replace(part, outputs=(written,)), operands, about))
        if apart:
            draft.read_parts_instead(target, pieces)
        elif draft.whole_kernels:
            new.append(_join(draft, rewrite, pieces))
        draft.replace(op.name, new)
        draft.remove_unread(op.inputs)


def _join(draft: Draft, rewrite: Rewrite, pieces: Operand) -> NewOp:
    """Return the op that concatenates the parts of an op, with the cost of the concatenation before the op."""
    op = draft.ops[rewrite.op]
    before = [draft.writer(tensor) for tensor in op.inputs]
    cost = max((draft.ops[w].cost for w in before if w is not None and draft.kind(w) is Kind.CONCAT), default=0)
    join = Op(
        draft.unused(f"{op.name}/join"), (), op.outputs, cost, type="Concat", phase=op.phase,
        recomputable=op.recomputable,
    )  # fmt: skip
    before_of = part_of(rewrite.op, draft.attributes.get(rewrite.op, {}))
    of = rewrite.op if before_of is None else before_of.of
    return NewOp(join, (pieces,), {KIND: Kind.CONCAT.value, "axis": pieces.axis, JOIN_OF: of})


def _accumulator_size(draft: Draft, op: str, bytes_per_element: int) -> int:
    return prod(draft.shapes[draft.ops[op].outputs[0]]) * bytes_per_element


def input_of_weights(weights: list[Any], kernel: object, *, last: bool) -> int:
    """Return the axis of the input channels in the shape of a convolution's weights.

    They are last in (out, kernel..., in) and (1, kernel..., channels), second in (out, in, kernel...), first in
    (channels, 1, kernel...). If the kernel does not determine the axis, `last` (channels last in tensors) does.

    Examples
    --------
    >>> input_of_weights([48, 3, 3, 64], [3, 3], last=False), input_of_weights([48, 64, 3, 3], [3, 3], last=False)
    (3, 1)
    """
    if isinstance(kernel, list | tuple):
        ends, starts = list(kernel) == weights[1:-1], list(kernel) == weights[2:]
        last = ends if ends != starts else last
    return len(weights) - 1 if last else 0 if weights[1] == 1 else 1


def _about(attributes: Attributes, rewrite: Rewrite, start: int, stop: int) -> dict[str, Any]:
    """Return the attributes of a part: those of the op, with weights cut accordingly, and its ``part_of`` entry."""
    about = {key: value for key, value in attributes.items() if key not in KEYS}
    weights, extent = about.get("weight_shape"), rewrite.parts[-1][1]
    if isinstance(weights, list | tuple) and len(weights) > 2 and rewrite.axis > 0:
        place = input_of_weights(list(weights), about.get("kernel"), last=rewrite.axis == len(weights) - 1)
        if weights[place] == extent:
            about["weight_shape"] = [*weights[:place], stop - start, *weights[place + 1 :]]
    before = part_of(rewrite.op, attributes)
    if before is None:
        about[PART_OF] = PartOf(rewrite.op, rewrite.operand, rewrite.axis, start, stop, extent)
    else:
        about[PART_OF] = replace(before, start=before.start + start, stop=before.start + stop)
    return about


#: Rules by name.
RULES: dict[str, Rule] = {
    rule.name: rule for rule in (ZeroCopyConcat(), ZeroCopySplit(), PartialSums(), ParallelParts())
}
