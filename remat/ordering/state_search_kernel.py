"""Kernels of the state search: states of computed ops and live tensors, level by level.

Sets of ops are 64-bit words, sets of tensors pairs of words. Ops are numbered by their place in the reference order.
"""

# Compiled functions carry no types.
# mypy: allow-untyped-defs
# Compiled functions are called by position only.
# ruff: noqa: PLR0917, PLR0913

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from remat.runtime.arrays import Bool, Float, Int
from remat.runtime.compiled import inner, kernel

Array = NDArray[Any]

NONE, ONE = np.uint64(0), np.uint64(1)
#: The product with the lowest bit of a word has its number in the six highest bits: a de Bruijn sequence.
SEQUENCE, TOP = np.uint64(0x03F79D71B4CB0A89), np.uint64(58)
#: Factors and shifts of the hash of a state.
FACTOR, GOLDEN = np.uint64(0xFF51AFD7ED558CCD), np.uint64(0x9E3779B97F4A7C15)
SHIFT, TAG_SHIFT = np.uint64(32), np.uint64(40)
# Fields of `found`: states stored in this and in the next level, entries of the heap, states expanded, 1 if a level is
# full.
HERE, NEXT, HEAP, SEEN, FULL = range(5)
#: Cost of computing an op again that may run only once, and of a state from which no schedule exists; sums of 64 fit.
NEVER = np.int64(1) << np.int64(50)
#: Tolerance of costs in floating point.
ROUNDING = 1e-6


class Tables(NamedTuple):
    """Problem as sets.

    `reads`, `writes`: tensors by op, shape (ops, 2); `depends`: ops that run before each op (in a fixed order, all
    before it); `later`: ops that may still need a tensor, directly or through recomputations; `kept`, shape (2,):
    tensors to keep; `keepers`, shape (1,): ops that write them. `workspace` contains the bytes that are always live.
    `single` marks ops with one output.

    For each op, `candidates` from ``first[op]`` to ``first[op + 1]`` are the tensors that may have to outlast its first
    compute; none if all of them fit. They are sorted by `price` (share of the cost of the writer) per byte.

    For a number of computed ops, in a fixed order, the rows ``cut_first[k]`` to ``cut_first[k + 1]`` of `constant` and
    `slope`, shape (cuts, tensors), are suffix cuts. `digits` belongs to :data:`SEQUENCE`. `facts`: number of ops,
    budget, 1 if the order is fixed.
    """

    reads: Array
    writes: Array
    depends: Array
    later: Array
    kept: Array
    keepers: Array
    cost: Int
    workspace: Int
    single: Bool
    size: Int
    writer: Int
    first: Int
    candidates: Int
    price: Float
    cut_first: Int
    constant: Float
    slope: Float
    digits: Int
    facts: Int


class Level(NamedTuple):
    """States with the same number of computed ops, and a hash table of them.

    `low` and `high` are the words of live tensors; `done` the computed ops; `spent` the cost of recomputations so far,
    `rest` a bound on those to come; `live` bytes; `last` the op if the last step was a recomputation, else -1; `parent`
    and `op` lead back.
    """

    low: Array
    high: Array
    done: Array
    spent: Int
    rest: Int
    live: Int
    last: NDArray[np.int16]
    parent: Int
    op: NDArray[np.int16]
    table: NDArray[np.int32]


class Heap(NamedTuple):
    """States of a level to expand, by rising cost."""

    state: NDArray[np.int32]
    spent: Int


@inner
def number(tables, bit):
    """Return the number of a bit."""
    return tables.digits[np.int64((bit * SEQUENCE) >> TOP)]


@inner
def every_op(tables):
    """Return the set of all ops."""
    n = tables.facts[0]
    return ~NONE if n == 64 else (ONE << np.uint64(n)) - ONE


@inner
def bytes_of(tables, low, high):
    """Return the total size of tensors."""
    total = 0
    while low:
        bit = low & (~low + ONE)
        low ^= bit
        total += tables.size[number(tables, bit)]
    while high:
        bit = high & (~high + ONE)
        high ^= bit
        total += tables.size[64 + number(tables, bit)]
    return total


