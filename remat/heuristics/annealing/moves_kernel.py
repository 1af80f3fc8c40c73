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
    CHAIN_OP,
    CHAIN_SLOT,
    COMES,
    COST,
    GOES,
    HIGHEST,
    INPUTS,
    INSTANCES,
    LIMIT,
    OP_COST,
    ORDER,
    OUTPUTS,
    POSITION,
    READERS,
    REPEATED,
    REPEATED_OP,
    RUNS,
    SOFT,
    WRITERS,
    apply,
    begin,
    insert,
    note_repeated,
    plant,
    remove,
    touch_op,
    undo,
    work,
)
from remat.runtime.compiled import inner, kernel

#: Most ops that one insertion recomputes, and most slots between a recomputation and its use.
CHAIN, REACH = 48, 256
#: Cumulative shares of the moves: shift a run; recompute for a read near the peak; for any read; else take back.
SHIFT, GUIDED, ANY = 0.45, 0.60, 0.75
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


@inner
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


@inner
def first_after(net, state, op):
    """Return the last of the first slots of the producers of `op`, after which it may run."""
    low = -1
    for k in range(net.ops[op, BEFORE], net.ops[op + 1, BEFORE]):
        low = max(low, state.slots[net.links[k], 0])
    return low


@inner
def first_before(net, state, op):
    """Return the earliest first slot of the consumers of `op`, before which it must have run."""
    high = len(state.held)
    for k in range(net.ops[op, AFTER], net.ops[op + 1, AFTER]):
        high = min(high, state.slots[net.links[k], 0])
    return high


@inner
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


@inner
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


@inner
def instance_before(state, tensor, slot):
    """Return the last instance of `tensor` that begins before `slot`; -1: none."""
    i = state.tensors[tensor, INSTANCES] - 1
    while i >= 0 and state.spans[tensor, i, 0] >= slot:
        i -= 1
    return i


@inner
def hot_slot(tree):
    """Draw a slot by its share in the soft excess."""
    width = len(tree) >> 1
    node = 1
    while node < width:
        node *= 2
        if np.random.random() * (tree[node, SOFT] + tree[node + 1, SOFT]) >= tree[node, SOFT]:
            node += 1
    return node - width


@inner
def read_beyond(net, state, slot):
    """Draw a tensor that lives across `slot` and is not used there; return its writer and next read, or -1, -1."""
    for _ in range(TRIES):
        tensor = np.random.randint(len(net.tensors) - 1)
        if net.tensors[tensor + 1, WRITERS] - net.tensors[tensor, WRITERS] != 1:
            continue
        i = instance_before(state, tensor, slot)
        if i < 0 or state.spans[tensor, i, 1] <= slot:
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


@inner
def any_read(net, state):
    """Draw a read of a tensor; return the tensor's writer and the slot of the read, or -1, -1."""
    reader = np.random.randint(len(net.ops) - 1)
    read = net.ops[reader + 1, INPUTS] - net.ops[reader, INPUTS]
    if read == 0:
        return -1, -1
    tensor = net.links[net.ops[reader, INPUTS] + np.random.randint(read)]
    return net.links[net.tensors[tensor, WRITERS]], state.slots[reader, np.random.randint(state.ops[reader, RUNS])]


@inner
def choose_chain(net, state, fixed, again, most, op, read):
    """Choose recomputations so that `op` runs before the slot `read`, at a cost of at most `most`.

    Fills `chain`, marks the slots in `held`, and returns the number of ops and their cost; 0, 0: none.
    """
    chain = state.chain
    chain[0, CHAIN_OP], chain[0, CHAIN_SLOT] = op, read
    chosen, done, price = 1, 0, 0
    while done < chosen:
        op, before = chain[done, CHAIN_OP], chain[done, CHAIN_SLOT]
        price += net.ops[op, OP_COST]
        good = price <= most and state.ops[op, RUNS] < net.ops[op, LIMIT]
        for k in range(done):
            good &= chain[k, CHAIN_OP] != op
        slot = -1
        if good:
            low = max(first_after(net, state, op), before - REACH)
            if fixed:
                low = max(low, state.slots[op, 0])
            if before - 1 > low:
                slot = empty_near(state, before - 1, low, before)
        if slot < 0:
            for k in range(done):
                state.held[chain[k, CHAIN_SLOT]] = -1
            return 0, 0
        chain[done, CHAIN_SLOT] = slot
        state.held[slot] = op
        for k in range(net.ops[op, INPUTS], net.ops[op + 1, INPUTS]):
            missing = net.links[k]
            writer = net.links[net.tensors[missing, WRITERS]]
            if net.ops[writer, LIMIT] > 1 and chosen < CHAIN and np.random.random() < again:
                i = instance_before(state, missing, slot + 1)
                if i >= 0 and state.spans[missing, i, 1] <= slot:  # else it is there anyway
                    chain[chosen, CHAIN_OP], chain[chosen, CHAIN_SLOT] = writer, slot
                    chosen += 1
        done += 1
    return chosen, price


