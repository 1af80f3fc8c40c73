"""Kernels of annealing: the moves.

A schedule is valid iff every op's first slot lies after the first slots of its producers, so moves need no search.
"""

# numba supports only numpy's legacy generator, seeded inside; compiled functions carry no types.
# ruff: noqa: NPY002, PLR0917
# mypy: allow-untyped-defs

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from remat.heuristics.annealing.slots_kernel import (
    AFTER,
    BEFORE,
    BEST,
    BITS,
    CHAIN_OLD,
    CHAIN_OP,
    CHAIN_SLOT,
    COMES,
    COST,
    EVENTS,
    GOES,
    INPUTS,
    LIMIT,
    OP_COST,
    ORDER,
    OUTPUTS,
    PEAK,
    POSITION,
    READERS,
    REPEATED,
    REPEATED_OP,
    RUNS,
    WRITERS,
    begin,
    collect,
    evaluate,
    insert,
    instance_before,
    keep,
    note_best,
    note_repeated,
    note_slot,
    plant,
    remove,
    touch_op,
    work,
)
from remat.runtime.compiled import inlined, kernel

#: Most ops that one insertion recomputes, and most slots between a recomputation and its use.
CHAIN, REACH = 48, 256
#: Most ops that shift together.
GROUP_OPS = 12
#: Ops of a region, which the processor's cache holds with what belongs to them, and moves in it: on 100,000 ops, moves
#: all over the graph take half as long again.
REGION_OPS, REGION_MOVES = 2_048, 2_000
#: Random draws of a tensor that lives across a slot.
TRIES = 24
#: Result of a move that was impossible or refused; energies are not negative.
REFUSED = -1.0


class Energy(NamedTuple):
    """Temperature and weights of the energy of a schedule.

    `heat` is the temperature, in cost units; `budget` has bytes. `per_byte` is the cost of a byte of the peak above the
    budget, `per_soft` that of the soft excess, whose width is `tau` bytes.
    """

    heat: float
    budget: int
    per_byte: float
    per_soft: float
    tau: float


class Rules(NamedTuple):
    """Limits and shares of moves.

    With `fixed`, first runs stay in the reference order. `again` is the probability that a missing input of a
    recomputation is recomputed. `shares` are cumulative shares of moves: shift a group (in a fixed order, a run); shift
    a run; recompute for a read near the peak; recompute for any read. All other moves take back.
    """

    fixed: bool
    again: float
    shares: tuple[float, float, float, float]


@inlined
def draw_op(net, region):
    """Draw one of the ops of a region, which begins at the op `region`."""
    num_ops = len(net.ops) - 1
    return (region + np.random.randint(min(REGION_OPS, num_ops))) % num_ops


@inlined
def empty_near(state, wanted, low, high):
    """Return the empty slot nearest to `wanted` strictly between `low` and `high`; -1: none."""
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


@inlined
def first_after(net, state, op):
    """Return the last of the first slots of the producers of `op`, after which it may run."""
    low = -1
    for k in range(net.ops[op, BEFORE], net.ops[op + 1, BEFORE]):
        low = max(low, state.slots[net.links[k], 0])
    return low


@inlined
def first_before(net, state, op):
    """Return the earliest first slot of the consumers of `op`, before which it must have run."""
    high = len(state.held)
    for k in range(net.ops[op, AFTER], net.ops[op + 1, AFTER]):
        high = min(high, state.slots[net.links[k], 0])
    return high


@inlined
def window(net, state, op, i, fixed):
    """Return the slots between which the i-th run of `op` may move, both exclusive."""
    low, high = first_after(net, state, op), len(state.held)
    if i == 0:
        high = first_before(net, state, op)
        if fixed:
            at = net.ops[op, POSITION]
            if at > 0:
                low = max(low, state.slots[net.ops[at - 1, ORDER], 0])
            if at + 1 < len(net.ops) - 1:
                high = min(high, state.slots[net.ops[at + 1, ORDER], 0])
            if state.ops[op, RUNS] > 1:
                high = min(high, state.slots[op, 1])
    elif fixed:
        low = max(low, state.slots[op, 0])
    return low, high


