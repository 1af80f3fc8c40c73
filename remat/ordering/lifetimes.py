"""Ordering problem as lifetimes of tensors, which can be mirrored and restricted to some of its ops."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from remat.graphs.arrays import Csr, frozen
from remat.ordering.instance import OrderInstance
from remat.ordering.twins import twin_pairs
from remat.runtime.arrays import Bool, Int


@dataclass(frozen=True, eq=False)
class Lifetimes:
    """Ordering problem as lifetimes: a tensor lives from the first of its first ops to the last of its last ops.

    This form is closed under reversal: with both kinds of ops exchanged and every dependency reversed, reversed orders
    have the same memory at each step.

    Attributes
    ----------
    size, workspace : int64 arrays, shapes (tensors,) and (ops,)
        Bytes.
    begins, ends : Csr
        For each op, the tensors that it may begin and those that it may end; the former are among the latter.
    predecessors, successors : Csr
        Ops that precede and follow each op.
    live, kept : bool arrays, shape (tensors,)
        True for tensors that are live from the start, and to the end.
    held : int
        Bytes held at all steps.
    """

    size: Int
    workspace: Int
    begins: Csr
    ends: Csr
    predecessors: Csr
    successors: Csr
    live: Bool
    kept: Bool
    held: int

    @classmethod
    def of(cls, instance: OrderInstance, *, twins: bool = True) -> Lifetimes:
        """Return the lifetimes of an instance; `twins` fixes the order of twins (:mod:`remat.ordering.twins`)."""
        reads, writes = instance.op_inputs, instance.op_outputs
        rows = np.concatenate([reads.rows, writes.rows])
        ends = Csr.from_pairs(rows, np.concatenate([reads.indices, writes.indices]), instance.num_ops)
        edges = instance.predecessors
        earlier, later = edges.indices, edges.rows
        if twins:
            earlier, later = np.concatenate([[earlier, later], twin_pairs(instance)], axis=1)
        return cls(
            instance.size, instance.workspace, writes, ends, Csr.from_pairs(later, earlier, instance.num_ops),
            Csr.from_pairs(earlier, later, instance.num_ops), instance.live, instance.kept, instance.held,
        )  # fmt: skip

    @property
    def mirrored(self) -> Lifetimes:
        """Mirrored problem, from the end to the start."""
        return replace(
            self, begins=self.ends, ends=self.begins, predecessors=self.successors, successors=self.predecessors,
            live=self.kept, kept=self.live,
        )  # fmt: skip

    @cached_property
    def op_bytes(self) -> Int:
        """Least bytes at the step of each op: held memory, tensors it may end, its workspace."""
        return frozen(self.held + self.workspace + self.ends.sums(self.size))

    def window(self, ops: Int) -> Lifetimes:
        """Return a relaxation to some ops: no order of all ops has a lower peak than the best order of these.

        Dependencies through other ops count only if those are among `ops`. A tensor lives at the step of a chosen op
        under two conditions. Some op that may begin it is the chosen op, or precedes it in every order. Some op that
        may end it is an op that is not done yet, or follows one in every order.

        Parameters
        ----------
        ops : int64 array
            Ascending; the numbers of the ops must form a topological order.
        """
        number = np.full(len(self.workspace), -1, dtype=np.int64)
        number[ops] = np.arange(len(ops))
        chosen = ops.tolist()
        first, last = chosen[0], chosen[-1]
        before, after = self.predecessors.lists(), self.successors.lists()
        begun = self._reached(before, range(last + 1), self.begins, self.live)
        ended = self._reached(after, range(len(before) - 1, first - 1, -1), self.ends, self.kept)
        begins: list[tuple[int, int]] = []
        ends: list[tuple[int, int]] = []
        for op in chosen:
            both = begun[op] & ended[op]
            early, late = both, ended[op]
            for other in before[op]:
                if number[other] >= 0:
                    early &= ~(begun[other] & ended[other])
            for other in after[op]:
                if number[other] >= 0:
                    late &= ~ended[other]
            begins += [(op, tensor) for tensor in _bits(early)]
            ends += [(op, tensor) for tensor in _bits(late)]
        used = np.zeros(len(self.size), dtype=np.bool_)
        used[[tensor for _, tensor in begins]] = True
        column = np.where(used, np.cumsum(used) - 1, -1)

        def rows(pairs: list[tuple[int, int]]) -> Csr:
            both = np.array(pairs, dtype=np.int64).reshape(-1, 2)
            both = both[used[both[:, 1]]]
            return Csr.from_pairs(number[both[:, 0]], column[both[:, 1]], len(chosen))

        edges = self.predecessors
        inside = (number[edges.rows] >= 0) & (number[edges.indices] >= 0)
        later, earlier = number[edges.rows[inside]], number[edges.indices[inside]]
        return Lifetimes(
            self.size[used], self.workspace[ops], rows(begins), rows(ends),
            Csr.from_pairs(later, earlier, len(chosen)), Csr.from_pairs(earlier, later, len(chosen)),
            self.live[used], self.kept[used], self.held,
        )  # fmt: skip

    def _reached(self, links: list[list[int]], order: range, table: Csr, always: Bool) -> dict[int, int]:
        """Return bits of the tensors in `table` of each op and the ops it is linked to, and those of `always`."""
        start = sum(1 << tensor for tensor in np.flatnonzero(always).tolist())
        own = table.lists()
        found: dict[int, int] = {}
        for op in order:
            bits = start
            for tensor in own[op]:
                bits |= 1 << tensor
            for other in links[op]:
                bits |= found[other]
            found[op] = bits
        return found


def _bits(value: int) -> list[int]:
    found = []
    while value:
        low = value & -value
        found.append(low.bit_length() - 1)
        value ^= low
    return found
