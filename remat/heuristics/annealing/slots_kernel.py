"""Kernels of annealing: the state, and its memory when ops run in other slots.

Time is an array of slots, each of which holds an op or nothing. An instance of a tensor lives from the slot of its
compute to its last read before the op runs again. Two numbers summarize the memory over all slots: its peak, and the
soft excess, the sum of exp((memory - budget) / tau), to which every slot near the peak contributes. Both are known for
blocks of about sqrt(N) of the N slots, at most 256. So a change costs O(sqrt(N)) up to 60,000 slots, in loops that the
compiler vectorizes.

A change begins with :func:`begin`. Move ops with :func:`insert` and :func:`remove`, each after :func:`touch_op`.
:func:`collect` recomputes the lifetimes of the touched tensors and lists the differences in memory, and
:func:`evaluate` returns peak and soft excess. Then either :func:`keep` makes the change final, or the caller restores
the slots.
"""

# numba's compiled functions carry no types, and their arguments hold the whole state.
# ruff: noqa: PLR0917
# mypy: allow-untyped-defs

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from remat.runtime.arrays import Float, Int, Int32
from remat.runtime.compiled import inlined, kernel, reordered

#: Fields of `SlotSchedule.number`.
COST, BEST, REPEATED, TOUCHED, STAMP, PEAK, EVENTS, BITS, CHANGED, NUMBERS = range(10)
#: Signs of changes. Floats, since numba compiles a function again for each integer constant it is called with.
COMES, GOES = 1.0, -1.0
#: Share of the soft excess that may go in a change without a sum of what stays.
MOST_GONE = 1 - 1e-6
#: Largest exponent with which the soft excess is filled, well below overflow.
LARGEST = 500.0


#: Columns of `SlotGraph.ops`; a row of a table (`INPUTS` and so on) spans this row's value to the next row's.
OP_COST, WORKSPACE, INPUTS, OUTPUTS, BEFORE, AFTER, LIMIT, ORDER, POSITION, OP_COLUMNS = range(10)
#: Columns of `SlotGraph.tensors`.
SIZE, WRITERS, READERS, KEPT, TENSOR_COLUMNS = range(5)
#: Columns of `SlotSchedule.ops`, `tensors`, `factors` and `chain`.
RUNS, PLACE, REPEATED_OP = range(3)
INSTANCES, LAST_CHANGE, TOUCHED_TENSOR, NEW_INSTANCES = range(4)
UP, DOWN = range(2)
CHAIN_OP, CHAIN_SLOT, CHAIN_OLD = range(3)
EVENT_SLOT, EVENT_AMOUNT = range(2)


class SlotGraph(NamedTuple):
    """Graph without graph inputs, in few arrays, since each array adds compile time to all functions.

    `ops` has for each op cost, workspace, most runs, position in the reference order, and the op at that position
    (`ORDER`). It also has the indices in `links` where its inputs, outputs, predecessors (`BEFORE`) and successors
    (`AFTER`) begin. `tensors` has for each tensor its size, whether it is kept, and where its writers and readers
    begin. Both have one extra row, the end of the last entries.
    """

    ops: Int
    tensors: Int
    links: Int32


class SlotSchedule(NamedTuple):
    """Schedule, its memory, and room for one change.

    `slots[x, :ops[x, RUNS]]` ascends; `held` is the op in each slot, or -1. `spans[t, i]` are first and last slot of
    the i-th instance of tensor t, which has `tensors[t, INSTANCES]` of them. `ops[:number[REPEATED], REPEATED_OP]`
    lists the ops that run more than once, and the column `PLACE` their indices in this list. `number` is [cost, best
    cost (-1: none), repeated ops, touched tensors, changes so far, peak, events, bits of a slot's index in its block,
    changed slots]. `best` has the ops of the best schedule, and `changed[:number[CHANGED]]` the slots in which the
    present one may differ from it; if it is full, all may.

    `level` and `excess` are memory and soft excess of each slot, without the amount `block_plus` to add and the factor
    `block_times` to multiply in all slots of its block. `block_level` is the highest memory in a block, `block_excess`
    its soft excess, `total` that of all slots. `factors[t]` multiplies the soft excess where t is added or removed.

    `LAST_CHANGE`, the list `TOUCHED_TENSOR`, `new_spans` and `NEW_INSTANCES` belong to the last change; `events` and
    `event_factors` are its differences in memory from a slot on, by slot. `chain` has ops, the slots that they get, and
    those that they leave (-1: none).
    """

    ops: Int32
    tensors: Int
    slots: Int32
    held: Int32
    best: Int32
    changed: Int32
    number: Int
    spans: Int32
    new_spans: Int
    chain: Int
    level: Int
    block_level: Int
    block_plus: Int
    events: Int
    excess: Float
    block_excess: Float
    block_times: Float
    event_factors: Float
    total: Float
    factors: Float


