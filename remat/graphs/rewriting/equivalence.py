"""Proof, tensor by tensor, that the pieces of a rewritten graph make up the ops of the original graph."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise

from remat.errors import GraphError
from remat.graphs.graph import ComputeGraph, Op
from remat.graphs.rewriting.annotations import PART_OF, Attributes, PartOf, part_of
from remat.graphs.rewriting.axes import Role
from remat.graphs.rewriting.draft import Draft
from remat.graphs.rewriting.kinds import KIND, Kind
from remat.graphs.rewriting.operands import KEYS
from remat.graphs.rewriting.pieces import Piece, PieceRole, pieces
from remat.graphs.rewriting.splitting import cuts

#: Axis, first element and end (exclusive) of a slice of a tensor of the original graph; None: all of it.
_Range = tuple[int, int, int] | None
#: A tensor of the original graph, and the slice of it.
_Meaning = tuple[str, _Range]


def checked_pieces(before: ComputeGraph, after: ComputeGraph) -> dict[str, Piece]:
    """Return the pieces of a rewritten graph, after a proof that they compute what the original graph computes.

    Each tensor of the rewritten graph gets a meaning: a tensor of the original graph, or a slice of one. Parts must
    read and write slices that correspond by the roles of axes, parallel for parts and reduced for sums. The ranges of a
    sum must make up the axis, with one bias. Attributes must be those of the original graph. Raise GraphError, naming
    the op or output that does not fit.
    """
    found = pieces(after)
    _Proof(before, after, found).run()
    return found


class _Proof:
    """Derivation of the meaning of each tensor, op by op in the order of the rewritten graph."""

    def __init__(self, before: ComputeGraph, after: ComputeGraph, found: dict[str, Piece]) -> None:
        self._before, self._after, self._found = before, after, found
        self._old, self._new = Draft(before), Draft(after)
        self._meaning: dict[str, _Meaning] = {tensor: (tensor, None) for tensor in before.inputs}
        self._sums: dict[str, list[PartOf]] = defaultdict(list)

    def run(self) -> None:
        """Check all ops and outputs."""
        if tuple(self._before.inputs) != tuple(self._after.inputs) or self._before.outputs != self._after.outputs:
            raise GraphError(f"graph {self._after.name!r} has other inputs or outputs than the model", "pieces")
        for name in self._after.order or ():
            try:
                sound = self._is_sound(self._new.ops[name], self._found[name])
            except (ValueError, LookupError, TypeError, AttributeError, AssertionError):
                sound = False
            if not sound:
                raise GraphError(f"op {name!r} is no piece of op {self._found[name].of!r} of the model", "pieces", name)
        for tensor in self._before.outputs:
            if self._meaning.get(tensor) != (tensor, None):
                raise GraphError(f"the pieces do not make up output {tensor!r} of the model", "pieces", tensor)

    def _is_sound(self, op: Op, piece: Piece) -> bool:
        match piece.role:
            case PieceRole.WHOLE:
                return self._is_whole(op)
            case PieceRole.JOIN:
                return self._is_join(op, piece)
        return self._is_part(op, piece)

    def _is_whole(self, op: Op) -> bool:
        old = self._old.ops[op.name]
        if (old.type, old.inputs, old.outputs) != (op.type, op.inputs, op.outputs):
            return False
        if self._old.attributes.get(op.name) != self._new.attributes.get(op.name):
            return False
        known = all(self._meaning.get(tensor) == (tensor, None) for tensor in op.inputs)
        self._meaning.update({tensor: (tensor, None) for tensor in op.outputs})
        return known

    def _is_join(self, op: Op, piece: Piece) -> bool:
        target = self._old.ops[piece.of].outputs[0]
        operands = self._new.operands(op.name) or ()
        if len(operands) != 1 or len(op.outputs) != 1 or operands[0].axis != piece.axis:
            return False
        ranges = []
        for part in operands[0].parts:
            base, part_range = self._meaning[part.tensor]
            if base != target or part_range is None or part_range[0] != piece.axis:
                return False
            if (part.start, part.stop) != (0, part_range[2] - part_range[1]):
                return False
            ranges.append(part_range)
        if any(first[2] != second[1] for first, second in pairwise(ranges)):
            return False
        self._meaning[op.outputs[0]] = self._normal(target, (ranges[0][0], ranges[0][1], ranges[-1][2]))
        return True

    def _is_part(self, op: Op, piece: Piece) -> bool:
        part = part_of(op.name, self._new.attributes[op.name])
        old = self._old.ops[piece.of]
        if part is None or len(old.outputs) != 1 or len(op.outputs) != 1:
            return False
        if _own(self._old.attributes[piece.of]) != _own(self._new.attributes[op.name]):
            return False
        roles = self._old.roles(piece.of, part.operand)
        if roles is None or roles[part.axis].role is not (Role.REDUCED if part.sum else Role.PARALLEL):
            return False
        output = roles[part.axis].output
        if not self._reads(op, part, None if part.sum else output):
            return False
        target = old.outputs[0]
        if part.sum:
            self._sums[piece.of].append(part)
            if op.outputs != (target,) or not part.finish:
                return False
            if self._is_complete(piece.of, part.extent):
                self._meaning[target] = (target, None)
            return True
        assert output is not None
        times = self._old.shapes[target][output] // part.extent
        self._meaning[op.outputs[0]] = self._normal(target, (output, part.start * times, part.stop * times))
        return True

    def _reads(self, op: Op, part: PartOf, output: int | None) -> bool:
        """Return True if a part reads the corresponding slices of the operands of its op."""
        together = cuts(self._old, part.of, part.operand, part.axis, output)
        before, after = self._old.operands(part.of), self._new.operands(op.name)
        if together is None or not before or not after or len(before) != len(after):
            return False
        shape = before[part.operand].shape(self._old.shapes)
        if shape is None or shape[part.axis] != part.extent:
            return False
        for cut, old, new in zip(together, before, after, strict=True):
            if old.axis is not None or new.axis is not None:
                return False
            wanted: _Range = None if cut.axis is None else (cut.axis, part.start, part.stop)
            if self._meaning.get(new.tensors[0]) != self._normal(old.tensors[0], wanted):
                return False
        return True

    def _normal(self, tensor: str, part: _Range) -> _Meaning:
        """Return the meaning, with a slice of a concatenation replaced by a slice of the concatenated tensor."""
        while part is not None:
            axis, start, stop = part
            if (start, stop) == (0, self._old.shapes[tensor][axis]):
                return tensor, None
            writer = self._old.writer(tensor)
            operands = self._old.operands(writer) if writer and self._old.kind(writer) is Kind.CONCAT else None
            if not operands or len(operands) != 1 or operands[0].axis != axis:
                break
            ends = operands[0].boundaries
            inside = [k for k, (low, high) in enumerate(pairwise(ends)) if low <= start and stop <= high]
            if not inside:
                break
            source = operands[0].parts[inside[0]]
            tensor = source.tensor
            part = (axis, source.start + start - ends[inside[0]], source.start + stop - ends[inside[0]])
        return tensor, part

    def _is_complete(self, op: str, extent: int) -> bool:
        parts = sorted(self._sums[op], key=lambda part: part.start)
        ends = [0, *(part.stop for part in parts)]
        fits = [part.start for part in parts] == ends[:-1] and ends[-1] == extent
        return fits and sum(part.bias for part in parts) == 1


def _own(attributes: Attributes) -> Attributes:
    """Return the attributes that a part takes from its op."""
    return {key: value for key, value in attributes.items() if key not in (*KEYS, PART_OF)} | {
        KIND: str(attributes.get(KIND))
    }
