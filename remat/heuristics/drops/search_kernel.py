"""Kernels of drops: the price of a drop, taking the best ones, and taking back unnecessary recomputations.

A *drop* ends an instance at its last read before some stage and recomputes it there. Inputs of the recomputation must
be live as well: they are held for longer where memory allows, or recomputed too, whichever is cheaper at the current
rate of cost per byte.
"""

# Kernels carry no types, and are called by position only.
# ruff: noqa: PLR0917
# mypy: allow-untyped-defs

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from remat.heuristics.drops.stages_kernel import (
    ADD,
    BLOCK,
    BUDGET,
    EXCESS,
    LEFT,
    TAKE,
    TOKEN,
    add,
    change,
    excess_change,
    instance,
    last_use,
)
from remat.runtime.arrays import Float, Int
from remat.runtime.compiled import inner, kernel


class DropHeap(NamedTuple):
    """Heap of drops, by the least cost per byte, and room for the ops that one drop recomputes.

    The drop of op ``x`` in stage ``s`` is the item ``x * stages + s``.
    """

    keys: Float
    items: Int
    chain: Int


@inner
def may_run(net, state, op, others):
    """Return True if another run of `op` is allowed, with room for it and for `others`."""
    return state.times[op] < net.limit[op] and state.number[LEFT] > others


@inner
def hold(net, state, tensor, stage, amount):
    """Add `amount` to the stages after the last read of `tensor` before `stage`, up to the one before `stage`."""
    begin, _ = instance(net, state, tensor, stage)
    add(state, last_use(net, state, tensor, begin, stage) + 1, stage - 1, amount)


@inner
def hold_outputs(net, state, op, stage, what):
    """Hold the dropped outputs of `op` again up to `stage` (`ADD`), or no longer (`TAKE`)."""
    for k in range(net.out_ptr[op], net.out_ptr[op + 1]):
        tensor = net.outputs[k]
        if state.tensor_stamp[tensor] == state.number[TOKEN]:
            hold(net, state, tensor, stage, net.size[tensor] if what > 0 else -net.size[tensor])


@inner
def drop_gain(net, state, op, stage, previous, following):
    """Return the excess removed by dropping the outputs of `op` up to `stage`, and stamp those that can be dropped."""
    gain = 0
    for k in range(net.out_ptr[op], net.out_ptr[op + 1]):
        tensor = net.outputs[k]
        if last_use(net, state, tensor, previous, following) >= stage:
            before = last_use(net, state, tensor, previous, stage)
            gain -= excess_change(state, before + 1, stage - 1, -net.size[tensor])
            state.tensor_stamp[tensor] = state.number[TOKEN]
    return gain


@inner
def cost_again(net, state, op, stage):
    """Return the cost of running `op` in `stage`, with the writers of inputs that are not live there."""
    cost = float(net.cost[op])
    for k in range(net.in_ptr[op], net.in_ptr[op + 1]):
        tensor = net.inputs[k]
        writer = net.writer[tensor]
        if writer >= 0 and state.op_stamp[writer] == state.number[TOKEN]:
            continue
        start, limit = instance(net, state, tensor, stage)
        if last_use(net, state, tensor, start, limit) < stage:
            cost += net.cost[writer] if writer >= 0 else np.inf
    return cost


@inner
def take_latest(net, chain, place, number):
    """Swap the latest of the ops from `place` on to `place`, and return it."""
    pick = place
    for i in range(place + 1, number):
        if net.position[chain[i]] > net.position[chain[pick]]:
            pick = i
    chain[place], chain[pick] = chain[pick], chain[place]
    return chain[place]


@inner
def supply(net, state, op, stage, chain, number, rate):
    """Hold each missing input of `op`, or add its writer to the chain if that is cheaper at `rate` (cost per byte).

    Returns
    -------
    number of ops in the chain, bytes held in `stage`
    """
    token, held = state.number[TOKEN], 0
    for k in range(net.in_ptr[op], net.in_ptr[op + 1]):
        tensor = net.inputs[k]
        writer = net.writer[tensor]
        if (writer >= 0 and state.op_stamp[writer] == token) or state.tensor_stamp[tensor] == token:
            continue
        begin, limit = instance(net, state, tensor, stage)
        end = last_use(net, state, tensor, begin, limit)
        if end >= stage:
            continue
        price = excess_change(state, end + 1, stage - 1, net.size[tensor])
        if (
            price > 0
            and writer >= 0
            and may_run(net, state, writer, number)
            and number < len(chain)
            and cost_again(net, state, writer, stage) < rate * price
        ):
            chain[number] = writer
            state.op_stamp[writer] = token
            number += 1
            continue
        state.tensor_stamp[tensor] = token
        hold(net, state, tensor, stage, net.size[tensor])
        held += net.size[tensor]
    return number, held


