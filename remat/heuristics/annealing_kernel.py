"""Simulated annealing on the compute sequence: the compiled moves.

Time is an array of slots, each of which holds an op or nothing. An instance of a tensor lives from the slot of its
compute to its last read before the op runs again; it is a range of a segment tree over the slots, whose root is the
peak. A schedule is valid iff every op's first slot lies after the first slots of those it reads from, so moves need no
search. A move touches the inputs and outputs of one op: O(d log N) for d tensors and N slots.
"""

# numba compiles numpy's legacy generator, seeded inside, and no other; compiled functions carry no types.
# ruff: noqa: NPY002, PLR0917
# mypy: allow-untyped-defs

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

Int = NDArray[np.int64]


class Net(NamedTuple):
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


class State(NamedTuple):
    """A schedule: which op each slot holds, the slots of each op, and the memory over the slots.

    `slots[x, :runs[x]]` ascends. `repeated[:number[3]]` are the ops that run more than once and `place` their places
    there. `number` is [cost, area, best cost (-1: none), number of repeated ops, accepted moves].
    """

    slots: Int
    runs: Int
    held: Int
    highest: Int
    lazy: Int
    repeated: Int
    place: Int
    number: Int
    best: Int


COST, AREA, BEST, REPEATED, ACCEPTED = range(5)
#: Longest chain of ancestors that one insertion recomputes, and how far before its use a recomputation is put.
CHAIN, REACH = 48, 256


@njit(cache=True)
def add(state, first, last, amount):
    """Add `amount` to the memory of slots `first` .. `last`."""
    highest, lazy = state.highest, state.lazy
    width = len(state.held)
    left, right = first + width, last + width + 1
    a, b = left, right
    while a < b:
        if a & 1:
            highest[a] += amount
            lazy[a] += amount
            a += 1
        if b & 1:
            b -= 1
            highest[b] += amount
            lazy[b] += amount
        a >>= 1
        b >>= 1
    for node in (left, right - 1):
        node >>= 1
        while node >= 1:
            one, two = highest[2 * node], highest[2 * node + 1]
            highest[node] = (one if one > two else two) + lazy[node]
            node >>= 1


@njit(cache=True)
def hold(net, state, tensor, sign):
    """Add (1) or take away (-1) all instances of `tensor`."""
    width = len(state.held)
    slots, runs = state.slots, state.runs
    amount = sign * net.size[tensor]
    first_writer, end_writer = net.writer_ptr[tensor], net.writer_ptr[tensor + 1]
    writer = net.writers[first_writer]
    instances = runs[writer]
    start = slots[writer, 0]
    if end_writer - first_writer > 1:  # an accumulation buffer: one instance from the first contribution
        instances = 1
        for k in range(first_writer + 1, end_writer):
            start = min(start, slots[net.writers[k], 0])
    for i in range(instances):
        if i > 0:
            start = slots[writer, i]
        limit = slots[writer, i + 1] if i + 1 < instances else width
        end = start
        if net.kept[tensor] and i + 1 == instances:
            end = width - 1
        else:
            for k in range(net.reader_ptr[tensor], net.reader_ptr[tensor + 1]):
                reader = net.readers[k]
                j = runs[reader] - 1
                while j >= 0 and slots[reader, j] >= limit:
                    j -= 1
                if j >= 0 and slots[reader, j] > end:
                    end = slots[reader, j]
        add(state, start, end, amount)
        state.number[AREA] += amount * (end - start + 1)


@njit(cache=True)
def touch(net, state, op, sign):
    """Add or take away everything that depends on when `op` runs, but for its workspace."""
    for k in range(net.in_ptr[op], net.in_ptr[op + 1]):
        hold(net, state, net.inputs[k], sign)
    for k in range(net.out_ptr[op], net.out_ptr[op + 1]):
        hold(net, state, net.outputs[k], sign)


@njit(cache=True)
def put(net, state, op, slot):
    """Let `op` run in the empty `slot` as well."""
    touch(net, state, op, -1)
    insert(state, op, slot)
    touch(net, state, op, 1)
    if net.workspace[op] > 0:
        add(state, slot, slot, net.workspace[op])


@njit(cache=True)
def take(net, state, op, slot):
    """Let `op` not run in `slot`; it must run elsewhere as well, or be put back before anything is asked."""
    touch(net, state, op, -1)
    remove(state, op, slot)
    touch(net, state, op, 1)
    if net.workspace[op] > 0:
        add(state, slot, slot, -net.workspace[op])


@njit(cache=True)
def insert(state, op, slot):
    """Add `slot` to the slots of `op`."""
    slots, i = state.slots, state.runs[op]
    while i > 0 and slots[op, i - 1] > slot:
        slots[op, i] = slots[op, i - 1]
        i -= 1
    slots[op, i] = slot
    state.runs[op] += 1
    state.held[slot] = op


