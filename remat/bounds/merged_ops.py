"""Ops that may as well run in one go, for searches over live tensors that ignore costs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

Tensors = frozenset[int]


class Part(NamedTuple):
    """Part of a step: its bytes, and the tensors among them, or that are not live yet."""

    needs: int
    own: Tensors


@dataclass(frozen=True)
class MergedOp:
    """Ops that run one right after the other.

    `ops`: in the order in which they run. `reads`, `writes`: tensors that are live before and after them.
    """

    ops: list[int]
    reads: Tensors
    writes: Tensors
    parts: list[Part]

    @property
    def needs(self) -> int:
        """Bytes of the largest part."""
        return max(part.needs for part in self.parts)


class Merging:
    """Merge ops that follow each other, where this leaves the least memory of each set of other tensors as it is.

    Let op `u` be right before `v` in the reference order, and write one tensor, `t`, which only `v` reads, with other
    inputs `R`. Let the outputs of `v` have at most the bytes of `t`. Then `t` need not stay after `v`, as these outputs
    may stay in its place. The two merge in two cases.

    1. The inputs of `u` have at most the bytes of `t`, and `u` next to `R` needs at most as much as `v`. Then these
       inputs may stay in the place of `t` until `v` runs.
    2. `R` is empty, and `v` next to the input of `u` needs at most as much as `u`. Then `v` may run right after `u`. If
       nothing else reads that input, and it has at least the bytes of the outputs of `v`, these may stay in its place,
       so it is not live while `v` runs.

    Parameters
    ----------
    ops : dict
        Each op as a :class:`MergedOp` of its own, in the reference order.
    size_of : callable
        Bytes of tensors.
    kept, shared : set of int
        Tensors to keep, and those with several writers: ops that write or read the latter do not merge.
    """

    def __init__(
        self, ops: Mapping[int, MergedOp], size_of: Callable[[Tensors], int], kept: Tensors, shared: Tensors
    ) -> None:
        self._ops, self._bytes, self._shared = dict(ops), size_of, shared
        self._readers: dict[int, set[int]] = {tensor: {-1} for tensor in kept}
        for op, each in ops.items():
            for tensor in each.reads:
                self._readers.setdefault(tensor, set()).add(op)

    def run(self) -> dict[int, MergedOp]:
        """Return what is left, in the reference order; the last op of each group stands for it."""
        order: list[int] = []
        for op in list(self._ops):
            while order and self._merged(order[-1], op):
                order.pop()
            order.append(op)
        return self._ops

    def _merged(self, first: int, second: int) -> bool:
        """Merge an op with the next one; return False if they must stay apart."""
        u, v = self._ops[first], self._ops[second]
        others, touched = v.reads - u.writes, u.reads | u.writes | v.reads | v.writes
        if len(u.writes) != 1 or not self._shared.isdisjoint(touched):
            return False
        if any(self._readers.get(tensor) != {second} for tensor in u.writes):
            return False
        before = [Part(part.needs + self._bytes(others - part.own), part.own | others | v.writes) for part in u.parts]
        merged = MergedOp(u.ops + v.ops, u.reads | others, v.writes, _largest(before + v.parts))
        if not self._may_merge(u, v, merged.needs, alone=not others):
            return False
        self._ops[second] = merged
        del self._ops[first]
        for read in u.reads:
            self._readers[read] = self._readers[read] - {first} | {second}
        return True

    def _may_merge(self, u: MergedOp, v: MergedOp, needs: int, *, alone: bool) -> bool:
        """Return True if two ops, which need `needs` bytes together, may merge; `alone`: the second reads no more."""
        between, inputs, outputs = self._bytes(u.writes), self._bytes(u.reads), self._bytes(v.writes)
        if outputs > between:
            return False
        if inputs <= between and needs == v.needs:
            return True
        replaced = len(u.reads) == 1 and all(len(self._readers[read]) == 1 for read in u.reads) and outputs <= inputs
        return alone and v.needs + (0 if replaced else inputs) <= u.needs


def _largest(parts: list[Part]) -> list[Part]:
    """Return the parts without those that need no more than another one, whatever else is live."""
    found: list[Part] = []
    for part in sorted(parts, key=lambda each: (-each.needs, len(each.own))):
        if not any(larger.own <= part.own for larger in found):
            found.append(part)
    return found
