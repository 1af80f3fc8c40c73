"""Kernels of the live search: states of tensors that must be live, expanded backward by rising bound on their cost.

Sets of tensors and sets of ops are pairs of 64-bit words. Ops are numbered by their place in the reference order, and
tensors by rising price per byte.
"""

# Compiled functions carry no types.
# mypy: allow-untyped-defs
# Compiled functions are called by position only.
# ruff: noqa: PLR0917, PLR0913

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from remat.ordering.words_kernel import NONE, ONE, hashed, number
from remat.runtime.arrays import Bool, Float, Int
from remat.runtime.compiled import inner, kernel

Array = NDArray[Any]

# Fields of `found`: states stored, entries of the heap, states expanded, row of the cheapest schedule (-1: none), cost
# to improve on, and the least total of the states to expand.
COUNT, HEAP, SEEN, BEST, LIMIT, BOUND = range(6)
# Results of `work`: steps are used up, nothing is left below the limit, or there is no room.
MORE, ENDED, FULL = range(3)
#: Prices of a byte at which the inputs of further runs count, as multiples of the price at which the cover is complete.
#: With both, searches of layered graphs of 40 and 60 ops store 21 to 41 % of the states; a third price saves 5 % more.
PRICES = (1.5, 2.5)
#: Relative error of sums over all tensors, at most.
SUMMING = 1e-12
#: Tolerance of costs in floating point.
ROUNDING = 1e-6


class Tables(NamedTuple):
    """Problem as sets.

    `reads`, `writes`, `before`: tensors by op, shape (ops, 2); `before[v]` are those that may have to be live during
    the first run of ``v``, in addition to its inputs and outputs. `between`, shape (ops, ops + 1, 2), contains the
    tensors that ops between two places of a fixed order read. `readers`: ops that read an output of each op, shape
    (ops, 2). `needs`: ops that must run before a tensor is live, shape (tensors, 2), and `end_needs` before a dead end
    has run.

    `room`: bytes for tensors while an op runs; `spare`: those that its inputs and outputs leave. `once[k]` is the cost
    of the first ``k`` ops. `end_of`: number of the dead end that an op is, or -1; `end_op`: ops of the dead ends.

    `price` is the share of a tensor in the cost of its writer. `sizes` and `costs`, shape (16, 256), have the bytes of
    tensors, and the costs of ops, for each octet of two words.

    `repeats`, filled in as it becomes known: least cost of further runs before the end of the first run of each op.

    `digits` belongs to the de Bruijn sequence. `facts`: number of ops, 1 if the order is fixed.
    """

    reads: Array
    writes: Array
    before: Array
    between: Array
    readers: Array
    needs: Array
    end_needs: Array
    room: Int
    spare: Int
    once: Int
    cost: Int
    writer: Int
    end_of: Int
    end_op: Int
    size: Int
    price: Float
    repeats: Int
    sizes: Int
    costs: Int
    digits: Int
    facts: Int


class States(NamedTuple):
    """States, and a hash table of them.

    `low` and `high` are the words of live tensors; `stage` as in :class:`remat.ordering.live_search.LiveSearch`;
    `spent` the cost of the steps that follow; `total` the same and a bound on the cost that precedes. `parent` and `op`
    lead to the state that follows. `closed` marks those that were expanded at their current cost.
    """

    low: Array
    high: Array
    stage: Array
    spent: Int
    total: Int
    parent: NDArray[np.int32]
    op: NDArray[np.int16]
    closed: Bool
    table: NDArray[np.int32]


class Heap(NamedTuple):
    """States to expand, by rising total."""

    state: NDArray[np.int32]
    total: Int


class Scratch(NamedTuple):
    """Arrays of :func:`bound`.

    `later`, shape (ops, 2): tensors read after the first run of each op. `users`, shape (tensors,): number of tensors
    whose writers may run again and read each tensor.
    """

    later: Array
    users: NDArray[np.uint8]


@inner
def sum_of(octets, low, high):
    """Return the sum of the values of the elements of a set."""
    total = np.int64(0)
    for word in range(2):
        rest, place = high if word else low, 8 * word
        while rest:
            total += octets[place, np.int64(rest & np.uint64(255))]
            rest >>= np.uint64(8)
            place += 1
    return total


@inner
def slot_of(states, low, high, stage):
    """Return the slot of the table with a state (plus 1), or the free slot for it."""
    end = states.table.shape[0] - 1
    slot = np.int64(hashed(low, high, stage) & np.uint64(end))
    while states.table[slot] > 0:
        row = states.table[slot] - 1
        if states.low[row] == low and states.high[row] == high and states.stage[row] == stage:
            break
        slot = (slot + 1) & end
    return slot


