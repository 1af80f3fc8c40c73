"""Stages of a fixed order, for ops and for nodes: stages of runs, useful runs, and positions of readers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from remat.problem import Problem
from remat.runtime.arrays import Bool, Int
from remat.runtime.deadline import Deadline

#: Cost of an impossible run.
NEVER = np.iinfo(np.int64).max // 4
#: Number of stages sampled to estimate the size of a model; bytes of its tables for each pair of a stage and a tensor.
SAMPLES, TABLE_BYTES = 48, 100


def some_stages(count: int) -> Int:
    """Return a sample of `count` stages, evenly spaced, to estimate the size of a model."""
    width = max(1, count // SAMPLES)
    return np.arange(width // 2, count, width)


@dataclass(frozen=True)
class TensorUses:
    """Positions of writers and readers in the reference order."""

    first_writer: Int
    """First writer of each tensor; for graph inputs the number of ops."""
    last_writer: Int
    """Last writer of each tensor; 0 for graph inputs."""
    tensor: Int
    """Tensor of each read of tensors that ops write; reads are sorted by tensor, then position of the reader."""
    op: Int
    """Reader of each read."""

    @classmethod
    def of(cls, problem: Problem) -> TensorUses:
        """Return the uses of all tensors of a graph."""
        arrays = problem.graph.arrays
        reader, tensor = arrays.position[arrays.consumers.indices], arrays.consumers.rows
        wanted = ~arrays.is_input[tensor]
        reader, tensor = reader[wanted], tensor[wanted]
        by_use = np.lexsort((reader, tensor))
        return cls(
            arrays.producers.lowest(arrays.position, len(arrays.cost)), arrays.producers.highest(arrays.position, 0),
            tensor[by_use], reader[by_use],
        )  # fmt: skip


class ComputeLimits(NamedTuple):
    """Limits of computes as bounded sums over runs, which are numbered node by node.

    Attributes
    ----------
    row, run, times : int64 arrays of one shape
        Coefficient ``times`` of a run in the sum ``row``; by row.
    most : int64 array, shape (rows,)
    """

    row: Int
    run: Int
    times: Int
    most: Int


class RunNodes(NamedTuple):
    """Nodes of :func:`useful_runs`, by position.

    Attributes
    ----------
    readers : sequence of sequences of int
        Nodes that read the outputs of each node, with repetitions.
    cost : int64 array, shape (nodes,)
        Least cost of a run.
    can, kept : bool arrays, shape (nodes,)
        True if the node may run again, and if it makes a tensor that must be alive at the end.
    """

    readers: Sequence[Sequence[int]]
    cost: Int
    can: Bool
    kept: Bool


def useful_runs(nodes: RunNodes, stages: Int, *, most_extra: int | None, ahead: bool, clock: Deadline) -> Bool:
    """Mark the runs that can be useful: entry [j, i] is node j running again in ``stages[i]``.

    A useful run has a reader that runs for the first time in that stage or later, or another useful run in the stage
    that reads it. It therefore comes with runs of all nodes on a path of readers that ends before such a first run. The
    cheapest path is the least extra cost.

    `stages` are independent of each other; `most_extra` is the largest extra cost of a schedule. Without `ahead`, the
    path must end before the stage's own node and lie within the stage.
    """
    readers, cost, can, kept = nodes
    count = len(cost)
    # [j, i]: least extra cost if node j runs again in that stage
    spent = np.full((count, len(stages)), NEVER, dtype=np.int64)
    for j in clock.each(range(count - 1, -1, -1), 16):
        if not can[j]:
            continue
        onward = np.full(len(stages), NEVER, dtype=np.int64)
        if kept[j]:
            onward[stages >= (0 if ahead else count - 1)] = 0
        for u in set(readers[j]):
            onward[stages <= u if ahead else stages == u] = 0
            np.minimum(onward, spent[u], out=onward)
        spent[j] = np.minimum(onward + cost[j], NEVER)
    most = NEVER - 1 if most_extra is None else min(most_extra, NEVER - 1)
    return (spent <= most) & (np.arange(count)[:, None] < stages)