@inner
def plan(net, state, op, stage, chain, prices):
    """Plan the recomputation of `op` in `stage`: fill `chain` with the ops to run there, latest first.

    Tensors held for it are priced in the memory that remains after the drop itself. `prices` are the current rate of
    cost per byte, its factor for inputs, and a price: only the first op is considered if its own recomputation costs
    more than that per byte.

    Returns
    -------
    number of ops (0: impossible), cost, excess removed
    """
    rate, leaning, best = prices
    state.number[TOKEN] += 1
    token, runs, times = state.number[TOKEN], state.runs, state.times
    after = times[op]
    while runs[op, after - 1] > stage:
        after -= 1
    previous = np.int64(runs[op, after - 1])
    following = np.int64(runs[op, after]) if after < times[op] else len(net.order) + 1
    if previous == stage or not may_run(net, state, op, 0):
        return 0, 0, 0
    gain = drop_gain(net, state, op, stage, previous, following)
    if gain == 0:
        return 0, 0, 0
    chain[0] = op
    state.op_stamp[op] = token
    number, cost, here = 1, 0, 0
    if net.cost[op] > best * gain:
        return 1, net.cost[op], gain
    rate = leaning * max(rate, net.cost[op] / gain)
    excess = state.number[EXCESS]
    hold_outputs(net, state, op, stage, TAKE)
    place = 0
    while place < number:  # all ops that may read from an op are decided before it
        current = take_latest(net, chain, place, number)
        place += 1
        cost += net.cost[current]
        number, held = supply(net, state, current, stage, chain, number, rate)
        here += held
    gain = excess - state.number[EXCESS] - excess_change(state, stage, stage, here)
    for i in range(number):  # restore the memory
        for k in range(net.in_ptr[chain[i]], net.in_ptr[chain[i] + 1]):
            tensor = net.inputs[k]
            if state.tensor_stamp[tensor] == token:
                state.tensor_stamp[tensor] = 0
                hold(net, state, tensor, stage, -net.size[tensor])
    hold_outputs(net, state, op, stage, ADD)
    return number, cost, gain


@inner
def push(keys, items, number, key, item):
    """Push an entry onto a heap; ties go to the smaller item."""
    place = number
    while place > 0:
        up = (place - 1) // 2
        if keys[up] < key or (keys[up] == key and items[up] <= item):
            break
        keys[place], items[place] = keys[up], items[up]
        place = up
    keys[place], items[place] = key, item


@inner
def pop(keys, items, number):
    """Remove the first of `number` entries of a heap; the last entry replaces it."""
    key, item = keys[number - 1], items[number - 1]
    number -= 1
    place = 0
    while True:
        down = 2 * place + 1
        if down >= number:
            break
        if down + 1 < number and (
            keys[down + 1] < keys[down] or (keys[down + 1] == keys[down] and items[down + 1] < items[down])
        ):
            down += 1
        if key < keys[down] or (key == keys[down] and item <= items[down]):
            break
        keys[place], items[place] = keys[down], items[down]
        place = down
    keys[place], items[place] = key, item


@inner
def sort(values, number):
    """Sort the first `number` values (Shell's sort, by Ciura's gaps)."""
    gap = 701
    while gap < number // 2:
        gap = 9 * gap // 4
    while gap > 0:
        for i in range(gap, number):
            value, j = values[i], i
            while j >= gap and values[j - gap] > value:
                values[j] = values[j - gap]
                j -= gap
            values[j] = value
        gap = gap * 4 // 9 if gap > 2 else gap - 1


@inner
def uses_of(net, state, op, uses):
    """Fill in the stages where outputs of `op` are read or kept, ascending; return their number and output bytes."""
    found, bytes_ = 0, 0
    for k in range(net.out_ptr[op], net.out_ptr[op + 1]):
        tensor = net.outputs[k]
        bytes_ += net.size[tensor]
        for j in range(net.reader_ptr[tensor], net.reader_ptr[tensor + 1]):
            reader = net.readers[j]
            for i in range(state.times[reader]):
                uses[found] = state.runs[reader, i]
                found += 1
        if net.kept[tensor]:
            uses[found] = len(net.order)
            found += 1
    sort(uses, found)
    return found, bytes_