@njit(cache=True)
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


@njit(cache=True)
def shift(net, state, op, old, new):
    """Let `op` run in the empty slot `new` instead of `old`."""
    touch(net, state, op, -1)
    remove(state, op, old)
    insert(state, op, new)
    touch(net, state, op, 1)
    if net.workspace[op] > 0:
        add(state, old, old, -net.workspace[op])
        add(state, new, new, net.workspace[op])


@njit(cache=True)
def empty_near(state, wanted, low, high):
    """The empty slot nearest to `wanted` strictly between `low` and `high`; -1: none."""
    held = state.held
    distance = 0
    while True:
        before, after = wanted - distance, wanted + distance
        if before <= low and after >= high:
            return -1
        if low < before < high and held[before] < 0:
            return before
        if low < after < high and held[after] < 0:
            return after
        distance += 1


@njit(cache=True)
def first_after(net, state, op):
    """The last of the first slots of those `op` reads from: it may run after that."""
    low = -1
    for k in range(net.pred_ptr[op], net.pred_ptr[op + 1]):
        low = max(low, state.slots[net.preds[k], 0])
    return low


@njit(cache=True)
def first_before(net, state, op):
    """The earliest first slot of those that read from `op`: it must have run before that."""
    high = len(state.held)
    for k in range(net.succ_ptr[op], net.succ_ptr[op + 1]):
        high = min(high, state.slots[net.succs[k], 0])
    return high


@njit(cache=True)
def window(net, state, op, i, fixed):
    """Slots between which the i-th run of `op` may be moved, both exclusive."""
    low, high = first_after(net, state, op), len(state.held)
    if i == 0:
        high = first_before(net, state, op)
        if fixed:
            at = net.position[op]
            if at > 0:
                low = max(low, state.slots[net.order[at - 1], 0])
            if at + 1 < len(net.order):
                high = min(high, state.slots[net.order[at + 1], 0])
            if state.runs[op] > 1:
                high = min(high, state.slots[op, 1])
    elif fixed:
        low = max(low, state.slots[op, 0])
    return low, high


@njit(cache=True)
def target(net, state, op, slot, low, high):
    """An empty slot to move a run of `op` to: near by, anywhere, or just before a read of one of its outputs; or -1."""
    how = np.random.random()
    if how < 0.5:
        reach = int((high - low) * 0.05) + 4
        wanted = min(max(slot + np.random.randint(-reach, reach + 1), low + 1), high - 1)
    elif how < 0.75:
        wanted = low + 1 + int(np.random.random() * (high - low - 1))
    else:
        written = net.out_ptr[op + 1] - net.out_ptr[op]
        if written == 0:
            return -1
        tensor = net.outputs[net.out_ptr[op] + np.random.randint(written)]
        read = net.reader_ptr[tensor + 1] - net.reader_ptr[tensor]
        if read == 0:
            return -1
        reader = net.readers[net.reader_ptr[tensor] + np.random.randint(read)]
        wanted = state.slots[reader, np.random.randint(state.runs[reader])] - 1
        if wanted <= low or wanted >= high:
            return -1
    return empty_near(state, wanted, low, high)


@njit(cache=True)
def needed_anyway(net, state, tensor, slot):
    """Whether the instance of `tensor` that lives last before `slot` is read after it, too."""
    writer = net.writers[net.writer_ptr[tensor]]
    j = state.runs[writer] - 1
    while j >= 0 and state.slots[writer, j] > slot:
        j -= 1
    limit = state.slots[writer, j + 1] if j + 1 < state.runs[writer] else len(state.held)
    if net.kept[tensor] and j + 1 == state.runs[writer]:
        return True
    for k in range(net.reader_ptr[tensor], net.reader_ptr[tensor + 1]):
        reader = net.readers[k]
        i = state.runs[reader] - 1
        while i >= 0 and state.slots[reader, i] >= limit:
            i -= 1
        if i >= 0 and state.slots[reader, i] > slot:
            return True
    return False


