"""Blocks of a training step: their ops and tensors, the memory between them, and the options of each."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np

from remat.graphs.arrays import occurrences, staircase
from remat.heuristics.rotor.dynamic_programme import Chain
from remat.problem.op_sequence import allowed_computes
from remat.problem.training_step import TrainingStep
from remat.runtime.arrays import Bool, Int


@dataclass(frozen=True, eq=False)
class Reads:
    """Positions in the reference order at which each tensor is written and read; all of shape (tensors,)."""

    step: TrainingStep
    first_write: Int
    """-1 for graph inputs."""
    last_read: Int
    """The end for tensors that must be alive at the end; -1 for those without readers."""
    size: Int
    """Bytes; 0 for graph inputs and for forward values that are kept, which are always held."""

    @classmethod
    def of(cls, step: TrainingStep) -> Reads:
        """Collect the reads of a training step."""
        arrays, kept = step.problem.graph.arrays, step.problem.kept
        num_ops = len(arrays.order)
        first = arrays.producers.lowest(arrays.position, num_ops)
        first[arrays.producers.counts == 0] = -1
        last_read = arrays.consumers.highest(arrays.position, -1)
        last_read[kept] = num_ops
        size = arrays.size.copy()
        size[arrays.is_input | (kept & (first < step.num_forward))] = 0
        return cls(step, first, last_read, size)

    @property
    def held(self) -> int:
        """Bytes that are always held: graph inputs, constant memory, and forward values that are kept."""
        problem = self.step.problem
        sizes = problem.graph.arrays.size
        return problem.constant_bytes + int(sizes[self.size < sizes].sum())

    @cached_property
    def is_forward(self) -> Bool:
        """Mask of tensors written by forward ops; shape (tensors,)."""
        return (self.first_write >= 0) & (self.first_write < self.step.num_forward)


def backward_cuts(reads: Reads, cuts: Int) -> Int:
    """Return the position that ends the backward part of each cut of the forward part and of its end; never increasing.

    The backward part of the blocks from a cut on ends where the fewest bytes are held in addition to tensors that cross
    the cut anyway. These bytes are gradients that are read later, and values of these blocks that are read later.
    Values of earlier blocks count if no forward op after the cut reads them, but a backward op before that place. Ties
    go to the last place, so a backward op that reads tensors across the cut belongs to the block after it.

    Positions, shape (cuts + 1,); for the first cut, the end of the graph.
    """
    step = reads.step
    cuts = np.append(cuts, step.num_forward)
    end, start = len(step.problem.graph.ops), step.first_backward
    places = end - start + 1  # q - start
    first, last, size = reads.first_write, reads.last_read, reads.size
    late = (first >= step.num_forward) & (last > first)
    lo = np.maximum(first[late] + 1 - start, 0)
    hi = np.minimum(last[late], end) - start
    there = hi >= lo
    gradients = staircase(lo[there], hi[there], size[late][there], places)

    # cost[c, q]: differences along both axes, accumulated below
    change = np.zeros((len(cuts) + 1, places + 1), dtype=np.int64)
    own = np.flatnonzero(reads.is_forward & (size > 0) & (last >= start))
    index = np.searchsorted(cuts, first[own], side="right")  # cuts 0 .. index - 1 are at or before its op
    until = np.minimum(last[own], end) - start
    np.add.at(change, (0, 0), size[own].sum())
    np.add.at(change, (index, np.zeros(len(own), dtype=np.int64)), -size[own])
    np.add.at(change, (np.zeros(len(own), dtype=np.int64), until + 1), -size[own])
    np.add.at(change, (index, until + 1), size[own])
    read = own[step.first_backward_reads[own] < end]
    after = np.searchsorted(cuts, np.maximum(first[read], step.last_forward_reads[read]), side="right")
    np.add.at(change, (after, step.first_backward_reads[read] - start + 1), size[read])
    cost = change.cumsum(axis=0).cumsum(axis=1)[: len(cuts), :places] + gradients

    # backward from the last cut: the least sum of costs with places that do not decrease
    total = np.zeros(places, dtype=np.int64)
    choices = np.empty((len(cuts), places), dtype=np.int32)
    for c in range(len(cuts) - 1, 0, -1):
        total = total + cost[c]
        best = np.minimum.accumulate(total)
        choices[c] = np.maximum.accumulate(np.where(total == best, np.arange(places), 0))
        total = best
    found = np.full(len(cuts), end, dtype=np.int64)
    place = places - 1
    for c in range(1, len(cuts)):
        place = int(choices[c][place])
        found[c] = place + start
    return found


@dataclass(frozen=True, eq=False)
class Blocks:
    """Training step cut into blocks; the last one has the loss, and no forward part.

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
    """Positions at which blocks begin in the forward part."""
    inner: tuple[Int, ...] = ()
    """Finer cuts; options may save the values that cross them."""

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
