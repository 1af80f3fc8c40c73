"""When tensors of a training step are written and read, and where the backward part of a chain of blocks is cut."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from remat.graphs.arrays import staircase
from remat.heuristics.checkpointing.step import TrainingStep
from remat.runtime.arrays import Bool, Int


@dataclass(frozen=True, eq=False)
class Reads:
    """When each tensor is written and read, in positions of the reference order; all of shape (tensors,).

    Attributes
    ----------
    step : TrainingStep
    first_write : int64 array
        -1 for graph inputs.
    last_read : int64 array
        The end for what must be alive at the end; -1 for what is not read.
    size : int64 array
        Bytes; 0 for graph inputs and for forward values that are kept, which are there all the time.
    """

    step: TrainingStep
    first_write: Int
    last_read: Int
    size: Int

    @classmethod
    def of(cls, step: TrainingStep) -> Reads:
        """From the graph of a training step."""
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
        """Bytes that are there all the time: graph inputs, constant memory, and forward values that are kept."""
        problem = self.step.problem
        sizes = problem.graph.arrays.size
        return problem.constant_bytes + int(sizes[self.size < sizes].sum())

    @cached_property
    def is_forward(self) -> Bool:
        """Which tensors are written by forward ops; shape (tensors,)."""
        return (self.first_write >= 0) & (self.first_write < self.step.num_forward)


def backward_cuts(reads: Reads, cuts: Int) -> Int:
    """Where the backward part is cut, for each cut of the forward part and for its end; never increasing.

    The backward part of the blocks from a cut on ends where the fewest bytes are held besides what passes the cut
    anyway: gradients that are read later, values of these blocks that are read later, and values of blocks before that
    only backward ops read, and earlier. Of equally good places it is the last, so a backward op that reads what passes
    the cut belongs to the block after it.

    Returns
    -------
    int64 array, shape (cuts + 1,)
        Positions; that of the first cut is the end of the graph.
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

    # cost[c, q]: differences over both axes, summed in the end
    change = np.zeros((len(cuts) + 1, places + 1), dtype=np.int64)
    own = np.flatnonzero(reads.is_forward & (size > 0) & (last >= start))
    index = np.searchsorted(cuts, first[own], side="right")  # cuts 0 .. index - 1 lie at or before its op
    until = np.minimum(last[own], end) - start
    np.add.at(change, (0, 0), size[own].sum())
    np.add.at(change, (index, np.zeros(len(own), dtype=np.int64)), -size[own])
    np.add.at(change, (np.zeros(len(own), dtype=np.int64), until + 1), -size[own])
    np.add.at(change, (index, until + 1), size[own])
    read = own[step.first_backward_reads[own] < end]
    after = np.searchsorted(cuts, np.maximum(first[read], step.last_forward_reads[read]), side="right")
    np.add.at(change, (after, step.first_backward_reads[read] - start + 1), size[read])
    cost = change.cumsum(axis=0).cumsum(axis=1)[: len(cuts), :places] + gradients

    # from the last cut back: the least sum of costs with places that do not decrease
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
