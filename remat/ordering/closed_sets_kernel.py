"""Kernels for closed sets of ops and their successors: level by level, and by lowest peak.

Sets of ops are rows of 64-bit words. The ready ops determine the computed ones, and are the keys of states.
"""

# Compiled functions carry no types.
# mypy: allow-untyped-defs
# Compiled functions are called by position only.
# ruff: noqa: PLR0917, SIM110

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from remat.ordering.words_kernel import FACTOR, ONE, SEQUENCE, SHIFT, TOP
from remat.runtime.arrays import Int
from remat.runtime.compiled import inner, kernel

Array = NDArray[Any]

# Fields of `found`: the next state to expand, states stored, least peak discarded, entries of the heap, and the state
# taken from it last.
NEXT, COUNT, LEFT_OUT, HEAP, TAKEN = range(5)
# Results of `best_first`.
WORKING, FOUND, EMPTY, FULL = range(4)


class Rows(NamedTuple):
    """Sparse table: the entries of row ``r`` are ``entries[at[r]:at[r + 1]]``."""

    at: Int
    entries: Int


class SetTables(NamedTuple):
    """Ordering problem; `before`, `writers` and `users` are sets of ops.

    An op waits for the ops `before` it; the ops `after` it wait for the op. It always allocates `fresh` bytes, and
    `shared` tensors unless one of their `writers` is done; it frees those `touched` tensors whose `users` are all done.
    `digits` belongs to :data:`SEQUENCE`.
    """

    before: Array
    after: Rows
    shared: Rows
    touched: Rows
    writers: Array
    users: Array
    fresh: Int
    workspace: Int
    size: Int
    digits: Int


class States(NamedTuple):
    """Closed sets: ops done and ready as words, live bytes, least peak, and parent state with the op that led there.

    The last row is scratch space for a state that may be discarded.
    """

    done: Array
    ready: Array
    live: Array
    peak: Array
    parent: Array
    op: Array


class Store(NamedTuple):
    """Place of new states: a hash table of them, and the fields :data:`NEXT` to :data:`TAKEN`."""

    states: States
    table: NDArray[np.int32]
    found: Int


class Heap(NamedTuple):
    """States to expand, by rising peak, and the number of ops done in each state."""

    state: Int
    peak: Int
    num_done: Array


@inner
def slot_of(ready, row, table):
    """Return the slot of `table` with the state (plus 1) of the same ready ops as `row`, or the free slot for it."""
    words, last = ready.shape[1], table.shape[0] - 1
    mixed = np.uint64(0)
    for w in range(words):
        mixed = (mixed ^ ready[row, w]) * FACTOR
        mixed ^= mixed >> SHIFT
    slot = np.int64(mixed & np.uint64(last))
    while table[slot] > 0:
        other = table[slot] - 1
        same = True
        for w in range(words):
            if ready[other, w] != ready[row, w]:
                same = False
                break
        if same:
            break
        slot = (slot + 1) & last
    return slot


@kernel
def place(ready, count, table):
    """Put the first rows of `ready`, all different, into an empty table."""
    for row in range(count):
        table[slot_of(ready, row, table)] = row + 1


@inner
def within(small, row, large, other):
    """Return True if a set is a subset of another one."""
    for w in range(small.shape[1]):
        if small[row, w] & ~large[other, w]:
            return False
    return True


@inner
def meets(some, row, large, other):
    """Return True if two sets have an op in common."""
    for w in range(some.shape[1]):
        if some[row, w] & large[other, w]:
            return True
    return False


@inner
def allocated(tables, states, state, op):
    """Return the bytes that are live while `op` runs after a state, without its workspace."""
    size = states.live[state] + tables.fresh[op]
    for k in range(tables.shared.at[op], tables.shared.at[op + 1]):
        tensor = tables.shared.entries[k]
        if not meets(tables.writers, tensor, states.done, state):
            size += tables.size[tensor]
    return size


@inner
def freed(tables, op, done, row):
    """Return the bytes freed after the step of `op`, which is among the ops done then."""
    size = 0
    for k in range(tables.touched.at[op], tables.touched.at[op + 1]):
        tensor = tables.touched.entries[k]
        if within(tables.users, tensor, done, row):
            size += tables.size[tensor]
    return size


@inner
def lowest_op(tables, word, rest):
    """Return the op of the lowest bit of a word, and the bit."""
    bit = rest & (~rest + ONE)
    return word * 64 + tables.digits[np.int64((bit * SEQUENCE) >> TOP)], bit


@inner
def safe_op(tables, states, state):
    """Return a ready op whose step does not exceed the peak so far and that leaves no more bytes; -1: there is none."""
    for w in range(states.ready.shape[1]):
        rest = states.ready[state, w]
        while rest:
            op, bit = lowest_op(tables, w, rest)
            rest ^= bit
            size = allocated(tables, states, state, op)
            if size + tables.workspace[op] <= states.peak[state]:
                states.done[state, w] |= bit
                left = size - freed(tables, op, states.done, state)
                states.done[state, w] ^= bit
                if left <= states.live[state]:
                    return op
    return -1


