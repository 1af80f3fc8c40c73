"""Sets of live tensors as bits, for searches that expand many states at once."""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce
from operator import or_
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from remat.problem import Problem
from remat.runtime.arrays import Bool, Int

#: Sets of tensors, shape (words, sets).
Sets = NDArray[np.uint64]
#: Bits of a word.
WORD = 64
#: Largest number of tensors besides graph inputs.
MOST_TENSORS = 2 * WORD


class Moves(NamedTuple):
    """Live tensors after an op, and the row of the state that each comes from, shape (moves,)."""

    live: Sets
    source: Int


class LiveSets:
    """Ops of a problem as sets of tensors, in the reference order.

    Tensors are those that are no graph inputs, by number. Ops are numbered by position.

    Attributes
    ----------
    reads, writes : list of int
        Sets of tensors of each op, as bits of integers.
    readers : list of int
        Ops that read each tensor, as bits.
    kept : int
        Tensors to keep, as bits.
    size, cost, always : int64 arrays
        Bytes of tensors, and by op its cost, and its workspace with the memory that is always live.
    """

    def __init__(self, problem: Problem) -> None:
        arrays = problem.graph.arrays
        assert problem.budget_bytes is not None
        self.budget = problem.budget_bytes
        self.ops = arrays.order.tolist()
        tensors = np.flatnonzero(~arrays.is_input)
        number = {tensor: k for k, tensor in enumerate(tensors.tolist())}
        self.words = max(1, -(-len(tensors) // WORD))
        self.reads = [bits(number[t] for t in arrays.op_inputs[op].tolist() if t in number) for op in self.ops]
        self.writes = [bits(number[t] for t in arrays.op_outputs[op].tolist()) for op in self.ops]
        self.readers = [bits(op for op, read in enumerate(self.reads) if read >> t & 1) for t in range(len(tensors))]
        self.kept = bits(np.flatnonzero(problem.kept[tensors]).tolist())
        self.size = arrays.size[tensors].astype(np.int64)
        self.cost = arrays.cost[arrays.order].astype(np.int64)
        self.always = arrays.workspace[arrays.order].astype(np.int64) + arrays.input_bytes + problem.constant_bytes
        self._by_size = np.argsort(-self.size, kind="stable").tolist()

    @staticmethod
    def applies(problem: Problem) -> bool:
        """Return True if a problem has a budget, one writer of each tensor, no limits of computes, and no in-place op.

        It has at most 128 tensors besides graph inputs.
        """
        graph, arrays = problem.graph, problem.graph.arrays
        own = ~arrays.is_input
        return (
            problem.budget_bytes is not None
            and int(own.sum()) <= MOST_TENSORS
            and bool((arrays.producers.counts[own] == 1).all())
            and not graph.in_place
            and all(limit is None for limit in problem.compute_limits)
        )

    def mask(self, tensors: int) -> Sets:
        """Return a set as a column, shape (words, 1)."""
        return np.array([[tensors >> WORD * k & (1 << WORD) - 1] for k in range(self.words)], dtype=np.uint64)

    def before(self, op: int) -> int:
        """Return an op and the ops that it depends on, as bits."""
        found, missing = 1 << op, self.reads[op]
        for other in range(op - 1, -1, -1):
            if self.writes[other] & missing:
                found |= 1 << other
                missing |= self.reads[other]
        return found

    def bytes_of(self, live: Sets, tensors: int = -1) -> Int:
        """Return the bytes of the live tensors among `tensors`, by default all of them."""
        total = np.zeros(live.shape[1], dtype=np.int64)
        for tensor, size in enumerate(self.size.tolist()):
            if size and tensors >> tensor & 1:
                total += size * has(live, tensor)
        return total

    def size_of(self, tensors: int) -> int:
        """Return the bytes of a set of tensors."""
        return sum(size for tensor, size in enumerate(self.size.tolist()) if tensors >> tensor & 1)

    def ready(self, live: Sets, op: int) -> Bool:
        """Mark the states in which an op has its inputs."""
        return contains(live, self.mask(self.reads[op]))

    def after(self, op: int, live: Sets, used: Int, source: Int) -> Moves:
        """Return the live tensors right after an op that is ready, for each minimal set of evictions that makes room.

        `used`: bytes of the live tensors of each state.
        """
        written = self.mask(self.writes[op])
        excess = (
            used
            + self.size_of(self.writes[op])
            - self.bytes_of(live, self.writes[op])
            + int(self.always[op])
            - self.budget
        )
        stays = self.reads[op] | self.writes[op]
        found: list[Moves] = []
        # By falling size: a set is minimal if it suffices only with its last tensor.
        for tensor in (t for t in self._by_size if self.size[t] and not stays >> t & 1):
            fits = excess <= 0
            if fits.any():
                found.append(Moves(live[:, fits] | written, source[fits]))
                live, source, excess = live[:, ~fits], source[~fits], excess[~fits]
            if not len(source):
                break
            gone = np.flatnonzero(has(live, tensor))
            less = live[:, gone] & ~self.mask(1 << tensor)
            live = np.concatenate([live, less], axis=1)
            source = np.concatenate([source, source[gone]])
            excess = np.concatenate([excess, excess[gone] - int(self.size[tensor])])
        fits = excess <= 0
        found.append(Moves(live[:, fits] | written, source[fits]))
        return Moves(np.concatenate([each.live for each in found], axis=1), np.concatenate([m.source for m in found]))


def bits(numbers: Iterable[int]) -> int:
    """Return a set of numbers as bits."""
    return reduce(or_, (1 << number for number in numbers), 0)


def has(live: Sets, tensor: int) -> Bool:
    """Mark the sets that contain a tensor."""
    return (live[tensor // WORD] >> np.uint64(tensor % WORD)) & np.uint64(1) != 0


def contains(live: Sets, mask: Sets) -> Bool:
    """Mark the sets that contain every tensor of a mask."""
    return ((live & mask) == mask).all(axis=0)


def different(live: Sets, *more: Int) -> Int:
    """Return the rows of the first of equal columns, with the least last of `more`; all other values must be equal.

    The rows come sorted by words, then by `more`.
    """
    rows = np.lexsort((*more[::-1], *live))
    same = np.ones(max(0, len(rows) - 1), dtype=np.bool_)
    for values in (*live, *more[:-1]):
        same &= values[rows[1:]] == values[rows[:-1]]
    return rows[np.concatenate([[True], ~same])] if len(rows) else rows
