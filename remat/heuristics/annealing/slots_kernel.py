"""Simulated annealing on the compute sequence: the compiled state, and what changes when ops run elsewhere.

Time is an array of slots, each of which holds an op or nothing. An instance of a tensor lives from the slot of its
compute to its last read before the op runs again. Two numbers are wanted of the memory over all slots: its peak, and
the soft excess log(1 + sum of exp((memory - budget) / tau)), to which every slot near the peak contributes. A segment
tree gives both at its root; changing a range costs O(log N) for N slots.

A change goes in four steps: :func:`begin`; move ops with :func:`insert` and :func:`remove`, after :func:`touch_op`;
:func:`apply`, which looks at the lifetimes of the touched tensors again and changes the tree only where they differ;
and :func:`undo` to take it back, once the slots are as they were.
"""

# numba's compiled functions carry no types, and all of the state is in their arguments.
# ruff: noqa: PLR0917
# mypy: allow-untyped-defs

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from remat.compiled import inner, kernel

Int = NDArray[np.int64]
Float = NDArray[np.float64]

#: Fields of a node of the tree: highest memory below it, what is to be added to that of its children, soft excess
#: below it, and what that of its children is to be multiplied with.
HIGHEST, PLUS, SOFT, TIMES = range(4)
#: Fields of `SlotSchedule.number`.
COST, BEST, REPEATED, TOUCHED, STAMP = range(5)
#: Signs of changes. Floats: a function is compiled anew for each integer that it is called with by name or as a number.
COMES, GOES = 1.0, -1.0
#: The largest exponent that the tree is filled with, well below what overflows.
LARGEST = 500.0


class SlotGraph(NamedTuple):
    """The graph, without graph inputs; rows of all tables as in :class:`remat.graphs.arrays.Csr`."""

    size: Int
    cost: Int
    workspace: Int
    in_ptr: Int
    inputs: Int
    out_ptr: Int
    outputs: Int
    writer_ptr: Int
    writers: Int
    reader_ptr: Int
    readers: Int
    pred_ptr: Int
    preds: Int
    succ_ptr: Int
    succs: Int
    kept: NDArray[np.bool_]
    limit: Int
    order: Int
    position: Int


class SlotSchedule(NamedTuple):
    """A schedule, the memory it holds, and room for one change.

    `slots[x, :runs[x]]` ascends; `held` is the op in each slot, or -1. `spans[t, i]` are first and last slot of the
    i-th instance of tensor t, of which there are `instances[t]`. `tree` has a row for each node, the leaves last.
    `up[t]` and `down[t]` are what the soft excess is multiplied with where t comes and goes. `repeated[:number[2]]`
    are the ops that run more than once, and `place` their places there. `number` is [cost, best cost (-1: none),
    repeated ops, touched tensors, changes so far]. `touched`, `stamp`, `old_spans` and `old_instances` are of the last
    change, `chain_ops` and `chain_slots` of the last recomputations.
    """

    slots: Int
    runs: Int
    held: Int
    spans: Int
    instances: Int
    tree: Float
    up: Float
    down: Float
    repeated: Int
    place: Int
    number: Int
    best: Int
    touched: Int
    stamp: Int
    old_spans: Int
    old_instances: Int
    chain_ops: Int
    chain_slots: Int


@inner
def pull(tree, node):
    """Make the numbers of a node from those of its children."""
    left, right = tree[2 * node, HIGHEST], tree[2 * node + 1, HIGHEST]
    tree[node, HIGHEST] = (left if left > right else right) + tree[node, PLUS]
    tree[node, SOFT] = (tree[2 * node, SOFT] + tree[2 * node + 1, SOFT]) * tree[node, TIMES]


@inner
def add(tree, first, last, amount, factor):
    """Add `amount` to the memory of slots `first` .. `last`, whose soft excess becomes `factor` times as much."""
    width = len(tree) >> 1
    a, b = first + width, last + width + 1
    left, right = a >> 1, (b - 1) >> 1
    while a < b:
        if a & 1:
            tree[a, HIGHEST] += amount
            tree[a, PLUS] += amount
            tree[a, SOFT] *= factor
            tree[a, TIMES] *= factor
            a += 1
        if b & 1:
            b -= 1
            tree[b, HIGHEST] += amount
            tree[b, PLUS] += amount
            tree[b, SOFT] *= factor
            tree[b, TIMES] *= factor
        a >>= 1
        b >>= 1
    while left != right:
        pull(tree, left)
        pull(tree, right)
        left >>= 1
        right >>= 1
    while left >= 1:
        pull(tree, left)
        left >>= 1


