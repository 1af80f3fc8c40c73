"""Splitting of ops: the slice of each operand that a part reads, and the division of costs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from remat.graphs.rewriting.draft import Draft
from remat.graphs.rewriting.kinds import Kind
from remat.graphs.rewriting.operands import Operand


@dataclass(frozen=True, slots=True)
class Cut:
    """Operand and the axis along which it is cut (None: every part reads the whole operand)."""

    operand: Operand
    axis: int | None

    @property
    def boundaries(self) -> tuple[int, ...]:
        """Boundaries of the operand's own parts, at which cuts are preferred."""
        return self.operand.boundaries if self.operand.axis is not None and self.operand.axis == self.axis else ()

    def of(self, start: int, stop: int) -> Operand:
        """Return the operand of the part from `start` to `stop` (exclusive)."""
        return self.operand if self.axis is None else self.operand.cut(self.axis, start, stop)


def expanded(draft: Draft, operand: Operand) -> tuple[Operand, tuple[str, ...]]:
    """Return the operand with concatenations replaced by their inputs, and the outputs of these concatenations."""
    passed: list[str] = []
    changed = True
    while changed:
        changed = False
        for tensor in operand.tensors:
            writer = draft.writer(tensor)
            if writer is None or draft.kind(writer) is not Kind.CONCAT:
                continue
            source = draft.operands(writer)
            new = operand.with_parts_for(tensor, source[0]) if source and len(source) == 1 else None
            if new is not None:
                operand, changed = new.simple(draft.shapes), True
                passed.append(tensor)
    return operand, tuple(passed)


def cuts(draft: Draft, op: str, number: int, axis: int, output: int | None) -> tuple[Cut, ...] | None:
    """Return the cuts of all operands of an op for a cut of operand `number` along `axis`; None if impossible.

    `output` is the corresponding axis of the output if the axis is parallel, None if it is reduced.
    """
    operands = draft.operands(op)
    if operands is None:
        return None
    axes = _axes(draft, op, number, axis, output)
    if axes is None:
        return None
    found: list[Cut] = []
    for each, cut in zip(operands, axes, strict=True):
        looked, _ = expanded(draft, each)
        if cut is not None and looked.axis not in {None, cut}:
            return None
        found.append(Cut(looked if looked.axis == cut and cut is not None else each, cut))
    return tuple(found)


def _axes(draft: Draft, op: str, number: int, axis: int, output: int | None) -> list[int | None] | None:
    """Return the axis along which each operand is cut with the others; None if unknown."""
    operands = draft.operands(op) or ()
    if len(operands) == 1:
        return [axis]
    shapes = [operand.shape(draft.shapes) for operand in operands]
    extent = (shapes[number] or ())[axis]
    kind = draft.kind(op)
    if kind is Kind.MATMUL:
        rank = len(shapes[number] or ())
        if output is None:
            return [rank - 1, rank - 2]
        if axis >= rank - 2:
            return [axis if each == number else None for each in range(2)]
    elif kind is not Kind.ELEMENTWISE or output is None:
        return None
    found: list[int | None] = []
    for shape in shapes:
        if shape is None:
            return None
        own = output + len(shape) - len(shapes[number] or ())  # shapes are aligned at the last axis
        if own < 0 or shape[own] == 1 != extent:
            found.append(None)
        elif shape[own] == extent:
            found.append(own)
        else:
            return None
    return found


def merged(ends: Sequence[int], most: int | None) -> tuple[tuple[int, int], ...]:
    """Return the parts between these boundaries, merged with neighbours to at most `most`, as evenly as possible.

    Examples
    --------
    >>> merged([0, 1, 2, 3, 4, 8], 2)
    ((0, 4), (4, 8))
    """
    if most is not None and len(ends) - 1 > most:
        inner, kept = list(ends[1:-1]), [ends[0]]
        for number in range(1, most):
            aim = ends[0] + (ends[-1] - ends[0]) * number / most
            left = inner[: len(inner) - (most - 1 - number)]  # each later cut needs a boundary
            best = min(left, key=lambda end: abs(end - aim))
            kept.append(best)
            inner = inner[inner.index(best) + 1 :]
        ends = [*kept, ends[-1]]
    return tuple(pairwise(ends))


def share(total: int, weights: Sequence[int]) -> list[int]:
    """Divide an integer in proportion to weights; the parts add up to it, and larger remainders are rounded up first.

    Examples
    --------
    >>> share(10, [1, 1, 1])
    [4, 3, 3]
    """
    whole = sum(weights)
    found = [total * weight // whole for weight in weights]
    first = sorted(range(len(weights)), key=lambda number: -(total * weights[number] % whole))
    for number in first[: total - sum(found)]:
        found[number] += 1
    return found
