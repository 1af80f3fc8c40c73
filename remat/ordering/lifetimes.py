"""Ordering problem as lifetimes of tensors, which can be mirrored and restricted to some of its ops."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from remat.graphs.arrays import Csr, frozen
from remat.ordering.instance import OrderInstance
from remat.runtime.arrays import Bool, Int
from remat.runtime.bits import bits, numbers


def twin_pairs(instance: OrderInstance) -> tuple[Int, Int]:
    """Return pairs of ops of which the first may precede the second without loss.

    A chain is a sequence of ops each of which is the only successor of the one before and has no other predecessor. Two
    chains are twins if their ops have the same workspaces, read and write the same tensors outside, and write tensors
    of the same sizes. The same ops outside and the corresponding ones inside must read these. Exchanging twins turns an
    order into another one with the same memory at each step, so the twin with the lower number may start first.

    Returns
    -------
    earlier, later : int64 arrays, shape (pairs,)

    Examples
    --------
    >>> from remat import GraphBuilder, Problem
    >>> b = GraphBuilder("two equal branches and a larger one")
    >>> _ = b.op("a", size=2), b.op("b", inputs=["a"], size=9), b.op("c", inputs=["a"], size=9)
    >>> _ = b.op("d", inputs=["a"], size=8), b.op("e", inputs=["b", "c", "d"], size=1)
    >>> [pair.tolist() for pair in twin_pairs(OrderInstance.of(Problem(b.build())))]
    [[1], [2]]
    """
    before, after = instance.predecessors.lists(), instance.successors.lists()
    tables = _Tables(instance)
    first_of: dict[tuple[object, ...], int] = {}
    pairs: list[tuple[int, int]] = []
    for op in range(instance.num_ops):
        if len(before[op]) == 1 and len(after[before[op][0]]) == 1:
            continue  # inside a chain
        chain = [op]
        while len(after[chain[-1]]) == 1 and len(before[after[chain[-1]][0]]) == 1:
            chain.append(after[chain[-1]][0])
        signature = (tuple(before[op]), tuple(after[chain[-1]]), *tables.signature(chain))
        if signature in first_of:
            pairs.append((first_of[signature], op))
        first_of[signature] = op
    both = np.array(pairs, dtype=np.int64).reshape(-1, 2)
    return both[:, 0], both[:, 1]


class _Tables:
    """Instance as plain lists."""

    def __init__(self, instance: OrderInstance) -> None:
        self.reads, self.writes = instance.op_inputs.lists(), instance.op_outputs.lists()
        self.writers, self.readers = instance.producers.lists(), instance.consumers.lists()
        self.size, self.workspace = instance.size.tolist(), instance.workspace.tolist()
        self.fixed = (instance.live | instance.kept).tolist()

    def signature(self, chain: list[int]) -> tuple[object, ...]:
        """Return the effect of a chain, independent of the numbers of its ops and of tensors that only it writes."""
        place = {op: i for i, op in enumerate(chain)}
        own: dict[int, int] = {}
        found: list[object] = []
        for op in chain:
            outside = sorted(tensor for tensor in self.reads[op] if tensor not in own)
            inside = sorted(own[tensor] for tensor in self.reads[op] if tensor in own)
            written: list[object] = []
            for tensor in self.writes[op]:
                if self.fixed[tensor] or len(self.writers[tensor]) > 1:
                    written.append(("shared", tensor))
                    continue
                own[tensor] = len(own)
                readers = self.readers[tensor]
                written.append((
                    self.size[tensor],
                    tuple(place[reader] for reader in readers if reader in place),
                    tuple(reader for reader in readers if reader not in place),
                ))  # fmt: skip
            found.append((self.workspace[op], tuple(outside), tuple(inside), tuple(written)))
        return tuple(found)


@dataclass(frozen=True, eq=False)
class Lifetimes:
    """Ordering problem as lifetimes: a tensor lives from the first of its first ops to the last of its last ops.

    This form is closed under reversal: with both kinds of ops exchanged and every dependency reversed, reversed orders
    have the same memory at each step.
    """

    size: Int
    """Bytes of each tensor. Shape (tensors,)."""
    workspace: Int
    """Bytes of each op's workspace. Shape (ops,)."""
    begins: Csr
    """Tensors that each op may begin, all of which are in `ends` too."""
    ends: Csr
    """Tensors that each op may end."""
    predecessors: Csr
    """Ops that must precede each op."""
    successors: Csr
    """Ops that must follow each op."""
    live: Bool
    """True for tensors that are live from the start. Shape (tensors,)."""
    kept: Bool
    """True for tensors that stay live to the end. Shape (tensors,)."""
    held: int
    """Bytes held at all steps."""

    @classmethod
    def of(cls, instance: OrderInstance, *, twins: bool = True) -> Lifetimes:
        """Return the lifetimes of an instance; `twins` fixes the order of twins (:func:`twin_pairs`)."""
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

        `ops`: ascending; the numbers of the ops must form a topological order.
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
            begins += [(op, tensor) for tensor in numbers(early)]
            ends += [(op, tensor) for tensor in numbers(late)]
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
        start = bits(np.flatnonzero(always).tolist())
        own = table.lists()
        found: dict[int, int] = {}
        for op in order:
            reached = start | bits(own[op])
            for other in links[op]:
                reached |= found[other]
            found[op] = reached
        return found