@inner
def hashed(low, high, more):
    """Return the hash of three words."""
    mixed = (low ^ (more * GOLDEN)) * FACTOR
    mixed ^= mixed >> SHIFT
    mixed = (mixed ^ high) * FACTOR
    mixed ^= mixed >> SHIFT
    mixed *= FACTOR
    return mixed ^ (mixed >> SHIFT)


@inner
def slot_of(level, low, high, done, last):
    """Return the slot of the table with a state (plus 1), or the free slot for it."""
    end = level.table.shape[0] - 1
    slot = np.int64(hashed(low, high ^ (np.uint64(last + 1) << TAG_SHIFT), done) & np.uint64(end))
    while level.table[slot] > 0:
        row = level.table[slot] - 1
        if level.low[row] == low and level.high[row] == high and level.done[row] == done and level.last[row] == last:
            break
        slot = (slot + 1) & end
    return slot


@inner
def again_for(tables, low, high, done, wanted_low, wanted_high):
    """Return the computed ops that must run again before the wanted tensors are live, and their cost."""
    ops, cost = NONE, np.int64(0)
    wanted_low &= ~low
    wanted_high &= ~high
    while wanted_low or wanted_high:
        if wanted_low:
            bit = wanted_low & (~wanted_low + ONE)
            wanted_low ^= bit
            op = tables.writer[number(tables, bit)]
        else:
            bit = wanted_high & (~wanted_high + ONE)
            wanted_high ^= bit
            op = tables.writer[64 + number(tables, bit)]
        bit = ONE << np.uint64(op)
        if done & ~ops & bit:
            ops |= bit
            cost += tables.cost[op]
            wanted_low |= tables.reads[op, 0] & ~low
            wanted_high |= tables.reads[op, 1] & ~high
    return ops, min(cost, NEVER)


@inner
def reads_of(tables, ops):
    """Return the tensors that ops read."""
    low, high = NONE, NONE
    while ops:
        bit = ops & (~ops + ONE)
        ops ^= bit
        op = number(tables, bit)
        low |= tables.reads[op, 0]
        high |= tables.reads[op, 1]
    return low, high


@inner
def cut_value(tables, cut, low, high):
    """Return the value of a suffix cut for live tensors."""
    value = tables.constant[cut]
    while low:
        bit = low & (~low + ONE)
        low ^= bit
        value += tables.slope[cut, number(tables, bit)]
    while high:
        bit = high & (~high + ONE)
        high ^= bit
        value += tables.slope[cut, 64 + number(tables, bit)]
    return value


@inner
def knapsack(tables, op, done, free_again):
    """Return a bound on the cost of recomputations after the first compute of `op`.

    Tensors that outlast it are live during it, or their writers run again, which costs their price, or nothing for the
    ops `free_again`. The fractional knapsack gives up the cheapest bytes first.
    """
    begin, end = tables.first[op], tables.first[op + 1]
    excess = tables.workspace[op] - tables.facts[1]
    excess += bytes_of(tables, tables.reads[op, 0] | tables.writes[op, 0], tables.reads[op, 1] | tables.writes[op, 1])
    before = (done | tables.depends[op]) & ~free_again
    for k in range(begin, end):
        if before & (ONE << np.uint64(tables.writer[tables.candidates[k]])):
            excess += tables.size[tables.candidates[k]]
    value = 0.0
    for k in range(begin, end):
        if excess <= 0:
            break
        tensor = tables.candidates[k]
        if before & (ONE << np.uint64(tables.writer[tensor])):
            size = tables.size[tensor]
            value += tables.price[k] * min(1.0, excess / size)
            excess -= size
    return NEVER if excess > 0 else np.int64(np.ceil(value - ROUNDING * (1 + value)))