@inner
def change(net, state, tensor, first, last, sign):
    """Let `tensor` be there (`COMES`) or no longer (`GOES`) in slots `first` .. `last`."""
    add(state.tree, first, last, sign * net.size[tensor], state.up[tensor] if sign > 0 else state.down[tensor])


@inner
def work(net, state, op, slot, sign, tau):
    """Add (`COMES`) or take away (`GOES`) the workspace of a run of `op`."""
    if net.workspace[op] > 0:
        amount = sign * net.workspace[op]
        add(state.tree, slot, slot, amount, math.exp(amount / tau))


@inner
def look(net, state, tensor):
    """Fill in the instances of `tensor` from the slots."""
    slots, runs, spans = state.slots, state.runs, state.spans
    first_writer, end_writer = net.writer_ptr[tensor], net.writer_ptr[tensor + 1]
    writer = net.writers[first_writer]
    last = runs[writer] - 1
    for i in range(last + 1):
        spans[tensor, i, 0] = slots[writer, i]
        spans[tensor, i, 1] = slots[writer, i]
    if end_writer - first_writer > 1:  # an accumulation buffer: one instance from the first contribution on
        last = 0
        for k in range(first_writer + 1, end_writer):
            slot = slots[net.writers[k], 0]
            spans[tensor, 0, 0] = min(spans[tensor, 0, 0], slot)
            spans[tensor, 0, 1] = max(spans[tensor, 0, 1], slot)
    for k in range(net.reader_ptr[tensor], net.reader_ptr[tensor + 1]):
        reader = net.readers[k]
        i = last
        for j in range(runs[reader] - 1, -1, -1):
            slot = slots[reader, j]
            while i > 0 and spans[tensor, i, 0] > slot:
                i -= 1
            spans[tensor, i, 1] = max(spans[tensor, i, 1], slot)
            if i == 0:  # earlier reads are of the same instance
                break
    if net.kept[tensor]:
        spans[tensor, last, 1] = len(state.held) - 1
    state.instances[tensor] = last + 1


@inner
def switch(net, state, tensor, old, i_old, num_old, new, i_new, num_new):
    """Change the memory of `tensor` from the instances `old[i_old]` to `new[i_new]`, where they differ."""
    if num_old == num_new:
        for i in range(num_old):
            first, last = old[i_old, i, 0], old[i_old, i, 1]
            start, end = new[i_new, i, 0], new[i_new, i, 1]
            if last < start or end < first:
                change(net, state, tensor, first, last, GOES)
                change(net, state, tensor, start, end, COMES)
                continue
            if start < first:
                change(net, state, tensor, start, first - 1, COMES)
            elif first < start:
                change(net, state, tensor, first, start - 1, GOES)
            if end > last:
                change(net, state, tensor, last + 1, end, COMES)
            elif end < last:
                change(net, state, tensor, end + 1, last, GOES)
        return
    i = j = 0
    while i < num_old or j < num_new:
        if i < num_old and j < num_new and old[i_old, i, 0] == new[i_new, j, 0]:
            last, end = old[i_old, i, 1], new[i_new, j, 1]
            if end > last:
                change(net, state, tensor, last + 1, end, COMES)
            elif end < last:
                change(net, state, tensor, end + 1, last, GOES)
            i += 1
            j += 1
        elif j == num_new or (i < num_old and old[i_old, i, 0] < new[i_new, j, 0]):
            change(net, state, tensor, old[i_old, i, 0], old[i_old, i, 1], GOES)
            i += 1
        else:
            change(net, state, tensor, new[i_new, j, 0], new[i_new, j, 1], COMES)
            j += 1


@inner
def begin(state):
    """Start a change."""
    state.number[TOUCHED] = 0
    state.number[STAMP] += 1


@inner
def touch_op(net, state, op):
    """Have the lifetimes of everything that `op` reads or writes looked at."""
    for k in range(net.in_ptr[op], net.in_ptr[op + 1]):
        touch(state, net.inputs[k])
    for k in range(net.out_ptr[op], net.out_ptr[op + 1]):
        touch(state, net.outputs[k])