@inner
def contains(low, high, op):
    """Return True if a set contains an op."""
    return (((high >> np.uint64(op - 64)) if op >= 64 else (low >> np.uint64(op))) & ONE) != NONE


@inner
def with_op(low, high, op):
    """Return a set with one more op."""
    if op < 64:
        return low | (ONE << np.uint64(op)), high
    return low, high | (ONE << np.uint64(op - 64))


@inner
def first_ops(count):
    """Return the set of the first ops."""
    if count >= 128:
        return ~NONE, ~NONE
    if count >= 64:
        return ~NONE, (ONE << np.uint64(count - 64)) - ONE
    return (ONE << np.uint64(count)) - ONE, NONE


@inner
def must_run(tables, low, high, stage):
    """Return the ops that must run before a state with a free order."""
    ops_low, ops_high = NONE, NONE
    for word in range(2):
        rest = high if word else low
        while rest:
            bit = rest & (~rest + ONE)
            rest ^= bit
            tensor = 64 * word + number(tables, bit)
            ops_low |= tables.needs[tensor, 0]
            ops_high |= tables.needs[tensor, 1]
    while stage:
        bit = stage & (~stage + ONE)
        stage ^= bit
        end = number(tables, bit)
        ops_low |= tables.end_needs[end, 0]
        ops_high |= tables.end_needs[end, 1]
    return ops_low, ops_high


@inner
def read_after(tables, later, op, ops_low, ops_high):
    """Store the tensors that ops of a set read that depend on `op`; those of later ops are stored already."""
    low, high = NONE, NONE
    for word in range(2):
        ops = tables.readers[op, word] & (ops_high if word else ops_low)
        while ops:
            bit = ops & (~ops + ONE)
            ops ^= bit
            reader = 64 * word + number(tables, bit)
            low |= tables.reads[reader, 0] | later[reader, 0]
            high |= tables.reads[reader, 1] | later[reader, 1]
    later[op, 0], later[op, 1] = low, high


@inner
def first_of(tables, low, high):
    """Return the first tensor of a set that is not empty, and the others."""
    if low:
        bit = low & (~low + ONE)
        return number(tables, bit), low ^ bit, high
    bit = high & (~high + ONE)
    return 64 + number(tables, bit), low, high ^ bit


@inner
def cheapest_cover(tables, low, high, excess):
    """Return the least cost of runs of the writers of tensors with at least `excess` bytes, in fractions, and the last.

    The last tensor is the one with the highest price per byte.
    """
    value, last = 0.0, 0
    while excess > 0 and (low or high):
        last, low, high = first_of(tables, low, high)
        size = tables.size[last]
        value += tables.price[last] if size <= excess else tables.price[last] * (excess / size)
        excess -= size
    return value, last


@inner
def cover_with_inputs(tables, scratch, held, absent, excess, rate):
    """Return a bound like :func:`cheapest_cover` that includes inputs of the runs, for a price of a byte.

    The runs read tensors among those in `absent`, which are not in `held`. Each is live as well, or its writer runs.
    """
    low, high = held
    absent_low, absent_high = absent
    users = scratch.users
    users[:] = 0
    while low or high:
        tensor, low, high = first_of(tables, low, high)
        if tables.price[tensor] >= rate * tables.size[tensor]:
            break
        writer = tables.writer[tensor]
        read_low, read_high = tables.reads[writer, 0] & absent_low, tables.reads[writer, 1] & absent_high
        while read_low or read_high:
            read, read_low, read_high = first_of(tables, read_low, read_high)
            users[read] += 1
    value = rate * excess * (1 - SUMMING)
    low, high = held
    while low or high:
        tensor, low, high = first_of(tables, low, high)
        cost, worth = tables.price[tensor], rate * tables.size[tensor]
        if cost >= worth:
            break
        writer = tables.writer[tensor]
        read_low, read_high = tables.reads[writer, 0] & absent_low, tables.reads[writer, 1] & absent_high
        while read_low or read_high:
            read, read_low, read_high = first_of(tables, read_low, read_high)
            cost += min(tables.price[read], rate * tables.size[read]) / users[read]
        value -= max(0.0, worth - cost)
    return value