@inner
def follow(tables, states, state, op, budget, store):
    """Store the state after `op`, or its lower peak; -1 if nothing is new, the peak exceeds the budget, or no room."""
    following, table, found = store
    size = allocated(tables, states, state, op)
    peak = max(states.peak[state], size + tables.workspace[op])
    if peak > budget:
        found[LEFT_OUT] = min(found[LEFT_OUT], peak)
        return -1
    row = found[COUNT]
    for w in range(states.done.shape[1]):
        following.done[row, w] = states.done[state, w]
        following.ready[row, w] = states.ready[state, w]
    following.done[row, op >> 6] |= ONE << np.uint64(op & 63)
    following.ready[row, op >> 6] ^= ONE << np.uint64(op & 63)
    for k in range(tables.after.at[op], tables.after.at[op + 1]):
        other = tables.after.entries[k]
        if within(tables.before, other, following.done, row):
            following.ready[row, other >> 6] |= ONE << np.uint64(other & 63)
    slot = slot_of(following.ready, row, table)
    if table[slot] > 0:
        row = np.int64(table[slot]) - 1
        if following.peak[row] <= peak:
            return -1
    else:
        if row == following.live.shape[0] - 1:
            found[LEFT_OUT] = min(found[LEFT_OUT], peak)
            return -1
        table[slot] = row + 1
        following.live[row] = size - freed(tables, op, following.done, row)
        found[COUNT] = row + 1
    following.peak[row], following.parent[row], following.op[row] = peak, state, op
    return row


@kernel
def expand(tables, states, begin, end, budget, store, narrow):
    """Compute each ready op in the states from `begin` to `end`, and store the results in the next level.

    It stops before a state for which the next level may lack room; ``found[NEXT]`` is that state. In a `narrow` level
    it discards states without room instead, and expands a state by a safe op only.
    """
    found, room = store.found, store.states.live.shape[0] - 1
    for state in range(begin, end):
        found[NEXT] = state
        safe = safe_op(tables, states, state) if narrow else -1
        for w in range(states.ready.shape[1]):
            rest = states.ready[state, w]
            while rest:
                op, bit = lowest_op(tables, w, rest)
                rest ^= bit
                if safe >= 0 and op != safe:
                    continue
                if not narrow and found[COUNT] == room:
                    return
                follow(tables, states, state, op, budget, store)
    found[NEXT] = end


@inner
def before(heap, live, first_peak, first, second_peak, second):
    """Return True if a state comes before another one: lower peak, more ops, fewer bytes."""
    if first_peak != second_peak:
        return first_peak < second_peak
    if heap.num_done[first] != heap.num_done[second]:
        return heap.num_done[first] > heap.num_done[second]
    return live[first] < live[second]


@inner
def push(heap, live, state, peak, found):
    """Add a state with its current peak; an older entry with a higher peak stays in the heap."""
    position = found[HEAP]
    found[HEAP] += 1
    while position > 0:
        above = (position - 1) >> 1
        if not before(heap, live, peak, state, heap.peak[above], heap.state[above]):
            break
        heap.state[position], heap.peak[position] = heap.state[above], heap.peak[above]
        position = above
    heap.state[position], heap.peak[position] = state, peak


@inner
def pop(heap, live, found):
    """Remove and return the first state of the heap."""
    top = heap.state[0]
    found[HEAP] -= 1
    end = found[HEAP]
    last, peak = heap.state[end], heap.peak[end]
    position = 0
    while 2 * position + 1 < end:
        child = 2 * position + 1
        if child + 1 < end and before(
            heap, live, heap.peak[child + 1], heap.state[child + 1], heap.peak[child], heap.state[child]
        ):
            child += 1
        if not before(heap, live, heap.peak[child], heap.state[child], peak, last):
            break
        heap.state[position], heap.peak[position] = heap.state[child], heap.peak[child]
        position = child
    heap.state[position], heap.peak[position] = last, peak
    return top


@kernel
def best_first(tables, budget, heap, store, steps):
    """Expand `steps` states, lowest peak first; the state in ``found[TAKEN]`` is the last one, or a complete order."""
    states, found = store.states, store.found
    num_ops = len(tables.workspace)
    for _ in range(steps):
        if found[HEAP] == 0:
            return EMPTY
        if found[HEAP] + num_ops >= len(heap.state) or found[COUNT] + num_ops >= len(states.live):
            return FULL
        peak = heap.peak[0]
        state = pop(heap, states.live, found)
        if peak != states.peak[state]:  # an outdated entry with a higher peak
            continue
        found[TAKEN] = state
        if heap.num_done[state] == num_ops:
            return FOUND
        safe = safe_op(tables, states, state)
        for w in range(states.ready.shape[1]):
            rest = states.ready[state, w]
            while rest:
                op, bit = lowest_op(tables, w, rest)
                rest ^= bit
                if safe >= 0 and op != safe:
                    continue
                other = follow(tables, states, state, op, budget, store)
                if other >= 0:
                    heap.num_done[other] = heap.num_done[state] + 1
                    push(heap, states.live, other, states.peak[other], found)
    return WORKING
