"""Kernels of drops: staged schedules, the memory of every stage, and updates of both.

Time is counted in stages: stage ``s`` ends with the first run of the ``s``-th op of an order, and before that come
recomputations, in that order. The last stage has recomputations only, and one more stands for the end. An instance of a
tensor lives from the stage of its run to that of its last read before the next run; a read belongs to the last run in
its own stage or before. The memory of a stage is the exact peak of its steps, kept in blocks of stages. A change of one
run costs O(d) additions over a range of blocks, for an op with d tensors, and a recount of the few stages where an
instance begins or ends.
"""

# Kernels carry no types, and are called by position only.
# ruff: noqa: PLR0917
# mypy: allow-untyped-defs

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from remat.runtime.arrays import Bool, Int
from remat.runtime.compiled import inner, kernel


class StageGraph(NamedTuple):
    """Graph without graph inputs; rows of all tables as in :class:`remat.graphs.arrays.Csr`.

    `writer` is the op of a tensor, -1 for an accumulation buffer; `begin` the stage of a buffer's first contribution;
    `limit` the most runs of an op; `order` and `position` are the stages' ops and their inverse.
    """

    size: Int
    cost: Int
    workspace: Int
    in_ptr: Int
    inputs: Int
    out_ptr: Int
    outputs: Int
    writer: Int
    begin: Int
    reader_ptr: Int
    readers: Int
    kept: Bool
    limit: Int
    order: Int
    position: Int


class StagedSchedule(NamedTuple):
    """Staged schedule and its memory.

    `runs[x, :times[x]]` are the stages of op `x`, ascending. `first[s]` is the head of a linked list of nodes, the
    recomputations of stage ``s`` by position; node ``k`` is op `node_op[k]`, followed by `node_next[k]`. The memory of
    a stage is its `memory` plus `lazy` of its block; `low` and `high` are the least and the largest in the block.
    `inner` is the part of instances that begin or end in the stage. `number` is [budget, excess, first free node,
    token, number of free nodes]; entries stamped with the token belong to the current stage or plan. `begins`, `ends`
    and `limits` are room for the instances that one op touches.
    """

    runs: NDArray[np.int32]
    times: Int
    memory: Int
    lazy: Int
    low: Int
    high: Int
    inner: Int
    first: Int
    node_op: Int
    node_next: Int
    number: Int
    last_at: Int
    op_stamp: Int
    tensor_stamp: Int
    begins: Int
    ends: Int
    limits: Int


#: Fields of `StagedSchedule.number`.
BUDGET, EXCESS, FREE, TOKEN, LEFT = range(5)
#: Stages in a block.
BLOCK = 256
#: Changes of a run of an op. Floats, since numba compiles a function again for each integer or Boolean constant it is
#: called with.
ADD, TAKE = 1.0, -1.0


@inner
def instance(net, state, tensor, stage):
    """Return the first stage of the instance that a read in `stage` belongs to, and the stage of the next instance."""
    end: Any = len(net.order) + 1
    op = net.writer[tensor]
    if op < 0:
        return net.begin[tensor], end
    j = state.times[op] - 1
    while state.runs[op, j] > stage:
        end = np.int64(state.runs[op, j])
        j -= 1
    return np.int64(state.runs[op, j]), end


@inner
def last_use(net, state, tensor, start, limit):
    """Return the last stage in [`start`, `limit`) that reads `tensor`, or `start`; `limit` if kept to the end."""
    if net.kept[tensor] and limit > len(net.order):
        return limit
    end = start
    for k in range(net.reader_ptr[tensor], net.reader_ptr[tensor + 1]):
        reader = net.readers[k]
        j = state.times[reader] - 1
        while j >= 0 and state.runs[reader, j] >= limit:
            j -= 1
        if j >= 0 and state.runs[reader, j] > end:
            end = np.int64(state.runs[reader, j])
    return end


@inner
def excess_change(state, first, last, amount):
    """Return the change of the excess if `amount` were added to the memory of stages `first` .. `last`."""
    memory, lazy, low, high, budget = state.memory, state.lazy, state.low, state.high, state.number[BUDGET]
    change = 0
    s = first
    while s <= last:
        block = s // BLOCK
        end = min((block + 1) * BLOCK, last + 1)
        if min(low[block], low[block] + amount) >= budget:
            change += amount * (end - s)
        elif max(high[block], high[block] + amount) > budget:
            base = lazy[block] - budget
            for i in range(s, end):
                change += max(memory[i] + base + amount, 0) - max(memory[i] + base, 0)
        s = end
    return change