@inner
def bound(tables, scratch, low, high, stage, limit):
    """Return a bound on the cost that precedes a state, at least `limit` as soon as that is certain."""
    fixed = tables.facts[1] == 1
    if fixed:
        ops_low, ops_high = first_ops(np.int64(stage))
        base = tables.once[np.int64(stage)]
    else:
        ops_low, ops_high = must_run(tables, low, high, stage)
        base = sum_of(tables.costs, ops_low, ops_high)
    best = np.int64(0)
    for op in range(tables.facts[0] - 1, -1, -1):
        if base + best >= limit:
            break
        if not contains(ops_low, ops_high, op):
            continue
        if fixed:
            held_low = low | tables.between[op, np.int64(stage), 0]
            held_high = high | tables.between[op, np.int64(stage), 1]
        else:
            read_after(tables, scratch.later, op, ops_low, ops_high)
            held_low, held_high = low | scratch.later[op, 0], high | scratch.later[op, 1]
        held_low &= tables.before[op, 0]
        held_high &= tables.before[op, 1]
        excess = sum_of(tables.sizes, held_low, held_high) - tables.spare[op]
        after = 0.0
        if excess > 0:
            after, last = cheapest_cover(tables, held_low, held_high, excess)
            absent = tables.before[op, 0] & ~held_low, tables.before[op, 1] & ~held_high
            rate = tables.price[last] / tables.size[last]
            for multiple in PRICES:
                more = cover_with_inputs(tables, scratch, (held_low, held_high), absent, excess, multiple * rate)
                after = max(after, more)
        best = max(best, tables.repeats[op] + np.int64(np.ceil(after - ROUNDING * (1 + after))))
    return base + best


@inner
def precedes(states, heap, place, row, total):
    """Return True if an entry of the heap comes before a state, or at the same place: less total, or more spent."""
    other = heap.total[place]
    return other < total or (other == total and states.spent[heap.state[place]] >= states.spent[row])


@inner
def push(states, heap, row, found):
    """Add a state with its current total; older entries remain."""
    position = found[HEAP]
    found[HEAP] += 1
    total = states.total[row]
    while position > 0:
        above = (position - 1) >> 1
        if precedes(states, heap, above, row, total):
            break
        heap.state[position], heap.total[position] = heap.state[above], heap.total[above]
        position = above
    heap.state[position], heap.total[position] = row, total


@inner
def pop(states, heap, found):
    """Remove the first entry of the heap."""
    found[HEAP] -= 1
    end = found[HEAP]
    row, total = heap.state[end], heap.total[end]
    position = 0
    while 2 * position + 1 < end:
        child = 2 * position + 1
        if child + 1 < end and precedes(states, heap, child + 1, heap.state[child], heap.total[child]):
            child += 1
        if not precedes(states, heap, child, row, total):
            break
        heap.state[position], heap.total[position] = heap.state[child], heap.total[child]
        position = child
    heap.state[position], heap.total[position] = row, total


@inner
def known_at(states, low, high, stage, spent):
    """Return True if a state is stored with at most this cost."""
    row = states.table[slot_of(states, low, high, stage)]
    return row > 0 and states.spent[row - 1] <= spent


@inner
def dominated(tables, states, row):
    """Return True if a state that needs less has at most the cost of this one."""
    low, high, stage, spent = states.low[row], states.high[row], states.stage[row], states.spent[row]
    rest = low
    while rest:
        bit = rest & (~rest + ONE)
        rest ^= bit
        if known_at(states, low ^ bit, high, stage, spent):
            return True
    rest = high
    while rest:
        bit = rest & (~rest + ONE)
        rest ^= bit
        if known_at(states, low, high ^ bit, stage, spent):
            return True
    if tables.facts[1] == 1:
        op = np.int64(stage) - 1
        if op < 0 or (low & tables.writes[op, 0]) or (high & tables.writes[op, 1]):
            return False
        return known_at(states, low, high, stage - ONE, spent)
    rest = stage
    while rest:
        bit = rest & (~rest + ONE)
        rest ^= bit
        if known_at(states, low, high, stage ^ bit, spent):
            return True
    return False


@inner
def moves(tables, low, high, stage):
    """Return the ops that may have run last before a state."""
    ops_low, ops_high = NONE, NONE
    for word in range(2):
        rest = high if word else low
        while rest:
            bit = rest & (~rest + ONE)
            rest ^= bit
            ops_low, ops_high = with_op(ops_low, ops_high, tables.writer[64 * word + number(tables, bit)])
    if tables.facts[1] == 1:
        return with_op(ops_low, ops_high, np.int64(stage) - 1) if stage else (ops_low, ops_high)
    while stage:
        bit = stage & (~stage + ONE)
        stage ^= bit
        ops_low, ops_high = with_op(ops_low, ops_high, tables.end_op[number(tables, bit)])
    return ops_low, ops_high


@inner
def fits(tables, low, high, op):
    """Return True if an op can run last before a state."""
    used_low = low | tables.reads[op, 0] | tables.writes[op, 0]
    used_high = high | tables.reads[op, 1] | tables.writes[op, 1]
    return sum_of(tables.sizes, used_low, used_high) <= tables.room[op]