@reordered
def scan(level, excess, first, end):
    """Return the highest memory and the sum of the soft excess of slots or blocks `first` .. `end` - 1."""
    highest, total = level[first], 0.0
    for i in range(np.uint64(first), np.uint64(end)):  # unsigned, else the loop is not vectorized
        here = level[i]
        highest = here if here > highest else highest
        total += excess[i]
    return highest, total


@inlined
def event(state, slot, amount, factor):
    """Insert a difference in memory from `slot` on into the events, which ascend by slot."""
    events, factors = state.events, state.event_factors
    i = state.number[EVENTS]
    while i > 0 and events[EVENT_SLOT, i - 1] > slot:
        events[EVENT_SLOT, i], events[EVENT_AMOUNT, i] = events[EVENT_SLOT, i - 1], events[EVENT_AMOUNT, i - 1]
        factors[i] = factors[i - 1]
        i -= 1
    events[EVENT_SLOT, i], events[EVENT_AMOUNT, i], factors[i] = slot, amount, factor
    state.number[EVENTS] += 1


@inlined
def change(net, state, tensor, first, last, sign):
    """Add (`COMES`) or remove (`GOES`) `tensor` in slots `first` .. `last`."""
    size = net.tensors[tensor, SIZE]
    up, down = state.factors[tensor, UP], state.factors[tensor, DOWN]
    if sign > 0:
        event(state, first, size, up)
        event(state, last + 1, -size, down)
    else:
        event(state, first, -size, down)
        event(state, last + 1, size, up)


@inlined
def work(net, state, op, slot, sign, tau):
    """Add (`COMES`) or remove (`GOES`) the workspace of a run of `op`."""
    if net.ops[op, WORKSPACE] > 0:
        amount = net.ops[op, WORKSPACE] if sign > 0 else -net.ops[op, WORKSPACE]
        event(state, slot, amount, math.exp(amount / tau))
        event(state, slot + 1, -amount, math.exp(-amount / tau))


@inlined
def scan_slots(state, first, end):
    """Return the highest memory and the soft excess of slots `first` .. `end` - 1, without events."""
    bits = state.number[BITS]
    highest, soft, slot = np.int64(0), 0.0, first
    while slot < end:
        block = slot >> bits
        if slot & ((1 << bits) - 1) == 0 and block < end >> bits:  # whole blocks
            level, total = scan(state.block_level, state.block_excess, block, end >> bits)
            slot = (end >> bits) << bits
        else:
            until = min(end, (block + 1) << bits)
            level, total = scan(state.level, state.excess, slot, until)
            level += state.block_plus[block]
            total *= state.block_times[block]
            slot = until
        highest, soft = max(highest, level), soft + total
    return highest, soft


@inlined
def evaluate(state):
    """Return the peak and the soft excess after the events.

    What stays is read only if the peak may fall, or nearly all of the soft excess goes: a difference would be inexact.
    """
    number, events = state.number, state.events
    before, after, gone, come = np.int64(0), np.int64(0), 0.0, 0.0
    for stays in range(2):
        slot, plus, times = 0, np.int64(0), 1.0
        for k in range(number[EVENTS] + 1):
            end = events[EVENT_SLOT, k] if k < number[EVENTS] else len(state.held)
            if slot < end and (plus == 0) == (stays == 1):
                level, total = scan_slots(state, slot, end)
                before, after = max(before, level), max(after, level + plus)
                gone, come = gone + total, come + total * times
            if k < number[EVENTS]:
                plus += events[EVENT_AMOUNT, k]
                times = times * state.event_factors[k] if plus != 0 else 1.0  # not the product of rounded factors
            slot = end
        falls = before == number[PEAK] and after < before
        if stays == 0 and not falls and gone <= MOST_GONE * state.total[0]:
            return max(number[PEAK], after), state.total[0] - gone + come
    return after, come


@inlined
def renew(state, block):
    """Recompute highest memory and soft excess of a block from its slots."""
    bits = state.number[BITS]
    highest, total = scan(state.level, state.excess, block << bits, (block + 1) << bits)
    state.block_level[block] = highest + state.block_plus[block]
    state.block_excess[block] = total * state.block_times[block]