@inlined
def target(net, state, op, slot, low, high):
    """Draw an empty slot for a run of `op`: near `slot`, anywhere, before a read, or after a sibling; -1: none."""
    how = np.random.random()
    if how < 0.5:
        reach = int((high - low) * 0.05) + 4
        wanted = min(max(slot + np.random.randint(-reach, reach + 1), low + 1), high - 1)
    elif how < 0.65:
        wanted = low + 1 + int(np.random.random() * (high - low - 1))
    elif how < 0.85:
        written = net.ops[op + 1, OUTPUTS] - net.ops[op, OUTPUTS]
        if written == 0:
            return -1
        tensor = net.links[net.ops[op, OUTPUTS] + np.random.randint(written)]
        read = net.tensors[tensor + 1, READERS] - net.tensors[tensor, READERS]
        if read == 0:
            return -1
        other = net.links[net.tensors[tensor, READERS] + np.random.randint(read)]
        wanted = state.slots[other, np.random.randint(state.ops[other, RUNS])] - 1
    else:
        read = net.ops[op + 1, INPUTS] - net.ops[op, INPUTS]
        if read == 0:
            return -1
        tensor = net.links[net.ops[op, INPUTS] + np.random.randint(read)]
        k = np.random.randint(net.tensors[tensor + 1, READERS] - net.tensors[tensor, READERS] + 1)
        other = net.links[net.tensors[tensor, WRITERS]] if k == 0 else net.links[net.tensors[tensor, READERS] + k - 1]
        wanted = state.slots[other, np.random.randint(state.ops[other, RUNS])] + 1
    if wanted <= low or wanted >= high:
        return -1
    return empty_near(state, wanted, low, high)


@inlined
def hot_slot(state, block):
    """Draw a slot by its share in the soft excess, of `block`, or of all if that is negative."""
    bits = state.number[BITS]
    if block >= 0:
        left = np.random.random() * state.block_excess[block]
    else:
        left, block = np.random.random() * state.total[0], 0
        while block < len(state.block_excess) - 1 and left >= state.block_excess[block]:
            left -= state.block_excess[block]
            block += 1
    if state.block_times[block] > 0.0:  # else it underflowed, far below the budget
        left /= state.block_times[block]
    slot, last = block << bits, ((block + 1) << bits) - 1
    while slot < last and left >= state.excess[slot]:
        left -= state.excess[slot]
        slot += 1
    return slot


@inlined
def read_beyond(net, state, slot):
    """Draw a tensor that lives across `slot` and is not used there; return its writer and next read, or -1, -1."""
    for _ in range(TRIES):
        tensor = np.random.randint(len(net.tensors) - 1)
        if state.spans[tensor, 0, 0] >= slot:  # first, since it decides most often
            continue
        i = instance_before(state, tensor, slot)
        if i < 0 or state.spans[tensor, i, 1] <= slot:
            continue
        if net.tensors[tensor + 1, WRITERS] - net.tensors[tensor, WRITERS] != 1:
            continue
        following, used = len(state.held), False
        for k in range(net.tensors[tensor, READERS], net.tensors[tensor + 1, READERS]):
            reader = net.links[k]
            for j in range(state.ops[reader, RUNS]):
                read = state.slots[reader, j]
                used |= read == slot
                if read > slot:
                    following = min(following, read)
                    break
        if not used and following < len(state.held):
            return net.links[net.tensors[tensor, WRITERS]], following
    return -1, -1


@inlined
def any_read(net, state, region):
    """Draw a read of a tensor; return the tensor's writer and the slot of the read, or -1, -1."""
    reader = draw_op(net, region)
    read = net.ops[reader + 1, INPUTS] - net.ops[reader, INPUTS]
    if read == 0:
        return -1, -1
    tensor = net.links[net.ops[reader, INPUTS] + np.random.randint(read)]
    return net.links[net.tensors[tensor, WRITERS]], state.slots[reader, np.random.randint(state.ops[reader, RUNS])]


@inlined
def latest_first(net, chain, done, chosen):
    """Of entries `done` .. `chosen` - 1, bring the op that comes last in the reference order to the front."""
    last = done
    for k in range(done + 1, chosen):
        if net.ops[chain[k, CHAIN_OP], POSITION] > net.ops[chain[last, CHAIN_OP], POSITION]:
            last = k
    for column in (CHAIN_OP, CHAIN_SLOT):
        chain[done, column], chain[last, column] = chain[last, column], chain[done, column]