@inner
def touch(state, tensor):
    """Have the lifetimes of `tensor` looked at, once."""
    if state.stamp[tensor] != state.number[STAMP]:
        state.stamp[tensor] = state.number[STAMP]
        state.touched[state.number[TOUCHED]] = tensor
        state.number[TOUCHED] += 1


@inner
def apply(net, state):
    """Bring the memory of touched tensors in line with the slots; what was there is remembered."""
    for k in range(state.number[TOUCHED]):
        tensor = state.touched[k]
        count = state.instances[tensor]
        state.old_instances[k] = count
        for i in range(count):
            state.old_spans[k, i, 0] = state.spans[tensor, i, 0]
            state.old_spans[k, i, 1] = state.spans[tensor, i, 1]
        look(net, state, tensor)
        switch(net, state, tensor, state.old_spans, k, count, state.spans, tensor, state.instances[tensor])


@inner
def undo(net, state):
    """Bring the memory back to what was there before :func:`apply`."""
    for k in range(state.number[TOUCHED] - 1, -1, -1):
        tensor, count = state.touched[k], state.old_instances[k]
        switch(net, state, tensor, state.spans, tensor, state.instances[tensor], state.old_spans, k, count)
        state.instances[tensor] = count
        for i in range(count):
            state.spans[tensor, i, 0] = state.old_spans[k, i, 0]
            state.spans[tensor, i, 1] = state.old_spans[k, i, 1]


@inner
def insert(state, op, slot):
    """Add `slot` to the slots of `op`."""
    slots, i = state.slots, state.runs[op]
    while i > 0 and slots[op, i - 1] > slot:
        slots[op, i] = slots[op, i - 1]
        i -= 1
    slots[op, i] = slot
    state.runs[op] += 1
    state.held[slot] = op


@inner
def remove(state, op, slot):
    """Strike `slot` from the slots of `op`."""
    slots, i = state.slots, 0
    while slots[op, i] != slot:
        i += 1
    while i + 1 < state.runs[op]:
        slots[op, i] = slots[op, i + 1]
        i += 1
    state.runs[op] -= 1
    state.held[slot] = -1


@inner
def note_repeated(state, op):
    """Keep the list of ops that run more than once."""
    number, place = state.number, state.place
    if state.runs[op] > 1 and place[op] < 0:
        place[op] = number[REPEATED]
        state.repeated[number[REPEATED]] = op
        number[REPEATED] += 1
    elif state.runs[op] == 1 and place[op] >= 0:
        number[REPEATED] -= 1
        moved = state.repeated[number[REPEATED]]
        state.repeated[place[op]] = moved
        place[moved] = place[op]
        place[op] = -1


@inner
def plant(net, state, budget, tau):
    """Fill in the tree for this `tau` (bytes) from everything else."""
    tree, width = state.tree, len(state.held)
    for node in range(width, 2 * width):
        tree[node, HIGHEST] = 0.0
    for tensor in range(len(net.size)):
        size = net.size[tensor]
        state.up[tensor], state.down[tensor] = math.exp(size / tau), math.exp(-size / tau)
        for i in range(state.instances[tensor]):
            tree[width + state.spans[tensor, i, 0], HIGHEST] += size
            if state.spans[tensor, i, 1] + 1 < width:
                tree[width + state.spans[tensor, i, 1] + 1, HIGHEST] -= size
    level = 0.0
    for slot in range(width):
        level += tree[width + slot, HIGHEST]
        here = level
        if state.held[slot] >= 0:
            here += net.workspace[state.held[slot]]
        tree[width + slot, HIGHEST] = here
        tree[width + slot, SOFT] = math.exp(min(LARGEST, (here - budget) / tau))
        tree[width + slot, PLUS], tree[width + slot, TIMES] = 0.0, 1.0
    for node in range(width - 1, 0, -1):
        tree[node, PLUS], tree[node, TIMES] = 0.0, 1.0
        pull(tree, node)


@kernel
def fill(net, state, budget, tau):
    """Fill in everything but the best schedule from `slots` and `runs`; `tau` (bytes) as in :func:`plant`."""
    number = state.number
    number[COST] = number[REPEATED] = 0
    for slot in range(len(state.held)):
        state.held[slot] = -1
    for op in range(len(net.cost)):
        state.place[op] = -1
        for i in range(state.runs[op]):
            state.held[state.slots[op, i]] = op
            number[COST] += net.cost[op]
        note_repeated(state, op)
    for k in range(len(net.outputs)):
        look(net, state, net.outputs[k])
    plant(net, state, budget, tau)
