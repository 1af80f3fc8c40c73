"""Stages of a fixed order, for ops and for nodes alike: where runs are, where they can be of use, who reads what."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from remat.deadline import Deadline
from remat.errors import ProblemError
from remat.problem import Problem
from remat.runtime.arrays import Bool, Int

#: Cost of what cannot be.
NEVER = np.iinfo(np.int64).max // 4
#: From how many stages the size of a model is estimated; bytes of its tables for each pair of a stage and a tensor.
SAMPLES, TABLE_BYTES = 48, 100


def some_stages(count: int) -> Int:
    """Return stages, evenly spaced among so many, from which the size of a model is estimated."""
    width = max(1, count // SAMPLES)
    return np.arange(width // 2, count, width)


@dataclass(frozen=True)
class TensorUses:
    """Positions of writers and readers in the reference order.

    Attributes
    ----------
    first_writer, last_writer : int64 arrays, shape (tensors,)
        The number of ops, and 0, for graph inputs.
    tensor, op : int64 arrays, shape (uses,)
        Every read of a tensor that some op writes, by tensor, then position of the reader.
    """

    first_writer: Int
    last_writer: Int
    tensor: Int
    op: Int

    @classmethod
    def of(cls, problem: Problem) -> TensorUses:
        """Of all tensors of a graph."""
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
    """Sums over runs, numbered node by node, that must not exceed limits of computes.

    Attributes
    ----------
    row, run, times : int64 arrays of one shape
        Term ``times`` of a run in the sum ``row``; by row.
    most : int64 array, shape (rows,)
    """

    row: Int
    run: Int
    times: Int
    most: Int


def useful_runs(
    readers: Sequence[Sequence[int]],
    cost: Int,
    can: Bool,
    kept: Bool,
    stages: Int,
    *,
    most_extra: int | None,
    ahead: bool,
    clock: Deadline,
) -> Bool:
    """[j, i]: whether running node j again in stage ``stages[i]`` can be of use; nodes by position.

    It serves a reader that runs for the first time in that stage or later, or another run there that is of use itself.
    So it comes with runs of all nodes on a path of readers that ends before such a first run; the cheapest path is the
    least that must be spent.

    Parameters
    ----------
    readers : sequence of sequences of int
        Nodes that read what each node makes, with repetitions.
    cost : int64 array, shape (nodes,)
        The least that a run costs.
    can, kept : bool arrays, shape (nodes,)
        Whether the node may run again, and whether it makes what must be alive at the end.
    stages : int64 array
        Stages do not touch one another.
    most_extra : int or None
        Most that schedules spend on running nodes again; None: any.
    ahead : bool
        Without it the path ends before the stage's own node, and all of it lies in the stage.
    clock : Deadline
    """
    nodes = len(cost)
    # [j, i]: least extra cost with node j run again in that stage
    spent = np.full((nodes, len(stages)), NEVER, dtype=np.int64)
    for j in clock.each(range(nodes - 1, -1, -1), 16):
        if not can[j]:
            continue
        onward = np.full(len(stages), NEVER, dtype=np.int64)
        if kept[j]:
            onward[stages >= (0 if ahead else nodes - 1)] = 0
        for u in set(readers[j]):
            onward[stages <= u if ahead else stages == u] = 0
            np.minimum(onward, spent[u], out=onward)
        spent[j] = np.minimum(onward + cost[j], NEVER)
    most = NEVER - 1 if most_extra is None else min(most_extra, NEVER - 1)
    return (spent <= most) & (np.arange(nodes)[:, None] < stages)


def run_stages(position: Int, count: int, named: Callable[[int], str], node: Int) -> Int:
    """Return the stage (from 1) of each run: stage k ends with the first run of the k-th node of the reference order.

    Parameters
    ----------
    position, node : int64 arrays, shape (runs,)
        What runs: its place in the reference order, and its number.
    count : int
        Nodes in all.
    named : callable
        From the number of a node to what a message calls it.

    Raises
    ------
    ProblemError
        Naming the run, if first runs leave the reference order, a stage runs a node twice or out of order, or something
        runs again after the last stage.
    """
    stages = np.empty(len(position), dtype=np.int64)
    done, last = 0, -1  # nodes run so far; the last run of the current stage
    places = position.tolist()
    for step, at in enumerate(places):
        if at > done or done == count or (last >= 0 and at <= places[last]):
            why = f"in stage {done + 1} after {named(int(node[last]))}"
            if at > done or done == count:
                why = "before its turn in the reference order" if at > done else "after the last stage"
            raise ProblemError(
                f"compute {step} of the schedule runs {named(int(node[step]))} {why}, which stages cannot express",
                "not-staged",
            )
        stages[step] = done + 1
        last = step
        if at == done:
            done, last = done + 1, -1
    return stages