@inlined
def raise_memory(state, first, end, plus, times):
    """Add `plus` to the memory of slots `first` .. `end` - 1, and multiply their soft excess by `times`."""
    bits = state.number[BITS]
    slot = first
    while slot < end:
        block = slot >> bits
        until = min(end, (block + 1) << bits)
        if until - slot == 1 << bits:
            state.block_level[block] += plus
            state.block_plus[block] += plus
            state.block_excess[block] *= times
            state.block_times[block] *= times
        else:
            for i in range(np.uint64(slot), np.uint64(until)):
                state.level[i] += plus
                state.excess[i] *= times
            renew(state, block)
        slot = until


@inlined
def find_spans(net, state, tensor, spans, row):
    """Write the instances of `tensor` into a row of `spans`, from the slots; return their number."""
    slots = state.slots
    first_writer, end_writer = net.tensors[tensor, WRITERS], net.tensors[tensor + 1, WRITERS]
    writer = net.links[first_writer]
    last = state.ops[writer, RUNS] - 1
    for i in range(last + 1):
        spans[row, i, 0] = slots[writer, i]
        spans[row, i, 1] = slots[writer, i]
    if end_writer - first_writer > 1:  # an accumulation buffer has one instance, from the first contribution on
        last = 0
        for k in range(first_writer + 1, end_writer):
            slot = slots[net.links[k], 0]
            spans[row, 0, 0] = min(spans[row, 0, 0], slot)
            spans[row, 0, 1] = max(spans[row, 0, 1], slot)
    for k in range(net.tensors[tensor, READERS], net.tensors[tensor + 1, READERS]):
        reader = net.links[k]
        i = last
        for j in range(state.ops[reader, RUNS] - 1, -1, -1):
            slot = slots[reader, j]
            while i > 0 and spans[row, i, 0] > slot:
                i -= 1
            spans[row, i, 1] = max(spans[row, i, 1], slot)
            if i == 0:  # earlier reads belong to the same instance
                break
    if net.tensors[tensor, KEPT]:
        spans[row, last, 1] = len(state.held) - 1
    return last + 1


@inlined
def compare_spans(net, state, tensor, row, num_new):
    """List the differences in memory between the instances of `tensor` and those in a row of `new_spans`."""
    old, new, num_old = state.spans, state.new_spans, state.tensors[tensor, INSTANCES]
    i = j = 0
    while i < num_old or j < num_new:
        if i == num_old or (j < num_new and new[row, j, 1] < old[tensor, i, 0]):
            change(net, state, tensor, new[row, j, 0], new[row, j, 1], COMES)
            j += 1
        elif j == num_new or old[tensor, i, 1] < new[row, j, 0]:
            change(net, state, tensor, old[tensor, i, 0], old[tensor, i, 1], GOES)
            i += 1
        else:  # they overlap
            first, last = old[tensor, i, 0], old[tensor, i, 1]
            start, end = new[row, j, 0], new[row, j, 1]
            if start < first:
                change(net, state, tensor, start, first - 1, COMES)
            elif first < start:
                change(net, state, tensor, first, start - 1, GOES)
            if end > last:
                change(net, state, tensor, last + 1, end, COMES)
            elif end < last:
                change(net, state, tensor, end + 1, last, GOES)
            i += 1
            j += 1


@inlined
def begin(state):
    """Start a change."""
    state.number[TOUCHED] = 0
    state.number[STAMP] += 1


@inlined
def touch_op(net, state, op, slot, sign):
    """Mark the tensors whose memory may change if a run of `op` comes to or goes from `slot`.

    A read matters only if it ends an instance, or comes after its end.
    """
    for k in range(net.ops[op, INPUTS], net.ops[op + 1, INPUTS]):
        tensor = net.links[k]
        end = state.spans[tensor, max(0, instance_before(state, tensor, slot)), 1]
        if end < slot or (sign < 0 and end == slot):
            touch(state, tensor)
    for k in range(net.ops[op, OUTPUTS], net.ops[op + 1, OUTPUTS]):
        touch(state, net.links[k])


@inlined
def instance_before(state, tensor, slot):
    """Return the last instance of `tensor` that begins before `slot`; -1: none."""
    i = state.tensors[tensor, INSTANCES] - 1
    while i >= 0 and state.spans[tensor, i, 0] >= slot:
        i -= 1
    return i


@inlined
def touch(state, tensor):
    """Mark `tensor` as touched, once per change."""
    if state.tensors[tensor, LAST_CHANGE] != state.number[STAMP]:
        state.tensors[tensor, LAST_CHANGE] = state.number[STAMP]
        state.tensors[state.number[TOUCHED], TOUCHED_TENSOR] = tensor
        state.number[TOUCHED] += 1