@inner
def add(state, first, last, amount):
    """Add `amount` to the memory of stages `first` .. `last`."""
    state.number[EXCESS] += excess_change(state, first, last, amount)
    memory, lazy, low, high = state.memory, state.lazy, state.low, state.high
    s = first
    while s <= last:
        block = s // BLOCK
        end = min((block + 1) * BLOCK, len(memory))
        if s == block * BLOCK and last + 1 >= end:
            lazy[block] += amount
            low[block] += amount
            high[block] += amount
        else:
            for i in range(s, min(end, last + 1)):
                memory[i] += amount
            measure(memory, lazy, low, high, block)
        s = end


@inner
def measure(memory, lazy, low, high, block):
    """Update the least and largest memory of a block."""
    first = block * BLOCK
    least = most = memory[first]
    for i in range(first + 1, min(first + BLOCK, len(memory))):
        least, most = min(least, memory[i]), max(most, memory[i])
    low[block], high[block] = least + lazy[block], most + lazy[block]


@inner
def find_last_places(net, state, stage):
    """Set `last_at` for the tensors of a stage, and return the bytes that they hold at its start.

    The value is the index of the last step that uses the tensor, or -1 if the tensor outlives the stage.
    """
    state.number[TOKEN] += 1
    token = state.number[TOKEN]
    last_at, stamp = state.last_at, state.tensor_stamp
    live = 0
    node, final = state.first[stage], stage < len(net.order)
    place = 0
    while node >= 0 or final:
        op = state.node_op[node] if node >= 0 else net.order[stage]
        for side in range(2):
            low, high = (net.in_ptr[op], net.in_ptr[op + 1]) if side == 0 else (net.out_ptr[op], net.out_ptr[op + 1])
            for k in range(low, high):
                tensor = net.inputs[k] if side == 0 else net.outputs[k]
                if stamp[tensor] != token:
                    stamp[tensor] = token
                    start, limit = instance(net, state, tensor, stage)
                    if last_use(net, state, tensor, start, limit) > stage:
                        last_at[tensor] = -1
                        continue
                    if start < stage:
                        live += net.size[tensor]
                    last_at[tensor] = place
                elif last_at[tensor] >= 0:
                    last_at[tensor] = place
        place += 1
        if node < 0:
            break
        node = state.node_next[node]
    return live


@inner
def stage_peak(net, state, stage):
    """Return the peak of the steps of a stage, without tensors that live through all of it."""
    live, last_at = find_last_places(net, state, stage), state.last_at
    final = stage < len(net.order)
    peak = place = 0
    node = state.first[stage]
    while node >= 0 or final:
        op = state.node_op[node] if node >= 0 else net.order[stage]
        for k in range(net.out_ptr[op], net.out_ptr[op + 1]):
            tensor = net.outputs[k]
            if net.writer[tensor] >= 0 or net.begin[tensor] == stage:
                live += net.size[tensor]
        peak = max(peak, live + net.workspace[op])
        for k in range(net.in_ptr[op], net.in_ptr[op + 1]):
            if last_at[net.inputs[k]] == place:
                live -= net.size[net.inputs[k]]
        for k in range(net.out_ptr[op], net.out_ptr[op + 1]):
            if last_at[net.outputs[k]] == place:
                live -= net.size[net.outputs[k]]
        place += 1
        if node < 0:
            break
        node = state.node_next[node]
    return peak


@inner
def settle(net, state, stage):
    """Update the memory of a stage in which an instance begins or ends, or did before."""
    peak = stage_peak(net, state, stage)
    if peak != state.inner[stage]:
        amount = peak - state.inner[stage]
        state.inner[stage] = peak
        add(state, stage, stage, amount)