@kernel
def candidates(net, state, heap, number, part, over, uses):
    """Push the drops that could remove excess onto a heap, for the ops from ``part[0]`` to before ``part[1]``.

    `over` has one entry per stage and one more, and is filled in for the first op; `uses` has room for all stages in
    which outputs of one op are read, and one more for each output.
    """
    begin, end = part
    keys, items = heap.keys, heap.items
    stages = len(net.order) + 1
    if begin == 0:
        over[0] = 0
        for s in range(stages):
            over[s + 1] = over[s] + (state.memory[s] + state.lazy[s // BLOCK] > state.number[BUDGET])
    for op in range(begin, end):
        if state.times[op] >= net.limit[op]:
            continue
        found, bytes_ = uses_of(net, state, op, uses)
        single = net.out_ptr[op + 1] - net.out_ptr[op] == 1
        first = np.int64(state.runs[op, 0])
        last = first
        for i in range(found):
            stage = uses[i]
            if stage == last:
                continue
            # With several outputs, the gap of one may begin before the last use of another.
            length = over[stage] - over[(last if single else first) + 1]
            if length > 0 and number < len(keys):
                push(keys, items, number, net.cost[op] / (bytes_ * length) if bytes_ else np.inf, op * stages + stage)
                number += 1
            last = stage
    return number


@kernel
def change_many(net, state, heap, number, steps, factors, again):
    """Run :func:`take_back` and :func:`take`; one kernel, since they share nearly all compiled code.

    `again` has ops and stages of recomputations to take back.
    """
    ops, stages = again
    take_back(net, state, ops, stages)
    return take(net, state, heap, number, steps, factors)


@inner
def take(net, state, heap, number, steps, factors):
    """Take the best drops until nothing exceeds the budget, the heap is empty, or `steps` drops were evaluated.

    `factors` are leaning and slack. Leaning is the factor of the rate at which inputs are recomputed instead of held.
    Slack is that of the least possible price of the next drop, above which a drop is not taken.

    Returns
    -------
    entries left on the heap, drops taken
    """
    leaning, slack = factors
    keys, items, found = heap.keys, heap.items, heap.chain
    stages = len(net.order) + 1
    taken = 0
    while number > 0 and steps > 0 and state.number[EXCESS] > 0:
        steps -= 1
        rate, item = keys[0], items[0]
        pop(keys, items, number)
        number -= 1
        op, stage = item // stages, item % stages
        best = slack * max(keys[0], rate) if number > 0 else np.inf
        chain, cost, gain = plan(net, state, op, stage, found, (rate, leaning, best))
        if chain == 0 or gain <= 0:
            continue
        now = cost / gain
        if now > best:
            push(keys, items, number, now, item)
            number += 1
            continue
        before = state.number[EXCESS]
        for i in range(chain - 1, -1, -1):
            change(net, state, found[i], stage, ADD)
        if state.number[EXCESS] >= before:
            for i in range(chain):
                change(net, state, found[i], stage, TAKE)
            continue
        taken += 1
        for i in range(chain):  # the new instance may be dropped later
            for k in range(net.out_ptr[found[i]], net.out_ptr[found[i] + 1]):
                tensor = net.outputs[k]
                limit: Any = stages
                for j in range(state.times[found[i]] - 1, -1, -1):
                    if state.runs[found[i], j] > stage:
                        limit = np.int64(state.runs[found[i], j])
                end = last_use(net, state, tensor, stage, limit)
                if stage < end < stages and number < len(keys):
                    push(keys, items, number, now, found[i] * stages + end)
                    number += 1
        for i in range(chain):  # inputs read in this stage may be dropped up to it
            for k in range(net.in_ptr[found[i]], net.in_ptr[found[i] + 1]):
                writer = net.writer[net.inputs[k]]
                if writer >= 0 and number < len(keys):
                    push(keys, items, number, now, writer * stages + stage)
                    number += 1
    return number, taken


@inner
def take_back(net, state, ops, stages):
    """Take recomputations back, in the given order, where the excess does not grow without them."""
    for i in range(len(ops)):
        op, stage = ops[i], stages[i]
        before = state.number[EXCESS]
        if not _runs(state, op, stage):
            continue
        change(net, state, op, stage, TAKE)
        if state.number[EXCESS] > before:
            change(net, state, op, stage, ADD)


@inner
def _runs(state, op, stage):
    """Return True if `op` is recomputed in `stage`."""
    for i in range(1, state.times[op]):  # noqa: SIM110  (kernels support no generators here)
        if state.runs[op, i] == stage:
            return True
    return False
