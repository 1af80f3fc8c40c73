"""Kernels of annealing: the state, and updates of its memory when ops run in other slots.

Time is an array of slots, each of which holds an op or nothing. An instance of a tensor lives from the slot of its
compute to its last read before the op runs again. Two numbers summarize the memory over all slots: its peak, and the
soft excess log(1 + sum of exp((memory - budget) / tau)), to which every slot near the peak contributes. A segment tree
has both at its root; changing a range costs O(log N) for N slots.

A change has four steps. After :func:`begin`, move ops with :func:`insert` and :func:`remove`, each after
:func:`touch_op`. :func:`apply` recomputes the lifetimes of the touched tensors and changes the tree only where they
differ. :func:`undo` reverts the tree once the slots are restored.
"""

# numba's compiled functions carry no types, and their arguments hold the whole state.
# ruff: noqa: PLR0917
# mypy: allow-untyped-defs

from __future__ import annotations

import math
from typing import NamedTuple

from remat.runtime.arrays import Float, Int
from remat.runtime.compiled import inner, kernel

#: Fields of a node of the tree: highest memory below it, amount to add to that of its children, soft excess below it,
#: and factor to apply to that of its children.
HIGHEST, PLUS, SOFT, TIMES = range(4)
#: Fields of `SlotSchedule.number`.
COST, BEST, REPEATED, TOUCHED, STAMP = range(5)
#: Signs of changes. Floats, since numba compiles a function again for each integer constant it is called with.
COMES, GOES = 1.0, -1.0
#: Largest exponent with which the tree is filled, well below overflow.
LARGEST = 500.0


#: Columns of `SlotGraph.ops`; a row of a table (`INPUTS` and so on) spans this row's value to the next row's.
OP_COST, WORKSPACE, INPUTS, OUTPUTS, BEFORE, AFTER, LIMIT, ORDER, POSITION, OP_COLUMNS = range(10)
#: Columns of `SlotGraph.tensors`.
SIZE, WRITERS, READERS, KEPT, TENSOR_COLUMNS = range(5)
#: Columns of `SlotSchedule.ops`, `tensors`, `factors` and `chain`.
RUNS, PLACE, REPEATED_OP = range(3)
INSTANCES, LAST_CHANGE, TOUCHED_TENSOR, OLD_INSTANCES = range(4)
UP, DOWN = range(2)
CHAIN_OP, CHAIN_SLOT = range(2)


class SlotGraph(NamedTuple):
    """Graph without graph inputs, in few arrays, since each array adds compile time to all functions.

    `ops` has for each op cost, workspace, most runs, position in the reference order, and the op at that position
    (`ORDER`). It also has the indices in `links` where its inputs, outputs, predecessors (`BEFORE`) and successors
    (`AFTER`) begin. `tensors` has for each tensor its size, whether it is kept, and where its writers and readers
    begin. Both have one extra row, the end of the last entries.
    """

    ops: Int
    tensors: Int
    links: Int


class SlotSchedule(NamedTuple):
    """Schedule, its memory, and room for one change.

    `slots[x, :ops[x, RUNS]]` ascends; `held` is the op in each slot, or -1. `spans[t, i]` are first and last slot of
    the i-th instance of tensor t, which has `tensors[t, INSTANCES]` of them. `tree` has a row for each node, the leaves
    last. `factors[t]` multiplies the soft excess where t is added or removed. `ops[:number[2], REPEATED_OP]` lists the
    ops that run more than once, and the column `PLACE` their indices in this list. `number` is [cost, best cost (-1:
    none), repeated ops, touched tensors, changes so far]. `LAST_CHANGE`, the list `TOUCHED_TENSOR`, `old_spans` and
    `OLD_INSTANCES` belong to the last change, `chain` has ops and slots of the last recomputations.
    """

    ops: Int
    tensors: Int
    slots: Int
    held: Int
    best: Int
    number: Int
    spans: Int
    old_spans: Int
    chain: Int
    tree: Float
    factors: Float


@inner
def pull(tree, node):
    """Update a node from its children."""
    left, right = tree[2 * node, HIGHEST], tree[2 * node + 1, HIGHEST]
    tree[node, HIGHEST] = (left if left > right else right) + tree[node, PLUS]
    tree[node, SOFT] = (tree[2 * node, SOFT] + tree[2 * node + 1, SOFT]) * tree[node, TIMES]


