"""How an op is cut: which slice of each operand a part reads, and how costs are shared."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from remat.graphs.rewriting.draft import Draft
from remat.graphs.rewriting.kinds import Kind
from remat.graphs.rewriting.operands import Operand


@dataclass(frozen=True, slots=True)
class Cut:
    """An operand and the axis along which it is cut; None: every part reads all of it."""

    operand: Operand
    axis: int | None

    @property
    def boundaries(self) -> tuple[int, ...]:
        """Where it should be cut, since another part begins there."""
        return self.operand.boundaries if self.operand.axis is not None and self.operand.axis == self.axis else ()

    def of(self, start: int, stop: int) -> Operand:
        """What the part from `start` to before `stop` reads."""
        return self.operand if self.axis is None else self.operand.cut(self.axis, start, stop)


def expanded(draft: Draft, operand: Operand) -> tuple[Operand, tuple[str, ...]]:
    """The operand with the inputs of concatenations in their place, and the tensors that these wrote."""
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
    """How all operands of an op are cut when operand `number` is cut along `axis`, where that can be done.

    `output` is the axis of the output where the axis is parallel, None where it is reduced.
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
    """For each operand the axis along which it is cut with the others; None as a whole if that is not known."""
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
        own = output + len(shape) - len(shapes[number] or ())  # shapes are aligned at their ends
        if own < 0 or shape[own] == 1 != extent:
            found.append(None)
        elif shape[own] == extent:
            found.append(own)
        else:
            return None
    return found


def merged(ends: Sequence[int], most: int | None) -> tuple[tuple[int, int], ...]:
    """Parts between these boundaries, neighbours merged until there are at most so many, as even as may be.

    Examples
    --------
    >>> merged([0, 1, 2, 3, 4, 8], 2)
    ((0, 4), (4, 8))
    """
    if most is not None and len(ends) - 1 > most:
        inner, kept = list(ends[1:-1]), [ends[0]]
        for number in range(1, most):
            aim = ends[0] + (ends[-1] - ends[0]) * number / most
            left = inner[: len(inner) - (most - 1 - number)]  # the later cuts need one each
            best = min(left, key=lambda end: abs(end - aim))
            kept.append(best)
            inner = inner[inner.index(best) + 1 :]
        ends = [*kept, ends[-1]]
    return tuple(pairwise(ends))


def share(total: int, weights: Sequence[int]) -> list[int]:
    """A whole number in parts that go by weights and add up to it, larger remainders first.

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