@njit(cache=True)
def chain(net, state, fixed, again, ops, at):
    """Choose a read and what to recompute for it; marks the slots in `held` and returns how many ops, 0: none."""
    reader = np.random.randint(len(net.cost))
    read = net.in_ptr[reader + 1] - net.in_ptr[reader]
    if read == 0:
        return 0
    tensor = net.inputs[net.in_ptr[reader] + np.random.randint(read)]
    ops[0] = net.writers[net.writer_ptr[tensor]]
    at[0] = state.slots[reader, np.random.randint(state.runs[reader])]
    chosen, done = 1, 0
    while done < chosen:
        op, before = ops[done], at[done]
        good = state.runs[op] < net.limit[op]
        for k in range(done):
            good &= ops[k] != op
        low = max(first_after(net, state, op), before - REACH)
        if fixed:
            low = max(low, state.slots[op, 0])
        slot = empty_near(state, before - 1, low, before) if good and before - 1 > low else -1
        if slot < 0:
            for k in range(done):
                state.held[at[k]] = -1
            return 0
        at[done] = slot
        state.held[slot] = op
        for k in range(net.in_ptr[op], net.in_ptr[op + 1]):
            missing = net.inputs[k]
            writer = net.writers[net.writer_ptr[missing]]
            if (
                net.limit[writer] > 1
                and chosen < CHAIN
                and np.random.random() < again
                and not needed_anyway(net, state, missing, slot)
            ):
                ops[chosen], at[chosen] = writer, slot
                chosen += 1
        done += 1
    return chosen


@njit(cache=True)
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


@njit(cache=True)
def start(net, state):
    """Fill in everything but `slots` and `runs` from these."""
    state.held[:] = -1
    state.highest[:] = 0
    state.lazy[:] = 0
    state.place[:] = -1
    state.number[:] = 0
    state.number[BEST] = -1
    for op in range(len(net.cost)):
        for i in range(state.runs[op]):
            slot = state.slots[op, i]
            state.held[slot] = op
            state.number[COST] += net.cost[op]
            if net.workspace[op] > 0:
                add(state, slot, slot, net.workspace[op])
        note_repeated(state, op)
        for k in range(net.out_ptr[op], net.out_ptr[op + 1]):
            tensor = net.outputs[k]
            if net.writers[net.writer_ptr[tensor]] == op:  # once for each tensor, however many write it
                hold(net, state, tensor, 1)


@njit(cache=True)
def anneal(net, state, seed, moves, budget, fixed, heat, per_byte, per_area, again):
    """Try `moves` moves at temperature `heat` (cost units); returns the share of them that met the budget.

    The energy is cost + per_byte * (bytes above the budget) + per_area * (mean bytes held over all slots).
    """
    np.random.seed(seed)
    number, highest = state.number, state.highest
    width, num_ops = len(state.held), len(net.cost)
    ops, at = np.empty(CHAIN + 1, np.int64), np.empty(CHAIN + 1, np.int64)
    met = 0
    for _ in range(moves):
        over = max(highest[1] - budget, 0)
        met += over == 0
        bar = -heat * math.log(1.0 - np.random.random()) + per_byte * over + per_area * number[AREA] / width
        kind = np.random.random()
        if kind < 0.45:  # move a run
            op = np.random.randint(num_ops)
            i = np.random.randint(state.runs[op])
            old = state.slots[op, i]
            low, high = window(net, state, op, i, fixed)
            if high - low < 2:
                continue
            new = target(net, state, op, old, low, high)
            if new < 0 or new == old:
                continue
            shift(net, state, op, old, new)
            if per_byte * max(highest[1] - budget, 0) + per_area * number[AREA] / width <= bar:
                number[ACCEPTED] += 1
            else:
                shift(net, state, op, new, old)
                continue
        elif kind < 0.75:  # recompute something before a read of it
            length = chain(net, state, fixed, again, ops, at)
            if length == 0:
                continue
            price = 0
            for k in range(length):
                price += net.cost[ops[k]]
            if per_area == 0 and price > bar:  # no gain in memory can pay for it
                for k in range(length):
                    state.held[at[k]] = -1
                continue
            for k in range(length):
                put(net, state, ops[k], at[k])
            if price + per_byte * max(highest[1] - budget, 0) + per_area * number[AREA] / width <= bar:
                number[ACCEPTED] += 1
                number[COST] += price
                for k in range(length):
                    note_repeated(state, ops[k])
            else:
                for k in range(length - 1, -1, -1):
                    take(net, state, ops[k], at[k])
                continue
        else:  # take a recomputation back
            if number[REPEATED] == 0:
                continue
            op = state.repeated[np.random.randint(number[REPEATED])]
            i = np.random.randint(state.runs[op])
            if i == 0 and (fixed or state.slots[op, 1] >= first_before(net, state, op)):
                continue
            old = state.slots[op, i]
            take(net, state, op, old)
            if -net.cost[op] + per_byte * max(highest[1] - budget, 0) + per_area * number[AREA] / width <= bar:
                number[ACCEPTED] += 1
                number[COST] -= net.cost[op]
                note_repeated(state, op)
            else:
                put(net, state, op, old)
                continue
        if highest[1] <= budget and (number[BEST] < 0 or number[COST] < number[BEST]):
            number[BEST] = number[COST]
            state.best[:] = state.held
    return met / moves