@inner
def bound(tables, low, high, done, limit):
    """Return a bound on the cost of recomputations from a state, at least `limit` as soon as that is certain."""
    to_do = every_op(tables) & ~done
    wanted_low, wanted_high = reads_of(tables, to_do)
    again, needed = again_for(tables, low, high, done, wanted_low | tables.kept[0], wanted_high | tables.kept[1])
    best = needed
    fixed = tables.facts[2] == 1
    if fixed and to_do:
        level = number(tables, to_do & (~to_do + ONE))
        for cut in range(tables.cut_first[level], tables.cut_first[level + 1]):
            value = cut_value(tables, cut, low, high)
            best = max(best, np.int64(np.ceil(value - ROUNDING * (1 + abs(value)))))
    ready_low, ready_high = NONE, NONE
    while to_do and best < limit:
        bit = to_do & (~to_do + ONE)
        to_do ^= bit
        op = number(tables, bit)
        if fixed and again:
            ready_low |= tables.reads[op, 0]
            ready_high |= tables.reads[op, 1]
        if tables.first[op] == tables.first[op + 1]:
            continue
        early = NONE
        if again:
            if not fixed:
                ready_low, ready_high = reads_of(tables, (tables.depends[op] | bit) & ~done)
            early, _ = again_for(tables, low, high, done, ready_low, ready_high)
        best = max(best, needed + knapsack(tables, op, done, again & ~early))
    return min(best, NEVER)


@inner
def push(level, heap, row, found):
    """Add a state with its current cost; an older entry with a higher cost stays in the heap."""
    position = found[HEAP]
    if position >= heap.state.shape[0]:
        found[FULL] = 1
        return
    found[HEAP] += 1
    spent = level.spent[row]
    while position > 0:
        above = (position - 1) >> 1
        if heap.spent[above] <= spent:
            break
        heap.state[position], heap.spent[position] = heap.state[above], heap.spent[above]
        position = above
    heap.state[position], heap.spent[position] = row, spent


@inner
def pop(heap, found):
    """Remove and return the first state of the heap."""
    top = heap.state[0]
    found[HEAP] -= 1
    end = found[HEAP]
    last, spent = heap.state[end], heap.spent[end]
    position = 0
    while 2 * position + 1 < end:
        child = 2 * position + 1
        if child + 1 < end and heap.spent[child + 1] < heap.spent[child]:
            child += 1
        if heap.spent[child] >= spent:
            break
        heap.state[position], heap.spent[position] = heap.state[child], heap.spent[child]
        position = child
    heap.state[position], heap.spent[position] = last, spent
    return top


@inner
def known_at(level, low, high, done, spent):
    """Return True if a state whose next step is not restricted is stored with at most this cost."""
    row = level.table[slot_of(level, low, high, done, -1)]
    return row > 0 and level.spent[row - 1] <= spent


@inner
def dominated(tables, level, row):
    """Return True if the same state, or one with one more live tensor, has at most its cost and no restriction."""
    low, high, done, spent = level.low[row], level.high[row], level.done[row], level.spent[row]
    if level.last[row] >= 0 and known_at(level, low, high, done, spent):
        return True
    needed = every_op(tables) & (~done | tables.keepers[0])
    room = tables.facts[1] - level.live[row]
    ops = done
    while ops:
        bit = ops & (~ops + ONE)
        ops ^= bit
        op = number(tables, bit)
        more_low, more_high = tables.writes[op, 0] & ~low, tables.writes[op, 1] & ~high
        while more_low or more_high:
            bit_low = more_low & (~more_low + ONE)
            bit_high = NONE if bit_low else more_high & (~more_high + ONE)
            more_low ^= bit_low
            more_high ^= bit_high
            tensor = number(tables, bit_low) if bit_low else 64 + number(tables, bit_high)
            kept = (tables.kept[0] & bit_low) | (tables.kept[1] & bit_high)
            if not kept and not tables.later[tensor] & needed:
                continue
            if tables.size[tensor] <= room and known_at(level, low | bit_low, high | bit_high, done, spent):
                return True
    return False


@inner
def store(tables, level, counter, limit, state, cost, source, found):
    """Store a state (`low`, `high`, `done`, `last`) or its lower cost; its row, or -1 if nothing is new.

    `source`: parent and op.
    """
    low, high, done, last = state
    slot = slot_of(level, low, high, done, last)
    row = level.table[slot] - 1
    if row >= 0:
        if level.spent[row] <= cost:
            return -1
    else:
        if last >= 0 and known_at(level, low, high, done, cost):
            return -1
        rest = bound(tables, low, high, done, limit - cost)
        if cost + rest >= limit:
            return -1
        row = found[counter]
        if row == level.low.shape[0]:
            found[FULL] = 1
            return -1
        found[counter] += 1
        level.table[slot] = row + 1
        level.low[row], level.high[row], level.done[row], level.last[row] = low, high, done, last
        level.rest[row], level.live[row] = rest, bytes_of(tables, low, high)
    level.spent[row], level.parent[row], level.op[row] = cost, source[0], source[1]
    return row if cost + level.rest[row] < limit else -1


