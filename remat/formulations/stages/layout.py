"""Options of the stage formulation, and its layout: useful recomputations, retentions and reads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np

from remat.formulations.staging import TABLE_BYTES, RunNodes, TensorUses, some_stages, useful_runs
from remat.modeling.rows import expand
from remat.modeling.size import ModelSize
from remat.problem import Problem
from remat.problem.op_sequence import MemoryScale, standing_buffers
from remat.runtime.arrays import Bool, Int
from remat.runtime.checked_options import Options, Range
from remat.runtime.deadline import Deadline


@dataclass(frozen=True)
class StagesOptions(Options):
    """Options of :class:`~remat.formulations.stages.Stages`."""

    cost_limit: Annotated[int, Range(0)] | None = None
    """Largest cost of a schedule in the model, for example that of a known one. Recomputations that no such schedule
    has are left out. None: no limit."""
    ahead: bool = True
    """True: a stage may recompute tensors that only later stages read. False: the model is far smaller, since a stage
    recomputes only for the op that ends it. Its optimum, among fewer schedules, is mostly the same."""


#: Stages per block of the vectorized count.
COLUMNS = 512


def size_of(problem: Problem, most_extra: int | None, ahead: bool, clock: Deadline) -> ModelSize:
    """Estimate the size of the model from a sample of its stages.

    Every recomputation that is a choice has R, S and U, with 6 non-zeros, and L with 7 for each of its reads.
    """
    arrays = problem.graph.arrays
    n = len(arrays.cost)
    stages = some_stages(n)
    share = n / len(stages)
    may_run = may_run_in(problem, most_extra, ahead, stages, clock)
    reads = np.bincount(arrays.edge_consumer, minlength=n)[arrays.order]
    runs, read = int(may_run.sum() * share), int((may_run.sum(axis=1) * reads).sum() * share)
    tables = TABLE_BYTES * n * max(n, len(arrays.size))
    return ModelSize(6 * runs + 7 * read, tables)


class StageLayout:
    """Tensors and ops by position in the reference order, with the stages in which each can be useful.

    `most_extra` is the largest cost of recomputations. Without `ahead`, recomputations must serve the op that ends
    their stage.

    Attributes
    ----------
    n : int
        Number of ops, and of stages.
    capacity : int
        Units left by the budget; see :class:`remat.problem.op_sequence.MemoryScale`.
    size : int64 array, shape (tensors,)
        In units; 0 for graph inputs and for tensors that count as workspace.
    workspace : int64 array, shape (ops,)
        In units, by position.
    is_buffer : bool array, shape (tensors,)
        Accumulation buffers that are held until they are read.
    first_writer, last_writer : int64 arrays, shape (tensors,)
        Positions; the number of ops for graph inputs.
    use_tensor, use_op : int64 arrays, shape (uses,)
        Every read of a tensor that some op writes, by tensor, then position of the reader.
    may_run : bool array, shape (stages, ops)
        True if a recomputation of the op can be useful in that stage.
    first_stage : int
        First stage in which recomputation can be useful: before it, all useful tensors fit together.
    s_from, s_until : int64 arrays, shape (tensors,)
        First and last stage into which retaining a tensor is a choice; none if `s_from` is larger.
    fixed : bool array, shape (stages, tensors)
        True if the tensor is live in that stage from its writer to the end for every choice.
    """

    def __init__(self, problem: Problem, most_extra: int | None, ahead: bool, clock: Deadline) -> None:
        arrays = problem.graph.arrays
        n = self.n = len(arrays.cost)
        self.is_buffer, workspace = standing_buffers(problem)
        scale = MemoryScale.of(problem, workspace)
        self.capacity, self.workspace = scale.capacity, workspace[arrays.order] // scale.unit
        uses = TensorUses.of(problem)
        self.first_writer, self.use_tensor, self.use_op = uses.first_writer, uses.tensor, uses.op
        self.last_writer = np.where(arrays.is_input, n, uses.last_writer)
        fleeting = arrays.is_input | ((arrays.producers.counts > 1) & ~self.is_buffer)
        self.size = np.where(fleeting, 0, arrays.size // scale.unit)

        may_run = self.may_run = np.empty((n, n), dtype=np.bool_)
        for first in range(0, n, COLUMNS):
            stages = np.arange(first, min(first + COLUMNS, n))
            may_run[stages] = may_run_in(problem, most_extra, ahead, stages, clock).T
        last_run = np.where(may_run.any(axis=0), n - 1 - may_run[::-1].argmax(axis=0), -1)
        self.s_until = np.full(len(arrays.size), -1, dtype=np.int64)
        np.maximum.at(self.s_until, self.use_tensor, np.maximum(self.use_op, last_run[self.use_op]))
        self.s_until[problem.kept] = n - 1
        self.s_until[fleeting] = -1

        clock.check()
        self.fixed = np.zeros((n, len(arrays.size)), dtype=np.bool_)
        self.fixed[self.use_op, self.use_tensor] = True
        self.fixed[n - 1, problem.kept & ~fleeting] = True
        fill, rank = expand(np.where(fleeting, 0, self.last_writer - self.first_writer + 1))
        self.fixed[self.first_writer[fill] + rank, fill] = True

        over = np.flatnonzero(self._load_when_all_is_kept() > self.capacity)
        self.first_stage = int(over[0]) if len(over) else n
        may_run[: self.first_stage] = False
        self.s_from = np.maximum(self.last_writer + 1, self.first_stage)

    def _load_when_all_is_kept(self) -> Int:
        """Return the units held while the op that ends each stage runs, if no useful tensor is ever freed."""
        change = np.zeros(self.n + 1, dtype=np.int64)
        there = np.flatnonzero(self.first_writer < self.n)
        np.add.at(change, self.first_writer[there], self.size[there])
        np.subtract.at(change, np.maximum(self.s_until, self.last_writer)[there] + 1, self.size[there])
        return np.cumsum(change)[: self.n] + self.workspace


def may_run_in(problem: Problem, most_extra: int | None, ahead: bool, stages: Int, clock: Deadline) -> Bool:
    """Mark useful recomputations: entry [j, i] is op j, by position, in stage ``stages[i]``; see :func:`useful_runs`.

    The model cannot refill an accumulation buffer, so no op is recomputed for that.
    """
    arrays = problem.graph.arrays
    single = arrays.producers.counts == 1
    consumers, position = arrays.consumers.lists(), arrays.position.tolist()
    outputs = arrays.op_outputs.where(single)
    made = outputs.lists()
    nodes = RunNodes(
        [[position[reader] for tensor in made[op] for reader in consumers[tensor]] for op in arrays.order.tolist()],
        arrays.cost[arrays.order],
        np.array([limit != 1 for limit in problem.compute_limits])[arrays.order],
        (outputs.sums(problem.kept.astype(np.int64)) > 0)[arrays.order],
    )
    return useful_runs(nodes, stages, most_extra=most_extra, ahead=ahead, clock=clock)