@inlined
def collect(net, state):
    """Find the new instances of touched tensors in the slots, and list the differences in memory."""
    state.number[EVENTS] = 0
    for row in range(state.number[TOUCHED]):
        tensor = state.tensors[row, TOUCHED_TENSOR]
        count = find_spans(net, state, tensor, state.new_spans, row)
        state.tensors[row, NEW_INSTANCES] = count
        compare_spans(net, state, tensor, row, count)


@inlined
def keep(state, peak, soft):
    """Make the change final; `peak` and `soft` as returned by :func:`evaluate`."""
    number, events = state.number, state.events
    for row in range(number[TOUCHED]):
        tensor, count = state.tensors[row, TOUCHED_TENSOR], state.tensors[row, NEW_INSTANCES]
        state.tensors[tensor, INSTANCES] = count
        for i in range(count):
            state.spans[tensor, i, 0] = state.new_spans[row, i, 0]
            state.spans[tensor, i, 1] = state.new_spans[row, i, 1]
    number[PEAK], state.total[0] = peak, soft
    plus, times = np.int64(0), 1.0
    for k in range(number[EVENTS]):
        plus += events[EVENT_AMOUNT, k]
        times *= state.event_factors[k]
        if plus == 0:  # not the product of rounded factors
            times = 1.0
        elif k + 1 < number[EVENTS] and events[EVENT_SLOT, k] < events[EVENT_SLOT, k + 1]:
            raise_memory(state, events[EVENT_SLOT, k], min(events[EVENT_SLOT, k + 1], len(state.held)), plus, times)


@inlined
def insert(state, op, slot):
    """Add `slot` to the slots of `op`."""
    slots, i = state.slots, state.ops[op, RUNS]
    while i > 0 and slots[op, i - 1] > slot:
        slots[op, i] = slots[op, i - 1]
        i -= 1
    slots[op, i] = slot
    state.ops[op, RUNS] += 1
    state.held[slot] = op


@inlined
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


@inlined
def note_slot(state, slot):
    """List a slot in which the schedule may now differ from the best one."""
    if state.number[CHANGED] < len(state.changed):
        state.changed[state.number[CHANGED]] = slot
        state.number[CHANGED] += 1


@inlined
def note_best(state):
    """Make the schedule the best one."""
    number = state.number
    number[BEST] = number[COST]
    if number[CHANGED] < len(state.changed):
        for k in range(number[CHANGED]):
            state.best[state.changed[k]] = state.held[state.changed[k]]
    else:
        for slot in range(len(state.held)):
            state.best[slot] = state.held[slot]
    number[CHANGED] = 0


@inlined
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


@inlined
def plant(net, state, budget, tau):
    """Recompute memory and soft excess for this `tau` (bytes) from the rest of the state."""
    level, num_slots = state.level, len(state.held)
    for slot in range(num_slots):
        level[slot] = 0
    for tensor in range(len(net.tensors) - 1):
        size = net.tensors[tensor, SIZE]
        state.factors[tensor, UP], state.factors[tensor, DOWN] = math.exp(size / tau), math.exp(-size / tau)
        for i in range(state.tensors[tensor, INSTANCES]):
            level[state.spans[tensor, i, 0]] += size
            if state.spans[tensor, i, 1] + 1 < num_slots:
                level[state.spans[tensor, i, 1] + 1] -= size
    held = 0
    for slot in range(num_slots):
        held += level[slot]
        level[slot] = held
        if state.held[slot] >= 0:
            level[slot] += net.ops[state.held[slot], WORKSPACE]
        state.excess[slot] = math.exp(min(LARGEST, (level[slot] - budget) / tau))
    for block in range(len(state.block_level)):
        state.block_plus[block], state.block_times[block] = 0, 1.0
        renew(state, block)
    state.number[PEAK], state.total[0] = scan(state.block_level, state.block_excess, 0, len(state.block_level))


@kernel
def fill(net, state, budget, tau):
    """Fill in all fields but the best schedule from `slots` and `runs`; `tau` (bytes) as in :func:`plant`."""
    number = state.number
    number[COST] = number[REPEATED] = 0
    number[CHANGED] = len(state.changed)
    for slot in range(len(state.held)):
        state.held[slot] = -1
    for op in range(len(net.ops) - 1):
        state.ops[op, PLACE] = -1
        for i in range(state.ops[op, RUNS]):
            state.held[state.slots[op, i]] = op
            number[COST] += net.ops[op, OP_COST]
        note_repeated(state, op)
    for k in range(net.ops[0, OUTPUTS], net.ops[len(net.ops) - 1, OUTPUTS]):
        tensor = net.links[k]
        state.tensors[tensor, INSTANCES] = find_spans(net, state, tensor, state.spans, tensor)
    plant(net, state, budget, tau)