@kernel
def start(net, state):
    """Compute the memory of the schedule from `runs`, `times` and the lists."""
    stages = len(net.order) + 1
    memory = state.memory
    for s in range(len(memory)):
        memory[s] = 0
    state.number[EXCESS] = 0
    for tensor in range(len(net.size)):
        if net.writer[tensor] < 0 and net.begin[tensor] < 0:
            continue
        op = net.writer[tensor]
        for j in range(1 if op < 0 else state.times[op]):
            begin = net.begin[tensor] if op < 0 else np.int64(state.runs[op, j])
            limit: Any = np.int64(state.runs[op, j + 1]) if op >= 0 and j + 1 < state.times[op] else stages
            end = last_use(net, state, tensor, begin, limit)
            if end > begin + 1:
                memory[begin + 1] += net.size[tensor]
                memory[end] -= net.size[tensor]
    for s in range(1, stages):
        memory[s] += memory[s - 1]
    for s in range(stages):
        state.inner[s] = stage_peak(net, state, s)
        memory[s] += state.inner[s]
        state.number[EXCESS] += max(0, memory[s] - state.number[BUDGET])
    for block in range(len(state.lazy)):
        state.lazy[block] = 0
        measure(memory, state.lazy, state.low, state.high, block)


@inner
def shift(net, state, tensor, begin, old, new):
    """Move the end of the instance of `tensor` that begins in stage `begin` from `old` to `new`."""
    if new > old:
        add(state, max(old, begin + 1), new - 1, net.size[tensor])
    elif old > new:
        add(state, max(new, begin + 1), old - 1, -net.size[tensor])


@inner
def change(net, state, op, stage, what):
    """Add (`ADD`) or remove (`TAKE`) a recomputation of `op` in `stage`, without checks."""
    adding = what > 0
    num_in, num_out = net.in_ptr[op + 1] - net.in_ptr[op], net.out_ptr[op + 1] - net.out_ptr[op]
    begins, ends, limits = state.begins, state.ends, state.limits
    for i in range(num_in):
        tensor = net.inputs[net.in_ptr[op] + i]
        begins[i], limits[i] = instance(net, state, tensor, stage)
        ends[i] = last_use(net, state, tensor, begins[i], limits[i])
    runs, times = state.runs, state.times
    after = times[op]  # the first run after this one
    while runs[op, after - 1] > stage:
        after -= 1
    following = np.int64(runs[op, after]) if after < times[op] else len(net.order) + 1
    if not adding:
        after -= 1  # index of the run itself
    previous = np.int64(runs[op, after - 1])
    for i in range(num_out):
        tensor = net.outputs[net.out_ptr[op] + i]
        here = last_use(net, state, tensor, stage, following)
        before = last_use(net, state, tensor, previous, stage)
        whole = last_use(net, state, tensor, previous, following)
        if adding:
            shift(net, state, tensor, previous, whole, before)
            shift(net, state, tensor, stage, stage, here)
        else:
            shift(net, state, tensor, stage, here, stage)
            shift(net, state, tensor, previous, before, whole)
        begins[num_in + i], ends[num_in + i] = before, here
    if adding:
        for j in range(times[op], after, -1):
            runs[op, j] = runs[op, j - 1]
        runs[op, after] = stage
        times[op] += 1
        _link(net, state, op, stage)
    else:
        times[op] -= 1
        for j in range(after, times[op]):
            runs[op, j] = runs[op, j + 1]
        _unlink(state, op, stage)
    for i in range(num_in):
        tensor = net.inputs[net.in_ptr[op] + i]
        end = last_use(net, state, tensor, begins[i], limits[i])
        if end != ends[i]:
            shift(net, state, tensor, begins[i], ends[i], end)
            settle(net, state, ends[i])
            if end != stage:
                settle(net, state, end)
    for i in range(num_in, num_in + num_out):
        settle(net, state, begins[i])
        settle(net, state, ends[i])
    settle(net, state, previous)
    settle(net, state, stage)


@inner
def _link(net, state, op, stage):
    node = state.number[FREE]
    state.number[FREE] = state.node_next[node]
    state.number[LEFT] -= 1
    state.node_op[node] = op
    before, following = -1, state.first[stage]
    while following >= 0 and net.position[state.node_op[following]] < net.position[op]:
        before, following = following, state.node_next[following]
    state.node_next[node] = following
    if before < 0:
        state.first[stage] = node
    else:
        state.node_next[before] = node


@inner
def _unlink(state, op, stage):
    before, node = -1, state.first[stage]
    while state.node_op[node] != op:
        before, node = node, state.node_next[node]
    if before < 0:
        state.first[stage] = state.node_next[node]
    else:
        state.node_next[before] = state.node_next[node]
    state.node_next[node] = state.number[FREE]
    state.number[FREE] = node
    state.number[LEFT] += 1