@inner
def add(tree, first, last, amount, factor):
    """Add `amount` to the memory of slots `first` .. `last`, and multiply their soft excess by `factor`."""
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
    """Add (`COMES`) or remove (`GOES`) `tensor` in slots `first` .. `last`."""
    factor = state.factors[tensor, UP] if sign > 0 else state.factors[tensor, DOWN]
    add(state.tree, first, last, sign * net.tensors[tensor, SIZE], factor)


@inner
def work(net, state, op, slot, sign, tau):
    """Add (`COMES`) or remove (`GOES`) the workspace of a run of `op`."""
    if net.ops[op, WORKSPACE] > 0:
        amount = sign * net.ops[op, WORKSPACE]
        add(state.tree, slot, slot, amount, math.exp(amount / tau))


@inner
def update_spans(net, state, tensor):
    """Recompute the instances of `tensor` from the slots."""
    slots, spans = state.slots, state.spans
    first_writer, end_writer = net.tensors[tensor, WRITERS], net.tensors[tensor + 1, WRITERS]
    writer = net.links[first_writer]
    last = state.ops[writer, RUNS] - 1
    for i in range(last + 1):
        spans[tensor, i, 0] = slots[writer, i]
        spans[tensor, i, 1] = slots[writer, i]
    if end_writer - first_writer > 1:  # an accumulation buffer has one instance, from the first contribution on
        last = 0
        for k in range(first_writer + 1, end_writer):
            slot = slots[net.links[k], 0]
            spans[tensor, 0, 0] = min(spans[tensor, 0, 0], slot)
            spans[tensor, 0, 1] = max(spans[tensor, 0, 1], slot)
    for k in range(net.tensors[tensor, READERS], net.tensors[tensor + 1, READERS]):
        reader = net.links[k]
        i = last
        for j in range(state.ops[reader, RUNS] - 1, -1, -1):
            slot = slots[reader, j]
            while i > 0 and spans[tensor, i, 0] > slot:
                i -= 1
            spans[tensor, i, 1] = max(spans[tensor, i, 1], slot)
            if i == 0:  # earlier reads belong to the same instance
                break
    if net.tensors[tensor, KEPT]:
        spans[tensor, last, 1] = len(state.held) - 1
    state.tensors[tensor, INSTANCES] = last + 1


@inner
def switch(net, state, tensor, before, after):
    """Change the memory of `tensor` from its instances before to those after, where they differ.

    Both are an array of spans, its row for this tensor, and the number of instances.
    """
    old, i_old, num_old = before
    new, i_new, num_new = after
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
    """Mark all tensors that `op` reads or writes as touched."""
    for k in range(net.ops[op, INPUTS], net.ops[op + 1, INPUTS]):
        touch(state, net.links[k])
    for k in range(net.ops[op, OUTPUTS], net.ops[op + 1, OUTPUTS]):
        touch(state, net.links[k])


@inner
def touch(state, tensor):
    """Mark `tensor` as touched, once per change."""
    if state.tensors[tensor, LAST_CHANGE] != state.number[STAMP]:
        state.tensors[tensor, LAST_CHANGE] = state.number[STAMP]
        state.tensors[state.number[TOUCHED], TOUCHED_TENSOR] = tensor
        state.number[TOUCHED] += 1


@inner
def apply(net, state):
    """Update the memory of touched tensors from the slots, and store their old instances."""
    for k in range(state.number[TOUCHED]):
        tensor = state.tensors[k, TOUCHED_TENSOR]
        count = state.tensors[tensor, INSTANCES]
        state.tensors[k, OLD_INSTANCES] = count
        for i in range(count):
            state.old_spans[k, i, 0] = state.spans[tensor, i, 0]
            state.old_spans[k, i, 1] = state.spans[tensor, i, 1]
        update_spans(net, state, tensor)
        after = state.spans, tensor, state.tensors[tensor, INSTANCES]
        switch(net, state, tensor, (state.old_spans, k, count), after)


