"""Constraint (5): whenever an op runs, each of its inputs is live; by cover literals or by the paper's reservoirs."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from remat.formulations.retention_intervals.layout import RetentionBlocks, RetentionLayout
from remat.modeling import Clauses, Linear, Reservoir
from remat.modeling.rows import difference_rows

Int = NDArray[np.int64]


def covers(layout: RetentionLayout, x: RetentionBlocks, active: Int, covered: Int) -> list[Linear | Clauses]:
    """(5) with a literal for each pair of a read and an instance, and none where there is no choice.

    Parameters
    ----------
    layout : RetentionLayout
    x : RetentionBlocks
    active : int64 array, shape (copies,)
        The literal by which each copy runs.
    covered : int64 array
        Pairs that have a literal.
    """
    literal = active[layout.read_copy[layout.pair_read]].copy()  # no choice: whenever the reader runs
    literal[covered] = x.cover.index
    reader = x.start[layout.read_copy[layout.pair_read]]
    instance = layout.pair_instance
    copy = layout.instance_copy[instance]
    read = layout.pair_read[covered]
    served, group = np.unique(read, return_inverse=True)
    guard = layout.copy_rank[layout.read_copy[served]] > 0
    chosen = copy[covered]
    again = layout.copy_rank[chosen] > 0
    return [
        difference_rows("(5) computed before", reader, x.start[copy], 1, literal),
        difference_rows("(5) still live", x.end[instance], reader, 1, literal),
        Clauses.pairs("(5) by one that runs", ~x.cover.index[again], x.active[chosen[again]]),
        Clauses.grouped(
            "(5) some instance",
            np.concatenate([group, np.flatnonzero(guard)]),
            np.concatenate([x.cover.index, ~x.active[layout.read_copy[served[guard]]]]),
            len(served),
        ),
    ]


def reservoirs(layout: RetentionLayout, x: RetentionBlocks, active: Int) -> Reservoir:
    """(10): the level is the number of live instances, less one while the reader runs."""
    reads = np.unique(layout.pair_read)
    group = np.searchsorted(reads, layout.pair_read)
    copy = layout.instance_copy[layout.pair_instance]
    reader = layout.read_copy[reads]
    own = np.arange(len(reads), dtype=np.int64)
    which = np.concatenate([group, group, own, own])
    one = np.ones(len(group), dtype=np.int64)
    guard = np.concatenate([active[copy], active[copy], active[reader], active[reader]])
    time = np.concatenate([x.start[copy], x.end[layout.pair_instance], x.start[reader], x.start[reader]])
    offset = np.concatenate([one, 0 * one, 0 * own, 0 * own + 1])
    change = np.concatenate([one, -one, 0 * own - 1, 0 * own + 1])
    by_group = np.argsort(which, kind="stable")
    indptr = np.concatenate([[0], np.cumsum(np.bincount(which, minlength=len(reads)))])
    return Reservoir(
        "(5) reservoirs", indptr, time[by_group], offset[by_group], change[by_group], guard[by_group]
    )  # fmt: skip
