"""Copies, instances and reads of the hierarchical retention intervals, and the times at which they can be."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from remat.formulations.hierarchical.composite import CompositeProblem
from remat.formulations.hierarchical.intervals_tables import NodeTables, Profile, Touches
from remat.formulations.retention_intervals.layout import StageGrid
from remat.modeling.rows import expand
from remat.schedule import OrderRule

Int = NDArray[np.int64]
Bool = NDArray[np.bool_]


@dataclass(frozen=True)
class CopiedTouches:
    """:class:`Touches` of every copy of the node.

    Attributes
    ----------
    copy, tensor, begin, last, runs : int64 arrays of one shape
    """

    copy: Int
    tensor: Int
    begin: Int
    last: Int
    runs: Int

    def __len__(self) -> int:
        return len(self.copy)

    def only(self, which: Bool) -> CopiedTouches:
        """Some of them."""
        return CopiedTouches(
            self.copy[which], self.tensor[which], self.begin[which], self.last[which], self.runs[which]
        )


@dataclass(frozen=True)
class IntervalsLayout:
    """Which copies, instances and reads there are.

    A *copy* is a possible run of a node; its *window* are the `width` units of time from its start.

    Attributes
    ----------
    tables : NodeTables
    width : int
        Units of time of each event.
    grid : StageGrid or None
        The events of a fixed order, of nodes.
    copy_node, copy_rank : int64 arrays, shape (copies,)
        Copies of one node are adjacent.
    copy_first : int64 array, shape (nodes,)
    last_stage : int64 array, shape (nodes,)
        Last stage (from 1) in which another run of the node can be of use.
    first, last : int64 arrays, shape (copies,)
        Earliest and latest start.
    made, read, filled, used : CopiedTouches
        Instances of tensors with one writer and of phantoms, and their reads; contributions to accumulation buffers,
        and their reads.
    kept : bool array, shape (tensors and phantoms,)
        What must be alive at the end.
    pair_read, pair_made : int64 arrays of one shape
        Every read with each instance that can serve it, by read.
    """

    tables: NodeTables
    width: int
    grid: StageGrid | None
    copy_node: Int
    copy_rank: Int
    copy_first: Int
    last_stage: Int
    first: Int
    last: Int
    made: CopiedTouches
    read: CopiedTouches
    filled: CopiedTouches
    used: CopiedTouches
    kept: Bool
    pair_read: Int
    pair_made: Int

    @property
    def events(self) -> int:
        """|D|, the number of events."""
        return self.grid.horizon if self.grid else len(self.copy_node)

    @property
    def horizon(self) -> int:
        """Units of time of all events."""
        return self.events * self.width

    @property
    def copies(self) -> Int:
        """Copies of each node; shape (nodes,)."""
        return np.bincount(self.copy_node, minlength=len(self.copy_first)).astype(np.int64)

    def time(self, event: Int) -> Int:
        """Start of events, which count from 1."""
        return (event - 1) * self.width + 1

    @classmethod
    def of(cls, whole: CompositeProblem, copies: int, profile: Profile) -> IntervalsLayout:
        """Layout with at most `copies` runs of nodes that the problem does not limit."""
        tables = NodeTables.of(whole, profile)
        problem, width = whole.problem, tables.width
        count = len(whole.nodes)
        grid = StageGrid(count) if problem.order is OrderRule.FIXED else None
        stage = last_useful_stage(whole, tables)
        limit = np.minimum(np.full(count, copies, dtype=np.int64), most_runs(whole))
        limit[stage <= 0] = 1
        if grid is not None:
            limit = np.minimum(limit, np.maximum(1, stage - np.arange(count)))
        copy_node, copy_rank = expand(limit)
        copy_first = np.cumsum(limit) - limit
        events = np.ones(len(copy_node), dtype=np.int64)
        if grid is None:
            first, last = events, events * len(copy_node)
        else:
            slot = copy_node + 1
            first = grid.event(slot + copy_rank, slot)
            last = np.where(copy_rank > 0, grid.event(stage[copy_node], slot), first)
        first, last = (first - 1) * width + 1, (last - 1) * width + 1

        def copied(touches: Touches) -> CopiedTouches:
            row, rank = expand(limit[touches.node])
            return CopiedTouches(
                copy_first[touches.node[row]] + rank, touches.tensor[row], touches.begin[row], touches.last[row],
                touches.runs[row],
            )  # fmt: skip

        made, read = copied(tables.makes), copied(tables.reads)
        counts = np.bincount(made.tensor, minlength=len(tables.size)).astype(np.int64)
        by_tensor = np.argsort(made.tensor, kind="stable")
        indptr = np.concatenate([[0], np.cumsum(counts)])
        pair_read, rank = expand(counts[read.tensor])
        pair_made = by_tensor[indptr[read.tensor[pair_read]] + rank]
        maker, reader = made.copy[pair_made], read.copy[pair_read]
        possible = (maker != reader) & (first[maker] < last[reader])
        kept = np.zeros(len(tables.size), dtype=np.bool_)
        kept[: len(problem.kept)] = problem.kept
        return cls(
            tables, width, grid, copy_node, copy_rank, copy_first, stage, first, last, made, read, copied(tables.fills),
            copied(tables.uses), kept, pair_read[possible], pair_made[possible],
        )  # fmt: skip


def most_runs(whole: CompositeProblem) -> Int:
    """How often each node can run at most, by the problem's limits of computes; shape (nodes,)."""
    limits = whole.problem.compute_limits
    found = []
    for node in range(len(whole.nodes)):
        runs = [np.bincount(run.ops, minlength=1) for run in whole.runs(node)]
        ops = whole.nodes[node].ops.tolist()
        most = np.iinfo(np.int64).max
        for op in ops:
            limit = limits[op]
            times = min(int(run[op]) if op < len(run) else 0 for run in runs)
            if limit is not None and times:
                most = min(most, max(1, limit // times))
        found.append(most)
    return np.array(found, dtype=np.int64)


def last_useful_stage(whole: CompositeProblem, tables: NodeTables) -> Int:
    """Last stage, from 1, in which running each node again can be of use; 0 where it never is; shape (nodes,).

    A run serves a reader in the same or a later stage, and a reader runs in its own stage or wherever its own runs are
    of use. What must be alive at the end can be made in the last stage.
    """
    nodes = len(whole.nodes)
    readers: dict[int, list[int]] = {}
    for node, tensor in zip(tables.reads.node.tolist(), tables.reads.tensor.tolist(), strict=True):
        readers.setdefault(tensor, []).append(node)
    makes: list[set[int]] = [set() for _ in range(nodes)]
    for node, tensor in zip(tables.makes.node.tolist(), tables.makes.tensor.tolist(), strict=True):
        makes[node].add(tensor)
    once = most_runs(whole) == 1
    kept = whole.problem.kept
    last = np.zeros(nodes, dtype=np.int64)
    for node in range(nodes - 1, -1, -1):
        for tensor in makes[node]:
            if tensor < len(kept) and kept[tensor]:
                last[node] = nodes
            for reader in readers.get(tensor, []):
                last[node] = max(last[node], reader + 1, 0 if once[reader] else last[reader])
    if whole.problem.order is OrderRule.FIXED:
        last[-1] = 0  # nothing follows the last node
    return last
