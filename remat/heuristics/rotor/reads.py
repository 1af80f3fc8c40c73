"""Writes and reads of the tensors of a training step, and cuts of the backward part of a chain of blocks."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from remat.graphs.arrays import staircase
from remat.problem.training_step import TrainingStep
from remat.runtime.arrays import Bool, Int


@dataclass(frozen=True, eq=False)
class Reads:
    """Positions in the reference order at which each tensor is written and read; all of shape (tensors,).

    Attributes
    ----------
    step : TrainingStep
    first_write : int64 array
        -1 for graph inputs.
    last_read : int64 array
        The end for tensors that must be alive at the end; -1 for those without readers.
    size : int64 array
        Bytes; 0 for graph inputs and for forward values that are kept, which are always held.
    """

    step: TrainingStep
    first_write: Int
    last_read: Int
    size: Int

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
    """Return the cuts of the backward part, for each cut of the forward part and for its end; never increasing.

    The backward part of the blocks from a cut on ends where the fewest bytes are held in addition to tensors that cross
    the cut anyway. These bytes are gradients that are read later, values of these blocks that are read later, and
    values of earlier blocks that no forward op after the cut reads, but a backward op before that place. Ties go to the
    last place, so a backward op that reads tensors across the cut belongs to the block after it.

    Returns
    -------
    int64 array, shape (cuts + 1,)
        Positions; for the first cut, the end of the graph.
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