@inlined
def choose_chain(net, state, rules, most, op, read):
    """Choose recomputations so that `op` runs before the slot `read`, at a cost of at most `most`.

    Readers are placed before what they read, so an op of which several others need an output runs before all of them.
    Fills `chain`, marks the slots in `held`, and returns the number of ops and their cost; 0, 0: none.
    """
    chain = state.chain
    chain[0, CHAIN_OP], chain[0, CHAIN_SLOT] = op, read
    chosen, done, price = 1, 0, 0
    while done < chosen:
        latest_first(net, chain, done, chosen)
        op, before = chain[done, CHAIN_OP], chain[done, CHAIN_SLOT]
        price += net.ops[op, OP_COST]
        slot = -1
        if price <= most and state.ops[op, RUNS] < net.ops[op, LIMIT]:
            low = max(first_after(net, state, op), before - REACH)
            if rules.fixed:
                low = max(low, state.slots[op, 0])
            if before - 1 > low:
                slot = empty_near(state, before - 1, low, before)
        if slot < 0:
            for k in range(done):
                state.held[chain[k, CHAIN_SLOT]] = -1
            return 0, 0
        chain[done, CHAIN_SLOT], chain[done, CHAIN_OLD] = slot, -1
        state.held[slot] = op
        done += 1
        for k in range(net.ops[op, INPUTS], net.ops[op + 1, INPUTS]):
            missing = net.links[k]
            writer = net.links[net.tensors[missing, WRITERS]]
            if net.ops[writer, LIMIT] > 1 and chosen < CHAIN and np.random.random() < rules.again:
                i = instance_before(state, missing, slot + 1)
                if i >= 0 and state.spans[missing, i, 1] <= slot:  # else it is there anyway
                    place = done
                    while place < chosen and chain[place, CHAIN_OP] != writer:
                        place += 1
                    if place == chosen:
                        chain[chosen, CHAIN_OP], chain[chosen, CHAIN_SLOT] = writer, slot
                        chosen += 1
                    else:
                        chain[place, CHAIN_SLOT] = min(chain[place, CHAIN_SLOT], slot)
    return chosen, price


@inlined
def penalty(energy, peak, soft):
    """Return the energy of the memory, in cost units."""
    return energy.per_byte * max(peak - energy.budget, 0) + energy.per_soft * math.log1p(soft)


@inlined
def note_change(state, changed):
    """List the slots of a change as of :func:`attempt`, and the ops that now run more than once."""
    chain = state.chain
    for k in range(changed):
        for column in (CHAIN_SLOT, CHAIN_OLD):
            if chain[k, column] >= 0:
                note_slot(state, chain[k, column])
        note_repeated(state, chain[k, CHAIN_OP])


@inlined
def attempt(net, state, energy, changed, price, bar):
    """Change the runs of the first `changed` entries of `chain`, if the energy stays within `bar`.

    `price` is the change of the cost. Returns the energy of the memory, or `REFUSED`.
    """
    chain, number = state.chain, state.number
    begin(state)
    for k in range(changed):
        if chain[k, CHAIN_OLD] >= 0:
            touch_op(net, state, chain[k, CHAIN_OP], chain[k, CHAIN_OLD], GOES)
            remove(state, chain[k, CHAIN_OP], chain[k, CHAIN_OLD])
    for k in range(changed):
        if chain[k, CHAIN_SLOT] >= 0:
            touch_op(net, state, chain[k, CHAIN_OP], chain[k, CHAIN_SLOT], COMES)
            insert(state, chain[k, CHAIN_OP], chain[k, CHAIN_SLOT])
    collect(net, state)
    for k in range(changed):
        if chain[k, CHAIN_SLOT] >= 0:
            work(net, state, chain[k, CHAIN_OP], chain[k, CHAIN_SLOT], COMES, energy.tau)
        if chain[k, CHAIN_OLD] >= 0:
            work(net, state, chain[k, CHAIN_OP], chain[k, CHAIN_OLD], GOES, energy.tau)
    peak, soft = evaluate(state) if number[EVENTS] > 0 else (number[PEAK], state.total[0])
    after = penalty(energy, peak, soft)
    if price + after <= bar:
        keep(state, peak, soft)
        number[COST] += price
        note_change(state, changed)
        return after
    for k in range(changed):
        if chain[k, CHAIN_SLOT] >= 0:
            remove(state, chain[k, CHAIN_OP], chain[k, CHAIN_SLOT])
    for k in range(changed):
        if chain[k, CHAIN_OLD] >= 0:
            insert(state, chain[k, CHAIN_OP], chain[k, CHAIN_OLD])
    return REFUSED