@inner
def undo(net, state):
    """Restore the memory from before :func:`apply`."""
    for k in range(state.number[TOUCHED] - 1, -1, -1):
        tensor, count = state.tensors[k, TOUCHED_TENSOR], state.tensors[k, OLD_INSTANCES]
        before = state.spans, tensor, state.tensors[tensor, INSTANCES]
        switch(net, state, tensor, before, (state.old_spans, k, count))
        state.tensors[tensor, INSTANCES] = count
        for i in range(count):
            state.spans[tensor, i, 0] = state.old_spans[k, i, 0]
            state.spans[tensor, i, 1] = state.old_spans[k, i, 1]


@inner
def insert(state, op, slot):
    """Add `slot` to the slots of `op`."""
    slots, i = state.slots, state.ops[op, RUNS]
    while i > 0 and slots[op, i - 1] > slot:
        slots[op, i] = slots[op, i - 1]
        i -= 1
    slots[op, i] = slot
    state.ops[op, RUNS] += 1
    state.held[slot] = op


@inner
def remove(state, op, slot):
    """Remove `slot` from the slots of `op`."""
    slots, i = state.slots, 0
    while slots[op, i] != slot:
        i += 1
    while i + 1 < state.ops[op, RUNS]:
        slots[op, i] = slots[op, i + 1]
        i += 1
    state.ops[op, RUNS] -= 1
    state.held[slot] = -1


@inner
def note_repeated(state, op):
    """Update the list of ops that run more than once."""
    number = state.number
    if state.ops[op, RUNS] > 1 and state.ops[op, PLACE] < 0:
        state.ops[op, PLACE] = number[REPEATED]
        state.ops[number[REPEATED], REPEATED_OP] = op
        number[REPEATED] += 1
    elif state.ops[op, RUNS] == 1 and state.ops[op, PLACE] >= 0:
        number[REPEATED] -= 1
        moved = state.ops[number[REPEATED], REPEATED_OP]
        state.ops[state.ops[op, PLACE], REPEATED_OP] = moved
        state.ops[moved, PLACE] = state.ops[op, PLACE]
        state.ops[op, PLACE] = -1


@inner
def plant(net, state, budget, tau):
    """Rebuild the tree for this `tau` (bytes) from the rest of the state."""
    tree, width = state.tree, len(state.held)
    for node in range(width, 2 * width):
        tree[node, HIGHEST] = 0.0
    for tensor in range(len(net.tensors) - 1):
        size = net.tensors[tensor, SIZE]
        state.factors[tensor, UP], state.factors[tensor, DOWN] = math.exp(size / tau), math.exp(-size / tau)
        for i in range(state.tensors[tensor, INSTANCES]):
            tree[width + state.spans[tensor, i, 0], HIGHEST] += size
            if state.spans[tensor, i, 1] + 1 < width:
                tree[width + state.spans[tensor, i, 1] + 1, HIGHEST] -= size
    level = 0.0
    for slot in range(width):
        level += tree[width + slot, HIGHEST]
        here = level
        if state.held[slot] >= 0:
            here += net.ops[state.held[slot], WORKSPACE]
        tree[width + slot, HIGHEST] = here
        tree[width + slot, SOFT] = math.exp(min(LARGEST, (here - budget) / tau))
        tree[width + slot, PLUS], tree[width + slot, TIMES] = 0.0, 1.0
    for node in range(width - 1, 0, -1):
        tree[node, PLUS], tree[node, TIMES] = 0.0, 1.0
        pull(tree, node)


@kernel
def fill(net, state, budget, tau):
    """Fill in all fields but the best schedule from `slots` and `runs`; `tau` (bytes) as in :func:`plant`."""
    number = state.number
    number[COST] = number[REPEATED] = 0
    for slot in range(len(state.held)):
        state.held[slot] = -1
    for op in range(len(net.ops) - 1):
        state.ops[op, PLACE] = -1
        for i in range(state.ops[op, RUNS]):
            state.held[state.slots[op, i]] = op
            number[COST] += net.ops[op, OP_COST]
        note_repeated(state, op)
    for k in range(net.ops[0, OUTPUTS], net.ops[len(net.ops) - 1, OUTPUTS]):
        update_spans(net, state, net.links[k])
    plant(net, state, budget, tau)
