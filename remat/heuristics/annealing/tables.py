"""Arrays of a problem and a compute sequence for the kernels of annealing."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from remat.graphs.arrays import occurrences, stacked
from remat.problem import Problem
from remat.problem.op_sequence import standing_buffers
from remat.runtime.arrays import Int, Int32

if TYPE_CHECKING:
    from remat.heuristics.annealing.slots_kernel import SlotGraph, SlotSchedule


#: Most computes of one op.
MOST_RUNS = 24
#: Bits of a slot's index in the largest block. On 100,000 ops, blocks of 1,024 slots take a fifth more time.
MOST_BITS = 8


def slot_graph(problem: Problem) -> SlotGraph:
    """Return the arrays of a problem's graph."""
    from remat.heuristics.annealing import slots_kernel as kernel

    arrays = problem.graph.arrays
    num_ops, num_tensors = len(arrays.cost), len(arrays.size)
    buffers, workspace = standing_buffers(problem)
    live = (arrays.producers.counts == 1) | buffers  # neither graph inputs nor buffers without readers
    limit = np.array([MOST_RUNS if c is None else min(c, MOST_RUNS) for c in problem.compute_limits], dtype=np.int64)
    limit[arrays.op_outputs.where(buffers).counts > 0] = 1
    ops = np.zeros((num_ops + 1, kernel.OP_COLUMNS), dtype=np.int64)
    for column, values in (
        (kernel.OP_COST, arrays.cost), (kernel.WORKSPACE, workspace), (kernel.LIMIT, limit),
        (kernel.ORDER, arrays.order), (kernel.POSITION, arrays.position),
    ):  # fmt: skip
        ops[:-1, column] = values
    tensors = np.zeros((num_tensors + 1, kernel.TENSOR_COLUMNS), dtype=np.int64)
    tensors[:-1, kernel.SIZE], tensors[:-1, kernel.KEPT] = arrays.size, problem.kept
    columns = (
        (ops, kernel.INPUTS, arrays.op_inputs.where(live)), (ops, kernel.OUTPUTS, arrays.op_outputs.where(live)),
        (ops, kernel.BEFORE, arrays.op_predecessors), (ops, kernel.AFTER, arrays.op_successors),
        (tensors, kernel.WRITERS, arrays.producers), (tensors, kernel.READERS, arrays.consumers),
    )  # fmt: skip
    begins, links = stacked([rows for _, _, rows in columns])
    for (table, column, _), begin in zip(columns, begins, strict=True):
        table[:, column] = begin
    return kernel.SlotGraph(ops, tensors, links.astype(np.int32))


def slot_schedule(net: SlotGraph, sequence: Int, width: int) -> SlotSchedule:
    """Return the sequence spread over at least `width` slots; spans and memory are filled in later."""
    from remat.heuristics.annealing import slots_kernel as kernel
    from remat.heuristics.annealing.moves_kernel import CHAIN

    num_ops, num_tensors = len(net.ops) - 1, len(net.tensors) - 1

    def by_column(*shape: int) -> Int32:
        """Return zeros of which most rows use the first column only, so that the cache holds it for many rows."""
        return np.zeros(shape, dtype=np.int32, order="F")

    def empty(*shape: int) -> Int:
        return np.zeros(shape, dtype=np.int64)

    bits = min(math.ceil(math.log2(width) / 2), MOST_BITS)
    blocks = -(-width >> bits)
    width = blocks << bits
    slots = by_column(num_ops, MOST_RUNS + 1)
    slots[sequence, occurrences(sequence)] = (np.arange(len(sequence)) * 2 + 1) * width // (2 * len(sequence))
    degree = int(np.diff(net.ops[:, [kernel.INPUTS, kernel.OUTPUTS]], axis=0).sum(axis=1).max(initial=1))
    touched = min(num_tensors, (CHAIN + 1) * degree) + 1
    events = 4 * (touched * (MOST_RUNS + 1) + CHAIN + 1)

    state = kernel.SlotSchedule(
        ops=by_column(num_ops, 3), tensors=np.zeros((num_tensors + 1, 4), dtype=np.int64, order="F"), slots=slots,
        held=by_column(width), best=np.full(width, -1, dtype=np.int32), changed=by_column(width // 8 + 1),
        number=empty(kernel.NUMBERS), spans=by_column(num_tensors, MOST_RUNS + 1, 2),
        new_spans=empty(touched, MOST_RUNS + 1, 2), chain=empty(CHAIN + 1, 3),
        level=empty(width), block_level=empty(blocks), block_plus=empty(blocks),
        events=empty(2, events), excess=np.zeros(width), block_excess=np.zeros(blocks), block_times=np.ones(blocks),
        event_factors=np.zeros(events), total=np.zeros(1), factors=np.zeros((num_tensors, 2)),
    )  # fmt: skip
    state.ops[:, kernel.RUNS] = np.bincount(sequence, minlength=num_ops)
    state.tensors[:, kernel.LAST_CHANGE] = -1
    state.number[kernel.BEST], state.number[kernel.BITS] = -1, bits
    return state
