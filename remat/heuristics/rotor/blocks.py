"""Blocks of a training step: their ops, the memory between them, and the options of each."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np

from remat.graphs.arrays import occurrences
from remat.heuristics.rotor.chain import Chain
from remat.heuristics.rotor.reads import Reads, backward_cuts
from remat.problem.op_sequence import allowed_computes
from remat.runtime.arrays import Bool, Int


@dataclass(frozen=True, eq=False)
class Blocks:
    """Training step cut into blocks; the last one has the loss, and no forward part.

    Attributes
    ----------
    reads : Reads
    cuts : int64 array
        Positions at which blocks begin in the forward part.
    inner : tuple of int64 arrays
        Finer cuts; options may save the values that cross them.

    Examples
    --------
    >>> from remat.graphs.families import unit_chain
    >>> from remat.problem.training_step import TrainingStep
    >>> from remat.problem import Problem
    >>> blocks = Blocks(Reads.of(TrainingStep.of(Problem(unit_chain(3)))), np.arange(3))
    >>> [len(part) for part in blocks.forward], [len(part) for part in blocks.backward]
    ([1, 1, 1, 0], [0, 1, 1, 2])
    """

    reads: Reads
    cuts: Int
    inner: tuple[Int, ...] = ()

    @property
    def num_blocks(self) -> int:
        """Number of blocks, the loss included."""
        return len(self.cuts) + 1

    @cached_property
    def ends(self) -> Int:
        """Position of the end of each forward part; shape (blocks,)."""
        num_forward = self.reads.step.num_forward
        return np.concatenate([self.cuts[1:], [num_forward, num_forward]])

    @cached_property
    def backward_ends(self) -> Int:
        """Position of the end of each backward part; shape (blocks,)."""
        return backward_cuts(self.reads, self.cuts)

    @cached_property
    def forward(self) -> list[Int]:
        """Ops of each forward part."""
        order = self.reads.step.problem.graph.arrays.order
        starts = [*self.cuts.tolist(), self.reads.step.num_forward]
        return [order[first:last] for first, last in zip(starts, self.ends.tolist(), strict=True)]

    @cached_property
    def backward(self) -> list[Int]:
        """Ops of each backward part, and those of the loss."""
        order = self.reads.step.problem.graph.arrays.order
        ends = [*self.backward_ends.tolist(), self.reads.step.num_forward]
        return [order[first:last] for last, first in pairwise(ends)]

    @cached_property
    def block_of(self) -> Int:
        """Block of each op; shape (ops,)."""
        found = np.empty(len(self.reads.step.problem.graph.ops), dtype=np.int64)
        for block in range(self.num_blocks):
            found[self.forward[block]] = block
            found[self.backward[block]] = block
        return found

    @cached_property
    def pinned(self) -> Bool:
        """Mask of ops computed once: those that must not be recomputed, or write into an accumulation buffer."""
        return allowed_computes(self.reads.step.problem, 2) == 1

    @cached_property
    def between(self) -> Int:
        """Bytes that blocks s .. k - 1 write and blocks k .. t read; shape (blocks, blocks, blocks).

        Outputs of ops that are computed once are held until their block is reversed, whichever blocks read them.
        """
        arrays, reads = self.reads.step.problem.graph.arrays, self.reads
        length = self.num_blocks
        once = np.zeros(len(arrays.size), dtype=np.bool_)
        once[arrays.op_outputs.indices[self.pinned[arrays.op_outputs.rows]]] = True
        origin = np.where(reads.is_forward, self.block_of[arrays.order[np.maximum(reads.first_write, 0)]], -1)
        readers, read = arrays.consumers.indices, arrays.consumers.rows
        wanted = (origin[read] >= 0) & (reads.size[read] > 0)
        there = self.block_of[readers[wanted]]
        tensor = read[wanted]
        held = np.zeros((length, length + 1, length), dtype=np.int64)  # by origin, first k, first t
        later = there > origin[tensor]
        every = [t * length + np.arange(origin[t] + 1, length) for t in np.unique(tensor[once[tensor]]).tolist()]
        keys = np.unique(np.concatenate([tensor[later] * length + there[later], *every]))
        last_tensor, last_block = -1, 0
        for key in keys.tolist():
            t, block = divmod(key, length)
            s = int(origin[t])
            first = s + 1 if t != last_tensor else last_block + 1
            held[s, first : block + 1, block] += reads.size[t]
            last_tensor, last_block = t, block
        held = held[:, :length].cumsum(axis=2)
        for k in range(length):  # sum over origins from s to k - 1
            held[:k, k] = held[:k, k][::-1].cumsum(axis=0)[::-1]
        return held

    @cached_property
    def above(self) -> Int:
        """Bytes alive when blocks k .. are reversed, except those of earlier blocks; shape (blocks + 1,)."""
        arrays, reads = self.reads.step.problem.graph.arrays, self.reads
        found = np.zeros(self.num_blocks + 1, dtype=np.int64)
        num_forward = self.reads.step.num_forward
        starts = [*self.cuts.tolist(), num_forward]
        written = reads.first_write
        size = np.where(written >= 0, arrays.size, 0)
        size[reads.is_forward] = reads.size[reads.is_forward]
        for k, (start, place) in enumerate(zip(starts, self.backward_ends.tolist(), strict=True)):
            live = (written >= start) & (written < place) & (reads.last_read >= place)
            found[k] = size[live].sum()
        return found

    def sequence(self, chain: Chain, plan: Iterable[tuple[str, int, int]]) -> Int:
        """Return the ops that a plan computes, in order, without computes beyond the limits.

        All ops of a block run in its first forward part, and later only the necessary ones.
        """
        parts: list[Int] = []
        steps = list(plan)
        done = 0  # blocks before this one have run
        for index, (what, first, second) in enumerate(steps):
            if what == "backward":
                parts.append(chain.options[first][second].backward)
                continue
            last = second if what == "sweep" else first
            new = last >= done
            done = max(done, last + 1)
            if what == "sweep":
                parts += [self.forward[block] if new else chain.swept[block] for block in range(first, second + 1)]
            elif new or steps[index + 1] != ("backward", first, second):
                parts.append(self.forward[first])
            else:
                parts.append(chain.options[first][second].alone)
        sequence = np.concatenate(parts) if parts else np.zeros(0, dtype=np.int64)
        most = allowed_computes(self.reads.step.problem, len(sequence))
        return sequence[occurrences(sequence) < most[sequence]]