@inner
def penalty(state, energy):
    """Return the energy of the memory, in cost units."""
    over = state.tree[1, HIGHEST] - energy.budget
    return energy.per_byte * max(over, 0.0) + energy.per_soft * math.log1p(state.tree[1, SOFT])


@inner
def attempt(net, state, energy, gone, added, price, bar):
    """Remove a run, add others, and revert both unless the energy stays within `bar`.

    `gone` is an op and its slot, -1 for none; `added` is the number of entries of `chain`; `price` is the change of the
    cost. Returns the energy of the memory, or `REFUSED`.
    """
    op, slot = gone
    chain = state.chain
    begin(state)
    if slot >= 0:
        touch_op(net, state, op)
        remove(state, op, slot)
    for k in range(added):
        touch_op(net, state, chain[k, CHAIN_OP])
        insert(state, chain[k, CHAIN_OP], chain[k, CHAIN_SLOT])
    apply(net, state)
    if slot >= 0:
        work(net, state, op, slot, GOES, energy.tau)
    for k in range(added):
        work(net, state, chain[k, CHAIN_OP], chain[k, CHAIN_SLOT], COMES, energy.tau)
    after = penalty(state, energy)
    if price + after <= bar:
        state.number[COST] += price
        if slot >= 0:
            note_repeated(state, op)
        for k in range(added):
            note_repeated(state, chain[k, CHAIN_OP])
        return after
    for k in range(added):
        remove(state, chain[k, CHAIN_OP], chain[k, CHAIN_SLOT])
    if slot >= 0:
        insert(state, op, slot)
    undo(net, state)
    for k in range(added):
        work(net, state, chain[k, CHAIN_OP], chain[k, CHAIN_SLOT], GOES, energy.tau)
    if slot >= 0:
        work(net, state, op, slot, COMES, energy.tau)
    return REFUSED


@inner
def draw_shift(net, state, fixed):
    """Draw a run and another slot for it, the first entry of `chain`; return op, slot and 1, or -1, -1, 0."""
    op = np.random.randint(len(net.ops) - 1)
    i = np.random.randint(state.ops[op, RUNS])
    old = state.slots[op, i]
    low, high = window(net, state, op, i, fixed)
    new = target(net, state, op, old, low, high) if high - low >= 2 else -1
    if new < 0 or new == old:
        return -1, -1, 0
    state.chain[0, CHAIN_OP], state.chain[0, CHAIN_SLOT] = op, new
    return op, old, 1


@inner
def draw_recomputation(net, state, fixed):
    """Draw a run of an op that runs more than once; return op, slot and change of cost, or -1, -1, 0."""
    number = state.number
    if number[REPEATED] == 0:
        return -1, -1, 0
    op = state.ops[np.random.randint(number[REPEATED]), REPEATED_OP]
    i = np.random.randint(state.ops[op, RUNS])
    if i == 0 and (fixed or state.slots[op, 1] >= first_before(net, state, op)):
        return -1, -1, 0
    return op, state.slots[op, i], -net.ops[op, OP_COST]


@kernel
def anneal(net, state, energy, seed, moves, fixed, again):
    """Try `moves` moves; return the share of them that met the budget.

    The energy is cost + per_byte * (bytes of the peak above the budget) + per_soft * (soft excess). With a negative
    `seed` it continues the last call of this thread, with the same `tau`.
    """
    if seed >= 0:
        np.random.seed(seed)
        plant(net, state, energy.budget, energy.tau)
    number, tree = state.number, state.tree
    met = 0
    now = penalty(state, energy)
    for _ in range(moves):
        met += tree[1, HIGHEST] <= energy.budget
        bar = now - energy.heat * math.log(1.0 - np.random.random())
        kind = np.random.random()
        op, slot, added, price = -1, -1, 0, 0
        if kind < SHIFT:
            op, slot, added = draw_shift(net, state, fixed)
        elif kind < ANY:
            writer, read = read_beyond(net, state, hot_slot(tree)) if kind < GUIDED else any_read(net, state)
            if writer >= 0:
                added, price = choose_chain(net, state, fixed, again, bar, writer, read)
        else:
            op, slot, price = draw_recomputation(net, state, fixed)
        if slot < 0 and added == 0:
            continue
        after = attempt(net, state, energy, (op, slot), added, price, bar)
        if after == REFUSED:
            continue
        now = after
        if tree[1, HIGHEST] <= energy.budget and (number[BEST] < 0 or number[COST] < number[BEST]):
            number[BEST] = number[COST]
            for slot in range(len(state.held)):
                state.best[slot] = state.held[slot]
    return met / moves