@inlined
def draw_shift(net, state, fixed, region):
    """Draw a run and another slot for it, the first entry of `chain`; return 1, or 0 if there is none."""
    op = draw_op(net, region)
    i = np.random.randint(state.ops[op, RUNS])
    old = state.slots[op, i]
    low, high = window(net, state, op, i, fixed)
    new = target(net, state, op, old, low, high) if high - low >= 2 else -1
    if new < 0 or new == old:
        return 0
    state.chain[0, CHAIN_OP], state.chain[0, CHAIN_SLOT], state.chain[0, CHAIN_OLD] = op, new, old
    return 1


@inlined
def draw_group(net, state, region):
    """Draw an op whose first run moves before that of a producer, or after that of a consumer, and all that must move.

    Fills `chain`, marks the slots in `held`, and returns the number of ops; 0: none.
    """
    op = draw_op(net, region)
    far = int(np.random.random() ** 2 * REACH)
    if np.random.random() < 0.5:
        bound = first_after(net, state, op)
        return choose_group(net, state, op, max(1, bound - far), -1) if bound >= 0 else 0
    bound = first_before(net, state, op)
    last = len(state.held) - 2
    return choose_group(net, state, op, min(last, bound + far), 1) if bound < len(state.held) else 0


@inlined
def choose_group(net, state, op, bound, sign):
    """Choose slots so that the first run of `op` lies before (`sign` -1) or after (1) the slot `bound`.

    Producers that would run later, or consumers that would run earlier, move as well. Result as of :func:`draw_group`.
    """
    chain, held, first = state.chain, state.held, state.slots
    chain[0, CHAIN_OP], chain[0, CHAIN_SLOT] = op, bound
    chosen, done = 1, 0
    while done < chosen:
        op, bound = chain[done, CHAIN_OP], chain[done, CHAIN_SLOT]
        slot = bound + sign
        while 0 <= slot < len(held) and held[slot] >= 0:
            slot += sign
        good = 0 <= slot < len(held) and abs(slot - bound) <= REACH
        if good and sign > 0 and state.ops[op, RUNS] > 1:
            good = slot < first[op, 1]
        if good:
            chain[done, CHAIN_SLOT], chain[done, CHAIN_OLD] = slot, first[op, 0]
            held[slot] = op
            done += 1
            begins = net.ops[op, BEFORE] if sign < 0 else net.ops[op, AFTER]
            ends = net.ops[op + 1, BEFORE] if sign < 0 else net.ops[op + 1, AFTER]
            for k in range(begins, ends):
                other = net.links[k]
                if sign * (first[other, 0] - slot) > 0:
                    continue
                place = 0
                while place < chosen and chain[place, CHAIN_OP] != other:
                    place += 1
                if place == chosen:
                    if chosen == GROUP_OPS:
                        good = False
                        break
                    chain[chosen, CHAIN_OP], chain[chosen, CHAIN_SLOT] = other, slot
                    chosen += 1
                elif place < done:
                    good &= sign * (chain[place, CHAIN_SLOT] - slot) > 0
                elif sign * (slot - chain[place, CHAIN_SLOT]) > 0:
                    chain[place, CHAIN_SLOT] = slot
        if not good:
            for k in range(done):
                held[chain[k, CHAIN_SLOT]] = -1
            return 0
    return chosen


@inlined
def listed(chain, op, slot, chosen):
    """Return True if one of the first `chosen` entries of `chain` takes `op` out of `slot`."""
    found = False
    for k in range(chosen):
        found |= chain[k, CHAIN_OP] == op and chain[k, CHAIN_OLD] == slot
    return found