@inner
def forced(tables, low, high, stage, ops_low, ops_high):
    """Return an op, among those that may have run last, that runs last in a cheapest schedule; -1 if none is known."""
    fixed = tables.facts[1] == 1
    if fixed:
        all_low, all_high = NONE, NONE  # only the last op, whose outputs no earlier op reads, has no readers here
    else:
        all_low, all_high = must_run(tables, low, high, stage)
    for op in range(tables.facts[0] - 1, -1, -1):
        if not contains(ops_low, ops_high, op):
            continue
        if fixed and op + 1 != np.int64(stage):
            continue
        if (tables.readers[op, 0] & all_low) or (tables.readers[op, 1] & all_high):
            continue
        more = sum_of(tables.sizes, tables.reads[op, 0] & ~low, tables.reads[op, 1] & ~high)
        less = sum_of(tables.sizes, tables.writes[op, 0] & low, tables.writes[op, 1] & high)
        if more <= less and fits(tables, low, high, op):
            return op
    return -1


@inner
def store(tables, scratch, states, heap, low, high, stage, spent, parent, op, found):
    """Store a state or its lower cost, if it can lead to a schedule below the limit."""
    slot = slot_of(states, low, high, stage)
    row = states.table[slot] - 1
    limit = found[LIMIT]
    if row >= 0:
        if states.spent[row] <= spent:
            return
        states.total[row] += spent - states.spent[row]
    else:
        rest = bound(tables, scratch, low, high, stage, limit - spent)
        if spent + rest >= limit:
            return
        row = found[COUNT]
        found[COUNT] += 1
        states.table[slot] = row + 1
        states.low[row], states.high[row], states.stage[row] = low, high, stage
        # A bound at the parent also holds here.
        states.total[row] = max(spent + rest, states.total[parent])
    states.spent[row], states.parent[row], states.op[row], states.closed[row] = spent, parent, op, False
    if not (low or high or stage):
        found[LIMIT], found[BEST] = spent, row
    elif states.total[row] < limit:
        push(states, heap, row, found)


@inner
def expand(tables, scratch, states, heap, row, found):
    """Store the states that precede a state."""
    low, high, stage = states.low[row], states.high[row], states.stage[row]
    ops_low, ops_high = moves(tables, low, high, stage)
    only = forced(tables, low, high, stage, ops_low, ops_high)
    fixed = tables.facts[1] == 1
    for op in range(tables.facts[0]):
        if only >= 0 and op != only:
            continue
        if not contains(ops_low, ops_high, op):
            continue
        spent = states.spent[row] + tables.cost[op]
        if spent >= found[LIMIT] or not fits(tables, low, high, op):
            continue
        before_low = (low & ~tables.writes[op, 0]) | tables.reads[op, 0]
        before_high = (high & ~tables.writes[op, 1]) | tables.reads[op, 1]
        last = fixed and op + 1 == np.int64(stage)
        serves = (low & tables.writes[op, 0]) | (high & tables.writes[op, 1])
        then = stage
        if last:
            then = stage - ONE
        elif tables.end_of[op] >= 0 and not fixed:
            then = stage & ~(ONE << np.uint64(tables.end_of[op]))
        # The last of a fixed order may also have run again since its first compute.
        for _ in range(2 if last and serves and only < 0 else 1):
            store(tables, scratch, states, heap, before_low, before_high, then, spent, row, op, found)
            then = stage


@kernel
def rebuild(states, found):
    """Put all states into an empty table."""
    for row in range(found[COUNT]):
        states.table[slot_of(states, states.low[row], states.high[row], states.stage[row])] = row + 1


@kernel
def begin(tables, scratch, states, heap, low, high, stage, found):
    """Store the first state."""
    states.low[0], states.high[0], states.stage[0], states.parent[0] = low, high, stage, -1
    states.total[0] = bound(tables, scratch, low, high, stage, found[LIMIT])
    states.table[slot_of(states, low, high, stage)] = 1
    found[COUNT] = 1
    found[BOUND] = min(states.total[0], found[LIMIT])
    push(states, heap, 0, found)


@kernel
def work(tables, scratch, states, heap, found, steps):
    """Expand at most `steps` states; return :data:`MORE`, :data:`ENDED` or :data:`FULL`."""
    widest = 2 * tables.facts[0]
    for _ in range(steps):
        if found[HEAP] == 0 or heap.total[0] >= found[LIMIT]:
            return ENDED
        if found[COUNT] + widest > states.low.shape[0] or found[HEAP] + widest > heap.state.shape[0]:
            return FULL
        row, total = heap.state[0], heap.total[0]
        pop(states, heap, found)
        if states.closed[row] or states.total[row] != total:
            continue
        found[BOUND] = max(found[BOUND], total)
        states.closed[row] = True
        if not dominated(tables, states, row):
            found[SEEN] += 1
            expand(tables, scratch, states, heap, row, found)
    return MORE
