"""Copies, instances and reads of retention intervals, and their possible times."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from remat.formulations.retention_intervals.tables import NodeTables, Touches
from remat.graphs.arrays import Csr
from remat.modeling.rows import expand
from remat.runtime.arrays import Bool, Int
from remat.schedule import OrderRule


def grid_event(stage: Int, slot: Int) -> Int:
    """Return the event, from 1, of a fixed order: stage ``k`` has ``k`` events, the ``j``-th for node ``j`` alone."""
    return stage * (stage - 1) // 2 + slot


@dataclass(frozen=True)
class CopiedTouches:
    """:class:`Touches` of every copy of each node, sorted by copy."""

    copy: Int
    tensor: Int
    begin: Int
    last: Int
    runs: Int

    def __len__(self) -> int:
        return len(self.copy)

    @classmethod
    def of(cls, touches: Touches, copy_first: Int, copies: Int) -> CopiedTouches:
        """Return the touches of nodes with `copies` copies each."""
        row, rank = expand(copies[touches.node])
        copy = copy_first[touches.node[row]] + rank
        order = np.argsort(copy, kind="stable")
        row = row[order]
        return cls(copy[order], touches.tensor[row], touches.begin[row], touches.last[row], touches.runs[row])

    def only(self, which: Bool | Int) -> CopiedTouches:
        """Return a selection of the touches."""
        return CopiedTouches(*(getattr(self, field.name)[which] for field in fields(self)))


class IntervalsLayout:
    """Copies, instances and reads of a problem.

    A *copy* is a possible run of a node; its *window* is the `width` units of time from its start. An *instance* is a
    tensor that a copy makes. Accumulation buffers have only one instance and separate tables. Graph inputs are always
    live and left out.

    `copies` is the largest number of runs of nodes that the problem does not limit.

    Attributes
    ----------
    width : int
        Units of time of each event.
    fixed : bool
        True if the order is fixed; events are then those of :func:`grid_event`.
    copy_node, copy_rank : int64 arrays, shape (copies,)
        Copies of one node are adjacent; rank 0 is the first run.
    copies, copy_first : int64 arrays, shape (nodes,)
        Number of copies, and the first one.
    last_stage : int64 array, shape (nodes,)
        Last stage (from 1) in which another run of the node can be useful.
    slot : int64 array, shape (copies,)
        Position of each copy's node in a stage, from 1.
    first, last : int64 arrays, shape (copies,)
        Earliest and latest start.
    made, read, filled, used : CopiedTouches
        Instances of phantoms and of tensors with one writer, and their reads; contributions to accumulation buffers,
        and their reads.
    pair_read, pair_made : int64 arrays of one shape
        Pairs of a read and an instance that can serve it, sorted by read.
    """

    def __init__(self, tables: NodeTables, order: str, copies: int) -> None:
        self.tables, self.width = tables, tables.width
        fixed = self.fixed = order == OrderRule.FIXED
        stage = self.last_stage = last_useful_stage(tables, fixed=fixed)
        limit = np.where(tables.limit < 0, copies, tables.limit)
        limit[stage <= 0] = 1
        if fixed:  # at most once in each stage from its own to the last useful one
            limit = np.minimum(limit, np.maximum(1, stage - tables.position))
        self.copies, self.copy_first = limit, np.cumsum(limit) - limit
        self.copy_node, self.copy_rank = expand(limit)
        slot = self.slot = tables.position[self.copy_node] + 1
        first = last = np.ones(len(self.copy_node), dtype=np.int64)
        if not fixed:
            last = last * len(self.copy_node)
        else:
            first = grid_event(slot + self.copy_rank, slot)
            last = np.where(self.copy_rank > 0, grid_event(stage[self.copy_node], slot), first)
        self.first, self.last = self.time(first), self.time(last)
        self.made, self.read, self.filled, self.used = (
            CopiedTouches.of(touches, self.copy_first, limit)
            for touches in (tables.makes, tables.reads, tables.fills, tables.uses)
        )
        instances = Csr.from_pairs(self.made.tensor, np.arange(len(self.made)), len(tables.size))
        self.pair_read, place = instances.entries(self.read.tensor)
        self.pair_made = instances.indices[place]
        if not tables.is_plain:  # an instance serves neither its own run nor a run that always precedes it
            maker, reader = self.made.copy[self.pair_made], self.read.copy[self.pair_read]
            possible = (maker != reader) & (first[maker] < last[reader])
            self.pair_read, self.pair_made = self.pair_read[possible], self.pair_made[possible]

    @property
    def events(self) -> int:
        """|D|, the number of events."""
        nodes = len(self.tables.position)
        return nodes * (nodes + 1) // 2 if self.fixed else len(self.copy_node)

    @property
    def horizon(self) -> int:
        """Units of time of all events."""
        return self.events * self.width

    @property
    def contributions(self) -> CopiedTouches:
        """Contributions of later copies, which are masked or transient."""
        return self.filled.only(self.copy_rank[self.filled.copy] > 0)

    def time(self, event: Int) -> Int:
        """Return the start of events, which count from 1."""
        return (event - 1) * self.width + 1


def last_useful_stage(tables: NodeTables, *, fixed: bool) -> Int:
    """Return the last stage, from 1, in which running each node again can be useful; 0: none; shape (nodes,).

    A run serves a reader in the same or a later stage. A reader runs in its own stage, or in a stage where its own runs
    are useful. A tensor that must be alive at the end can be made in the last stage. The model cannot refill an
    accumulation buffer, so no node runs for that.
    """
    nodes = len(tables.position)
    makes = Csr.from_pairs(tables.makes.node, tables.makes.tensor, nodes).lists()
    readers = Csr.from_pairs(tables.reads.tensor, tables.reads.node, len(tables.size)).lists()
    position, once = tables.position.tolist(), (tables.limit == 1).tolist()
    kept = tables.kept.tolist()
    order = np.argsort(tables.position).tolist()
    last, reach = [0] * nodes, [0] * nodes  # `reach` includes the stage of the first run
    for node in reversed(order):
        uses = [reach[reader] for tensor in makes[node] for reader in readers[tensor]]
        uses += [nodes for tensor in makes[node] if kept[tensor]]
        last[node] = max(uses, default=0)
        reach[node] = position[node] + 1 if once[node] else max(position[node] + 1, last[node])
    if fixed:
        last[order[-1]] = 0  # nothing follows the last node
    return np.array(last, dtype=np.int64)