@inlined
def useless(net, state, op, i, chosen):
    """Return True if only the first `chosen` entries of `chain` read what the i-th run of `op` writes."""
    for k in range(net.ops[op, OUTPUTS], net.ops[op + 1, OUTPUTS]):
        tensor = net.links[k]
        start, end = state.spans[tensor, i, 0], state.spans[tensor, i, 1]
        if end == len(state.held) - 1:  # it is kept
            return False
        for j in range(net.tensors[tensor, READERS], net.tensors[tensor + 1, READERS]):
            reader = net.links[j]
            for r in range(state.ops[reader, RUNS]):
                read = state.slots[reader, r]
                if start < read <= end and not listed(state.chain, reader, read, chosen):
                    return False
    return True


@inlined
def draw_recomputation(net, state, fixed):
    """Draw a run of an op that runs more than once, to take back, and list the recomputations that only it reads.

    Recomputations that only these read follow, and so on. Fills `chain`, and returns the number of runs and the change
    of cost; 0, 0: none.
    """
    number, chain = state.number, state.chain
    if number[REPEATED] == 0:
        return 0, 0
    op = state.ops[np.random.randint(number[REPEATED]), REPEATED_OP]
    i = np.random.randint(state.ops[op, RUNS])
    if i == 0 and (fixed or state.slots[op, 1] >= first_before(net, state, op)):
        return 0, 0
    chain[0, CHAIN_OP], chain[0, CHAIN_OLD] = op, state.slots[op, i]
    chosen, done, price = 1, 0, 0
    while done < chosen:
        op, slot = chain[done, CHAIN_OP], chain[done, CHAIN_OLD]
        chain[done, CHAIN_SLOT] = -1
        price -= net.ops[op, OP_COST]
        done += 1
        for k in range(net.ops[op, INPUTS], net.ops[op + 1, INPUTS]):
            tensor = net.links[k]
            i = instance_before(state, tensor, slot)
            if i < 1 or state.spans[tensor, i, 1] != slot or chosen == CHAIN:
                continue
            writer, start = net.links[net.tensors[tensor, WRITERS]], state.spans[tensor, i, 0]
            if useless(net, state, writer, i, chosen) and not listed(chain, writer, start, chosen):
                chain[chosen, CHAIN_OP], chain[chosen, CHAIN_OLD] = writer, start
                chosen += 1
    return chosen, price


@kernel
def anneal(net, state, energy, rules, seed, moves):
    """Try `moves` moves; return the share of them that met the budget.

    The energy is cost + per_byte * (bytes of the peak above the budget) + per_soft * (soft excess). With a negative
    `seed` it continues the last call of this thread, with the same `tau`.
    """
    if seed >= 0:
        np.random.seed(seed)
        plant(net, state, energy.budget, energy.tau)
    number, fixed = state.number, rules.fixed
    group, shift, guided, anywhere = rules.shares
    met = 0
    now = penalty(energy, number[PEAK], state.total[0])
    region, block, large = 0, -1, len(net.ops) - 1 > REGION_OPS
    for move in range(moves):
        if large and move % REGION_MOVES == 0:
            region, block = np.random.randint(len(net.ops) - 1), -1
        met += number[PEAK] <= energy.budget
        bar = now - energy.heat * math.log(1.0 - np.random.random())
        kind = np.random.random()
        changed, price = 0, 0
        if kind < group and not fixed:
            changed = draw_group(net, state, region)
        elif kind < shift:
            changed = draw_shift(net, state, fixed, region)
        elif kind < anywhere:
            if kind < guided:
                hot = hot_slot(state, block)
                block = hot >> number[BITS] if large else -1
                writer, read = read_beyond(net, state, hot)
            else:
                writer, read = any_read(net, state, region)
            if writer >= 0:
                changed, price = choose_chain(net, state, rules, bar, writer, read)
        else:
            changed, price = draw_recomputation(net, state, fixed)
        if changed == 0:
            continue
        after = attempt(net, state, energy, changed, price, bar)
        if after == REFUSED:
            continue
        now = after
        if number[PEAK] <= energy.budget and (number[BEST] < 0 or number[COST] < number[BEST]):
            note_best(state)
    return met / moves