@inner
def useful(tables, low, high, done):
    """Return the tensors that may still be needed once `done` are computed."""
    needed = every_op(tables) & (~done | tables.keepers[0])
    rest = low & ~tables.kept[0]
    while rest:
        bit = rest & (~rest + ONE)
        rest ^= bit
        if not tables.later[number(tables, bit)] & needed:
            low ^= bit
    rest = high & ~tables.kept[1]
    while rest:
        bit = rest & (~rest + ONE)
        rest ^= bit
        if not tables.later[64 + number(tables, bit)] & needed:
            high ^= bit
    return low, high


@inner
def follow(tables, levels, row, op, live, limit, heap, base, found):
    """Store the state after `op`; `live`: words of tensors that are live during its step."""
    here, following = levels
    done, bit = here.done[row], ONE << np.uint64(op)
    source = base + row, op
    if done & bit:
        low, high = useful(tables, live[0], live[1], done)
        cost = here.spent[row] + tables.cost[op]
        new = store(tables, here, HERE, limit, (low, high, done, op), cost, source, found)
        if new >= 0:
            push(here, heap, new, found)
    else:
        low, high = useful(tables, live[0], live[1], done | bit)
        store(tables, following, NEXT, limit, (low, high, done | bit, -1), here.spent[row], source, found)


@inner
def evictable(tables, low, high, items):
    """List tensors by falling size; return their number and their bytes. Empty ones are left out."""
    count, total = 0, 0
    while low or high:
        if low:
            bit = low & (~low + ONE)
            low ^= bit
            tensor = number(tables, bit)
        else:
            bit = high & (~high + ONE)
            high ^= bit
            tensor = 64 + number(tables, bit)
        size = tables.size[tensor]
        if size == 0:
            continue
        total += size
        place = count
        count += 1
        while place > 0 and tables.size[items[place - 1]] < size:
            items[place] = items[place - 1]
            place -= 1
        items[place] = tensor
    return count, total


@inner
def may_follow(tables, level, row, op, again):
    """Return True if `op` may follow a state whatever is evicted for it.

    After a recomputation (`last`), only some steps follow. They read its outputs, evict one of its inputs or outputs,
    could not have come before it, or are recomputations of ops with a higher number. An output that no later step can
    need is gone, and counts as evicted.
    """
    last = np.int64(level.last[row])
    if last < 0:
        return True
    reads = (tables.reads[op, 0] & tables.writes[last, 0]) | (tables.reads[op, 1] & tables.writes[last, 1])
    gone = (tables.writes[last, 0] & ~level.low[row]) | (tables.writes[last, 1] & ~level.high[row])
    larger = tables.workspace[last] > tables.workspace[op]
    return reads != NONE or gone != NONE or larger or (again and op > last)


