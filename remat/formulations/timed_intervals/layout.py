"""Options of timed intervals; their copies, transfers and instances, with durations in ticks."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated

import numpy as np

from remat.formulations.retention_intervals.layout import IntervalsLayout
from remat.formulations.retention_intervals.tables import NodeTables
from remat.graphs.arrays import Csr
from remat.modeling.rows import expand
from remat.problem import Problem
from remat.problem.op_sequence import allowed_computes
from remat.problem.transfer_times import TransferTimes
from remat.runtime.arrays import Bool, Int
from remat.runtime.checked_options import Options, Positive, Range
from remat.schedule import OrderRule


@dataclass(frozen=True)
class TimedIntervalsOptions(Options):
    """Options of :class:`~remat.formulations.timed_intervals.TimedIntervals`."""

    copies: Positive = 2
    """C_v of the ops for which the problem sets no limit of computes."""
    fetches: Annotated[int, Range(0)] = 2
    """Most fetches of each tensor; 0: nothing is moved."""
    writes: Positive = 1
    """Most writes of each tensor. More than one can only help where the capacity of the host is limited."""


@dataclass(frozen=True)
class Transfers:
    """Possible transfers in one direction, sorted by tensor.

    Attributes
    ----------
    tensor, rank : int64 arrays, shape (transfers,)
        The tensor of each transfer, and its index among those of the tensor.
    time : int64 array, shape (transfers,)
        In ticks.
    """

    tensor: Int
    rank: Int
    time: Int

    def __len__(self) -> int:
        return len(self.tensor)

    @classmethod
    def of(cls, counts: Int, time: Int) -> Transfers:
        """Return `counts` transfers of each tensor, each of which takes `time`."""
        tensor, rank = expand(counts)
        return cls(tensor, rank, time[tensor])


class TimedLayout:
    """Copies, transfers and instances of a problem, with durations in ticks.

    A cost unit has :attr:`ticks` ticks. Work that takes no time takes one tick, of which all such work together has
    fewer than a unit. So the end of each work in ticks, divided by ticks and rounded down, is its end in cost units;
    and no two steps of a program that depend on each other happen at the same tick.

    An *instance* is a tensor that a copy makes or a fetch brings back: first those of copies, as in
    :class:`~remat.formulations.retention_intervals.layout.IntervalsLayout`, then one for each fetch.

    Attributes
    ----------
    copies : IntervalsLayout
        Copies of ops, the instances that they make, and their reads.
    writes, fetches : Transfers
    is_limited : bool
        True if the capacity of the host may not suffice for all tensors together.
    ticks : int
    duration : int64 array, shape (copies,)
        In ticks.
    horizon : int
        Ticks by which all work can end.
    instance_tensor : int64 array, shape (instances,)
    read_pair, read_instance : int64 arrays of one shape
        Pairs of a read and an instance that can serve it, by read.
    origin_write, origin_instance : int64 arrays of one shape
        Pairs of a write and an instance that it can copy, by write.
    source_fetch, source_write : int64 arrays of one shape
        Pairs of a fetch and a write whose copy it can read, by fetch.
    kept : int64 array
        Instances of tensors that must be alive at the end.
    """

    def __init__(self, problem: Problem, options: TimedIntervalsOptions) -> None:
        assert problem.machine is not None
        self.problem, self.options, self.machine = problem, options, problem.machine
        tables = NodeTables.of_ops(problem)
        tables = replace(tables, limit=allowed_computes(problem, options.copies))
        at = self.copies = IntervalsLayout(tables, OrderRule.FREE, options.copies)
        write, read, _, movable = TransferTimes.of(problem)
        uses = np.bincount(at.read.tensor, minlength=len(tables.size)) + tables.kept
        size, host = problem.graph.arrays.size, self.machine.host
        self.needed_fetches = np.where(movable, uses, 0)
        fetches = np.minimum(self.needed_fetches, options.fetches)
        self.is_limited = host is not None and host < int(size[fetches > 0].sum())
        writes = np.minimum(fetches, options.writes if self.is_limited else 1)
        cost = problem.graph.arrays.cost
        idle = int((cost[at.copy_node] == 0).sum() + fetches[read == 0].sum() + writes[write == 0].sum())
        self.ticks = idle + 1
        self.duration = self.in_ticks(cost)[at.copy_node]
        self.writes = Transfers.of(writes, self.in_ticks(write))
        self.fetches = Transfers.of(fetches, self.in_ticks(read))
        self.horizon = int(self.duration.sum() + self.writes.time.sum() + self.fetches.time.sum())
        self._pair(len(size))

    def in_ticks(self, time: Int) -> Int:
        """Return times of work in ticks."""
        return np.where(time == 0, 1, time * self.ticks)

    def in_units(self, ticks: int) -> int:
        """Return a time in cost units."""
        return ticks // self.ticks

    def _pair(self, tensors: int) -> None:
        """Pair reads and writes with instances, and fetches with writes."""
        at, fetches, writes = self.copies, self.fetches, self.writes
        self.instance_tensor = np.concatenate([at.made.tensor, fetches.tensor])
        instances = Csr.from_pairs(self.instance_tensor, np.arange(len(self.instance_tensor)), tensors)
        self.by_tensor = instances
        self.read_pair, place = instances.entries(at.read.tensor)
        self.read_instance = instances.indices[place]
        self.origin_write, place = instances.entries(writes.tensor)
        self.origin_instance = instances.indices[place]
        possible = (self.origin_instance < len(at.made)) | (writes.rank[self.origin_write] > 0)
        self.origin_write, self.origin_instance = self.origin_write[possible], self.origin_instance[possible]
        copies = Csr.from_pairs(writes.tensor, np.arange(len(writes)), tensors)
        self.source_fetch, place = copies.entries(fetches.tensor)
        self.source_write = copies.indices[place]
        self.kept = np.flatnonzero(at.tables.kept[self.instance_tensor])

    @property
    def first_copies(self) -> Int:
        """First copy of each op, in the reference order."""
        return self.copies.copy_first[self.problem.graph.arrays.order]

    @property
    def is_complete(self) -> Bool:
        """Mask of tensors for which more fetches cannot help; shape (tensors,)."""
        return self.needed_fetches <= self.options.fetches
