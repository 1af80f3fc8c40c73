"""Variables and index arithmetic of the retention-interval formulation: copies, instances, reads and the time grid."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from remat.formulations.sequence import standing_buffers
from remat.modeling import Vars
from remat.modeling.rows import expand
from remat.problem import Problem
from remat.schedule import OrderRule

Int = NDArray[np.int64]
Bool = NDArray[np.bool_]


@dataclass(frozen=True)
class RetentionBlocks:
    """The blocks of variables, in the order in which they are made."""

    start: Vars
    active: Vars
    end: Vars
    after: Vars
    buffer_start: Vars
    buffer_end: Vars
    transient: Vars
    masked: Vars
    cover: Vars


@dataclass(frozen=True)
class StageGrid:
    """Events of the fixed order: stage ``k`` (from 1) has ``k`` events, the ``j``-th of them for op ``j`` alone."""

    num_ops: int

    @property
    def horizon(self) -> int:
        """Number of events, n(n+1)/2."""
        return self.num_ops * (self.num_ops + 1) // 2

    @staticmethod
    def event(stage: Int, slot: Int) -> Int:
        """Number of the event, from 1."""
        return stage * (stage - 1) // 2 + slot


@dataclass(frozen=True)
class RetentionLayout:
    """Which copies, instances and reads there are.

    A *copy* is a possible compute of an op; an *instance* is an output of a copy; a *read* is an input of a copy.
    Accumulation buffers have one instance for good and are kept apart. Graph inputs are always live and left out.

    Attributes
    ----------
    copy_op, copy_rank : int64 arrays, shape (copies,)
        Copies of one op are adjacent; rank 0 is the first compute.
    copy_first : int64 array, shape (ops,)
        First copy of each op.
    last_stage : int64 array, shape (ops,)
        Last stage (from 1) in which a recomputation of the op can be of use.
    instance_copy, instance_tensor : int64 arrays, shape (instances,)
    read_copy, read_tensor : int64 arrays, shape (reads,)
    pair_read, pair_instance : int64 arrays, shape (pairs,)
        All instances that could serve each read; sorted by read.
    buffers : int64 array
        Accumulation buffers.
    """

    copy_op: Int
    copy_rank: Int
    copy_first: Int
    last_stage: Int
    instance_copy: Int
    instance_tensor: Int
    read_copy: Int
    read_tensor: Int
    pair_read: Int
    pair_instance: Int
    buffers: Int

    @classmethod
    def of(cls, problem: Problem, copies: int) -> RetentionLayout:
        """Layout with at most `copies` computes for ops that the problem does not limit."""
        arrays = problem.graph.arrays
        num_ops, num_tensors = len(arrays.cost), len(arrays.size)
        is_buffer, _ = standing_buffers(problem)
        last_stage = last_useful_stage(problem)
        limit = np.array([copies if c is None else c for c in problem.compute_limits], dtype=np.int64)
        limit[last_stage <= 0] = 1
        if problem.order is OrderRule.FIXED:  # at most once in each stage from its own to the last useful one
            limit = np.minimum(limit, np.maximum(1, last_stage - arrays.position))
        copy_op, copy_rank = expand(limit)
        copy_first = np.cumsum(limit) - limit

        ordinary = arrays.producers.counts == 1
        copy_outputs, _ = expand(arrays.op_outputs.counts[copy_op])
        tensors = _gather(arrays.op_outputs.indptr, arrays.op_outputs.indices, copy_op)
        instance_copy, instance_tensor = copy_outputs[ordinary[tensors]], tensors[ordinary[tensors]]

        copy_inputs, _ = expand(arrays.op_inputs.counts[copy_op])
        tensors = _gather(arrays.op_inputs.indptr, arrays.op_inputs.indices, copy_op)
        wanted = ~arrays.is_input[tensors]
        read_copy, read_tensor = copy_inputs[wanted], tensors[wanted]

        by_tensor = np.argsort(instance_tensor, kind="stable")
        counts = np.bincount(instance_tensor, minlength=num_tensors).astype(np.int64)
        indptr = np.concatenate([[0], np.cumsum(counts)])
        pair_read, _ = expand(counts[read_tensor])
        pair_instance = _gather(indptr, by_tensor, read_tensor)
        assert len(copy_first) == num_ops
        return cls(
            copy_op, copy_rank, copy_first, last_stage, instance_copy, instance_tensor, read_copy, read_tensor,
            pair_read, pair_instance, np.flatnonzero(is_buffer),
        )  # fmt: skip


def last_useful_stage(problem: Problem) -> Int:
    """Last stage, from 1, in which recomputing each op can be of use; 0 where it never is; shape (ops,).

    A recomputation serves a reader in the same or a later stage, and a reader runs in its own stage or wherever its
    own recomputation is of use. What must be alive at the end can be recomputed in the last stage. Regaining an
    accumulation buffer is not expressed, so nothing is recomputed for its sake.
    """
    arrays = problem.graph.arrays
    num_ops = len(arrays.cost)
    single = arrays.producers.counts == 1
    once = np.array([limit == 1 for limit in problem.compute_limits])
    last = np.zeros(num_ops, dtype=np.int64)
    outputs, consumers = arrays.op_outputs.lists(), arrays.consumers.lists()
    position = arrays.position.tolist()
    for op in arrays.order[::-1].tolist():
        for tensor in outputs[op]:
            if not single[tensor]:
                continue
            if problem.kept[tensor]:
                last[op] = num_ops
            for reader in consumers[tensor]:
                last[op] = max(last[op], position[reader] + 1, 0 if once[reader] else last[reader])
    if problem.order is OrderRule.FIXED:
        last[arrays.order[-1]] = 0  # nothing follows the last op
    return last


def _gather(indptr: Int, indices: Int, rows: Int) -> Int:
    """The given rows of a compressed table, one after the other."""
    counts = indptr[rows + 1] - indptr[rows]
    owner, rank = expand(counts)
    return indices[indptr[rows][owner] + rank]