@inner
def evict_and_follow(tables, levels, row, op, excess, linked, limit, heap, base, found, scratch):
    """Store the states after `op` and each minimal set of evictions of at least `excess` bytes before it.

    If not `linked`, one of the evicted tensors is read or written by the last recomputation. A set is skipped if what
    some of its evictions require to run again already reaches the limit.
    """
    items, stack = scratch
    level = levels[0]
    low, high, last = level.low[row], level.high[row], np.int64(level.last[row])
    bit = ONE << np.uint64(op)
    done = level.done[row] | bit
    room = limit - level.spent[row] - (tables.cost[op] if level.done[row] & bit else 0)
    wanted_low, wanted_high = reads_of(tables, every_op(tables) & ~done)
    wanted_low |= tables.kept[0]
    wanted_high |= tables.kept[1]
    new_low, new_high = tables.writes[op, 0], tables.writes[op, 1]
    may_low = low & ~(tables.reads[op, 0] | tables.writes[op, 0])
    may_high = high & ~(tables.reads[op, 1] | tables.writes[op, 1])
    if last >= 0 and tables.single[last]:  # the recomputation would have been in vain
        may_low &= ~tables.writes[last, 0]
        may_high &= ~tables.writes[last, 1]
    count, total = evictable(tables, may_low, may_high, items)
    if total < excess:
        return
    # Depth first over sets by falling size: a set is minimal if it suffices only with its last tensor.
    depth, place, gone_low, gone_high = 0, 0, NONE, NONE
    while not found[FULL]:
        if place == count:
            if depth == 0:
                return
            depth -= 1
            place = stack[depth]
            tensor = items[place]
            excess += tables.size[tensor]
            if tensor < 64:
                gone_low ^= ONE << np.uint64(tensor)
            else:
                gone_high ^= ONE << np.uint64(tensor - 64)
            place += 1
            continue
        tensor = items[place]
        with_low = gone_low | (ONE << np.uint64(tensor) if tensor < 64 else NONE)
        with_high = gone_high | (ONE << np.uint64(tensor - 64) if tensor >= 64 else NONE)
        if tables.size[tensor] < excess:
            live_low, live_high = (low & ~with_low) | new_low, (high & ~with_high) | new_high
            _, needed = again_for(tables, live_low, live_high, done, wanted_low, wanted_high)
            if needed < room:
                stack[depth] = place
                depth += 1
                excess -= tables.size[tensor]
                gone_low, gone_high = with_low, with_high
        elif (
            linked
            or (with_low & (tables.reads[last, 0] | tables.writes[last, 0])) != NONE
            or (with_high & (tables.reads[last, 1] | tables.writes[last, 1])) != NONE
        ):
            live = (low & ~with_low) | new_low, (high & ~with_high) | new_high
            follow(tables, levels, row, op, live, limit, heap, base, found)
        place += 1


@inner
def in_vain(tables, level, row, op, limit):
    """Return True if computing `op` again would cost too much or regain nothing that may still be needed."""
    low, high, done = level.low[row], level.high[row], level.done[row]
    some_low, some_high = useful(tables, tables.writes[op, 0] & ~low, tables.writes[op, 1] & ~high, done)
    return level.spent[row] + tables.cost[op] >= limit or (some_low | some_high) == NONE


@inner
def expand(tables, levels, row, limit, heap, base, found, scratch):
    """Compute each possible op in a state, after each minimal set of evictions that makes room for it."""
    level = levels[0]
    low, high, done = level.low[row], level.high[row], level.done[row]
    ops = every_op(tables) & ~done
    if tables.facts[2] == 1:
        ops &= ~ops + ONE
    ops |= done
    while ops and not found[FULL]:
        bit = ops & (~ops + ONE)
        ops ^= bit
        op = number(tables, bit)
        again = (done & bit) != NONE
        if (tables.reads[op, 0] & ~low) or (tables.reads[op, 1] & ~high) or (tables.depends[op] & ~done):
            continue
        if again and in_vain(tables, level, row, op, limit):
            continue
        linked = may_follow(tables, level, row, op, again)
        more = bytes_of(tables, tables.writes[op, 0] & ~low, tables.writes[op, 1] & ~high)
        excess = level.live[row] + more + tables.workspace[op] - tables.facts[1]
        if excess > 0:
            evict_and_follow(tables, levels, row, op, excess, linked, limit, heap, base, found, scratch)
        elif linked:
            live = low | tables.writes[op, 0], high | tables.writes[op, 1]
            follow(tables, levels, row, op, live, limit, heap, base, found)


@kernel
def begin_level(level, heap, found):
    """Put the states of a level into its empty table and into the empty heap."""
    for row in range(found[HERE]):
        level.table[slot_of(level, level.low[row], level.high[row], level.done[row], level.last[row])] = row + 1
        push(level, heap, row, found)


@kernel
def work(tables, levels, limit, heap, base, found, scratch, steps):
    """Expand at most `steps` states of the first level; return True when none is left or no room."""
    for _ in range(steps):
        if found[HEAP] == 0 or found[FULL]:
            return True
        spent = heap.spent[0]
        row = pop(heap, found)
        if spent == levels[0].spent[row] and not dominated(tables, levels[0], row):
            found[SEEN] += 1
            expand(tables, levels, row, limit, heap, base, found, scratch)
    return False


@kernel
def bound_at(tables, low, high, done):
    """Return the bound on the cost of recomputations from a state."""
    return bound(tables, low, high, done, NEVER)
