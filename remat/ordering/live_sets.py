"""Sets of live tensors as bits, for searches that expand many states at once."""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce
from operator import or_

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

    def forget(self) -> None:
        """Forget tiny tensors: each at most 1/500 of the budget, together at most 1/100. Ops run without them.

        Every schedule of the problem is one without them too.
        """
        small = np.argsort(self.size, kind="stable")
        sizes = self.size[small]
        gone = ~bits(small[(sizes <= self.budget / 500) & (np.cumsum(sizes) <= self.budget / 100)].tolist())
        self.reads = [read & gone for read in self.reads]
        self.writes = [written & gone for written in self.writes]
        self.kept &= gone

    def mask(self, tensors: int) -> Sets:
        """Return a set as a column, shape (words, 1)."""
        return column(tensors, self.words)

    def bytes_of(self, live: Sets, tensors: int = -1) -> Int:
        """Return the bytes of the live tensors among `tensors`, by default all of them."""
        total = np.zeros(live.shape[1], dtype=np.int64)
        for tensor, size in enumerate(self.size.tolist()):
            if size and tensors >> tensor & 1:
                total += size * has(live, tensor)
        return total

    def marks(self, live: Sets) -> Bool:
        """Return sets as marks, shape (tensors, sets)."""
        octets = np.ascontiguousarray(live, dtype="<u8").view(np.uint8).reshape(*live.shape, WORD // 8)
        bit = np.unpackbits(octets, axis=2, bitorder="little")
        return bit.transpose(0, 2, 1).reshape(self.words * WORD, -1 if live.size else 0)[: len(self.size)] != 0

    def size_of(self, tensors: int) -> int:
        """Return the bytes of a set of tensors."""
        return sum(size for tensor, size in enumerate(self.size.tolist()) if tensors >> tensor & 1)


def bits(numbers: Iterable[int]) -> int:
    """Return a set of numbers as bits."""
    return reduce(or_, (1 << number for number in numbers), 0)


def numbers(mask: int) -> list[int]:
    """Return the numbers of the bits of a set."""
    return [k for k in range(mask.bit_length()) if mask >> k & 1]


def column(mask: int, words: int) -> Sets:
    """Return a set as a column, shape (words, 1)."""
    return np.array([[mask >> WORD * k & (1 << WORD) - 1] for k in range(words)], dtype=np.uint64)


def has(live: Sets, tensor: int) -> Bool:
    """Mark the sets that contain a tensor."""
    return (live[tensor // WORD] >> np.uint64(tensor % WORD)) & np.uint64(1) != 0


def meets(one: Sets, other: Sets) -> Bool:
    """Mark the sets that have something in common with another set."""
    return ((one & other) != 0).any(axis=0)


def different(live: Sets, *more: Int) -> Int:
    """Return the rows of the first of equal columns, with the least last of `more`; all other values must be equal.

    The rows come sorted by words, then by `more`.
    """
    rows = np.lexsort((*more[::-1], *live))
    same = np.ones(max(0, len(rows) - 1), dtype=np.bool_)
    for values in (*live, *more[:-1]):
        same &= values[rows[1:]] == values[rows[:-1]]
    return rows[np.concatenate([[True], ~same])] if len(rows) else rows
