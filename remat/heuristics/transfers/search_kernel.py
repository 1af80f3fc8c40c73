"""Kernels of searches with a host: changes of choices that can be undone, and their prices."""

# Kernels carry no types, and are called by position only.
# ruff: noqa: PLR0917
# mypy: allow-untyped-defs

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from remat.heuristics.transfers.program_kernel import (
    EXCESS,
    GAPS,
    HOST_EXCESS,
    KEPT,
    STEPS,
    TIME,
    evaluate,
)
from remat.runtime.arrays import Int
from remat.runtime.compiled import inner, kernel


class Prices(NamedTuple):
    """Room for prices of changes.

    `stage_of` is the stage of each step; `above` the number of steps before it that are over the budget, `excess` their
    bytes above it. `out_idle` is the time before a step in which nothing is written, `back_idle` the time after it in
    which nothing is read. `move` and `again` are the prices, per byte and step over the budget, to move or recompute a
    kept tensor. `chain_op`, `chain_fetch` and `chain_seen` are a plan to recompute a tensor, `chain` its numbers of ops
    and fetches. `log` are changes that can be undone.
    """

    stage_of: Int
    above: Int
    excess: Int
    out_idle: Int
    back_idle: Int
    move: NDArray[np.float64]
    again: NDArray[np.float64]
    chain_op: Int
    chain_fetch: Int
    chain_seen: Int
    chain: Int
    log: Int


#: Fields of `Prices.chain`: ops, fetches, entries of the log, token.
OPS, FETCHES, LOGGED, TOKEN = range(4)
#: A price that is never paid.
NEVER = 1e300
#: Kinds of changes in the log; floats, since numba compiles a function again for each integer constant.
RUN_ADDED, RUN_TAKEN, FETCH_ADDED, FETCH_TAKEN = 0.0, 1.0, 2.0, 3.0


@inner
def add_run(net, choices, prices, op, stage):
    """Recompute an op in a stage, if that is allowed and new; return true if it was done."""
    if net.position[op] >= stage:
        return False
    return add(choices.runs, choices.num_runs, net.most_runs, prices, RUN_ADDED, op, stage)


@inner
def take_run(choices, prices, op, stage):
    """Take a recomputation back, if there is one; return true if it was done."""
    return take(choices.runs, choices.num_runs, prices, RUN_TAKEN, op, stage)


@inner
def add_fetch(net, choices, prices, tensor, stage):
    """Fetch a tensor in a stage, if that is allowed and new; return true if it was done."""
    return add(choices.fetched, choices.num_fetches, net.most_fetches, prices, FETCH_ADDED, tensor, stage)


@inner
def take_fetch(choices, prices, tensor, stage):
    """Take a fetch back, if there is one; return true if it was done."""
    return take(choices.fetched, choices.num_fetches, prices, FETCH_TAKEN, tensor, stage)


@inner
def add(stages, counts, most, prices, kind, item, stage):
    """Add a stage to those of an op or a tensor, if there is room and it is new; return true if it was done."""
    count = counts[item]
    if count >= most[item]:
        return False
    for j in range(count):
        if stages[item, j] == stage:
            return False
    stages[item, count] = stage
    counts[item] += 1
    note(prices, kind, item, stage)
    return True


@inner
def take(stages, counts, prices, kind, item, stage):
    """Take a stage of an op or a tensor back, if it is there; return true if it was done."""
    count = counts[item]
    for j in range(count):
        if stages[item, j] == stage:
            stages[item, j] = stages[item, count - 1]
            counts[item] -= 1
            note(prices, kind, item, stage)
            return True
    return False


@inner
def note(prices, kind, item, stage):
    """Add a change to the log."""
    at = 3 * prices.chain[LOGGED]
    prices.log[at], prices.log[at + 1], prices.log[at + 2] = kind, item, stage
    prices.chain[LOGGED] += 1


@inner
def undo(net, choices, prices):
    """Undo all changes of the log."""
    count = prices.chain[LOGGED]
    for i in range(count - 1, -1, -1):
        kind, item, stage = prices.log[3 * i], prices.log[3 * i + 1], prices.log[3 * i + 2]
        if kind == RUN_ADDED:
            take_run(choices, prices, item, stage)
        elif kind == RUN_TAKEN:
            add_run(net, choices, prices, item, stage)
        elif kind == FETCH_ADDED:
            take_fetch(choices, prices, item, stage)
        else:
            add_fetch(net, choices, prices, item, stage)
    prices.chain[LOGGED] = 0


@inner
def measure_links(net, program, prices):
    """Compute stages, excess and the links' idle times of an evaluated program."""
    steps = program.number[STEPS]
    s = 0
    for k in range(steps + 1):
        while s < len(net.order) and program.begins[s + 1] <= k:
            s += 1
        prices.stage_of[k] = s
    prices.above[0] = prices.excess[0] = 0
    link: Any = np.int64(0)
    busy: Any = np.int64(0)
    for k in range(steps + 1):
        over = max(0, -program.room[k])
        prices.above[k + 1] = prices.above[k] + (1 if over > 0 else 0)
        prices.excess[k + 1] = prices.excess[k] + over
        now = program.start[k]
        prices.out_idle[k] = now - (busy - max(0, link - now))
        if k < steps:
            now += net.cost[program.sequence[k]]
            tensor = program.first_write[k]
            while tensor >= 0:
                if program.write_at[tensor] == k:
                    link = max(now, link) + net.write[tensor]
                    busy += net.write[tensor]
                tensor = program.next_write[tensor]
    gap = program.number[GAPS] - 1
    final = link = program.start[steps]
    busy = 0
    for k in range(steps, -1, -1):
        now = program.start[k]
        while gap >= 0 and program.gap_to[gap] == k:
            if program.gap_issue[gap] >= 0:
                taken = net.read[program.gap_tensor[gap]]
                link = min(now, link) - taken
                busy += taken
            gap -= 1
        prices.back_idle[k] = final - now - (busy - max(0, now - link))


@inner
def last_touch(net, choices, tensor, stage):
    """Return the last stage up to `stage` in which a tensor is computed or read."""
    op = net.writer[tensor]
    found = 0
    if op >= 0:
        found = last_run(net, choices, op, stage)
    for k in range(net.reader_ptr[tensor], net.reader_ptr[tensor + 1]):
        found = max(found, last_run(net, choices, net.readers[k], stage))
    return found


@inner
def last_run(net, choices, op, stage):
    """Return the last stage up to `stage` with a run of an op, or -1."""
    found = net.position[op] if net.position[op] <= stage else -1
    for j in range(choices.num_runs[op]):
        if found < choices.runs[op, j] <= stage:
            found = choices.runs[op, j]
    return found


@inner
def next_run(net, choices, op, stage, found):
    """Return the first stage from `stage` on with a run of an op, if it is before `found`, or `found`."""
    if stage <= net.position[op] < found:
        found = net.position[op]
    for j in range(choices.num_runs[op]):
        if stage <= choices.runs[op, j] < found:
            found = np.int64(choices.runs[op, j])
    return found


@inner
def next_read(net, choices, tensor, stage):
    """Return the first stage from `stage` on that reads a tensor before it is computed again, or -1."""
    none: Any = len(net.order) + 1
    found = none
    if net.kept[tensor]:
        found = len(net.order)
    for k in range(net.reader_ptr[tensor], net.reader_ptr[tensor + 1]):
        found = next_run(net, choices, net.readers[k], stage, found)
    op = net.writer[tensor]
    if op >= 0 and next_run(net, choices, op, stage + 1, none) < found:
        return -1
    return found if found < none else -1


@inner
def is_fetched(choices, tensor, stage):
    """Return true if a stage fetches a tensor."""
    for j in range(choices.num_fetches[tensor]):  # noqa: SIM110  (kernels support no generators here)
        if choices.fetched[tensor, j] == stage:
            return True
    return False


@inner
def plan(net, choices, program, prices, op, stage, terms):
    """Plan to recompute an op in a stage: list ops and fetches, and return the price for each byte of excess.

    `terms` has three numbers: the excess that this removes, the price of time on a link, and the price of holding an
    input for longer. The latter is relative to the price of the excess that the ops so far remove.
    """
    gain, price, leaning = terms
    chain = prices.chain
    chain[TOKEN] += 1
    token = chain[TOKEN]
    chain[OPS] = chain[FETCHES] = 0
    if net.most_runs[op] <= choices.num_runs[op] or gain <= 0:
        return NEVER
    prices.chain_op[0] = op
    chain[OPS] = 1
    paid, lost = 0.0, 0.0
    for i in range(net.out_ptr[op], net.out_ptr[op + 1]):
        prices.chain_seen[net.outputs[i]] = token
    at = 0
    while at < chain[OPS]:
        x = prices.chain_op[at]
        paid += net.cost[x]
        at += 1
        for i in range(net.in_ptr[x], net.in_ptr[x + 1]):
            tensor = net.inputs[i]
            if prices.chain_seen[tensor] == token:
                continue
            prices.chain_seen[tensor] = token
            touched = last_touch(net, choices, tensor, stage)
            if touched == stage:
                continue
            following = next_read(net, choices, tensor, stage)
            if following >= 0 and not is_fetched(choices, tensor, following):
                continue
            over = prices.above[program.begins[stage]] - prices.above[program.begins[touched + 1]]
            if over == 0:
                continue
            held = net.size[tensor] * over
            worth = leaning * held * paid / gain
            moved = NEVER
            if choices.num_fetches[tensor] < net.most_fetches[tensor]:
                moved = price * (net.read[tensor] + (net.write[tensor] if program.write_at[tensor] < 0 else 0))
            writer = net.writer[tensor]
            again = NEVER
            if writer >= 0 and choices.num_runs[writer] < net.most_runs[writer] and chain[OPS] < len(prices.chain_op):
                again = float(net.cost[writer])
            if again < worth and again <= moved:
                prices.chain_op[chain[OPS]] = writer
                chain[OPS] += 1
                for j in range(net.out_ptr[writer], net.out_ptr[writer + 1]):
                    prices.chain_seen[net.outputs[j]] = token
            elif moved < worth and chain[FETCHES] < len(prices.chain_fetch):
                prices.chain_fetch[chain[FETCHES]] = tensor
                chain[FETCHES] += 1
                paid += moved
            else:
                lost += held
    return paid / (gain - lost) if gain > lost else NEVER


@kernel
def price_changes(net, choices, program, prices, price, leaning):
    """Compute the prices to move and to recompute each kept tensor.

    A move is worth the excess between the step by which the links have had time for it, and the step from which on they
    have; or all of its gap, if the device waits for the missing time.
    """
    measure_links(net, program, prices)
    for i in range(program.number[KEPT]):
        tensor, begin, end = program.kept_tensor[i], program.kept_from[i], program.kept_to[i]
        prices.move[i] = prices.again[i] = NEVER
        gain = worth_of(net, prices, tensor, begin + 1, end)
        if gain == 0:
            continue
        stage = prices.stage_of[end]
        if begin < program.begins[stage] and choices.num_fetches[tensor] < net.most_fetches[tensor]:
            prices.move[i] = price_of_move(net, program, prices, i, price)
        writer = net.writer[tensor]
        if writer >= 0 and net.position[writer] < stage and begin < program.begins[stage]:
            prices.again[i] = plan(net, choices, program, prices, writer, stage, (gain, price, leaning))


@inner
def worth_of(net, prices, tensor, begin, end):
    """Return the excess of the steps from `begin` to before `end` that the bytes of a tensor account for."""
    if end <= begin:
        return 0.0
    over = prices.above[end] - prices.above[begin]
    return float(min(net.size[tensor] * over, prices.excess[end] - prices.excess[begin]))


@inner
def price_of_move(net, program, prices, i, price):
    """Return the price, for each byte of excess, to move a kept tensor."""
    tensor, begin, end = program.kept_tensor[i], program.kept_from[i], program.kept_to[i]
    made, write = program.kept_made[i], np.int64(0)
    if program.write_at[tensor] < 0:
        write = net.write[tensor]
    read = net.read[tensor]
    away, back = begin + 1, end
    if write > 0:
        away = first_idle(prices.out_idle, begin + 1, end, prices.out_idle[min(made + 1, end)] + write)
    back = last_idle(prices.back_idle, begin + 1, end, prices.back_idle[end] + read)
    paid = price * (write + read) + 1.0
    gain = worth_of(net, prices, tensor, away, back)
    best = paid / gain if gain > 0 else NEVER
    # first and last steps over the budget within the gap
    first = first_above(prices.above, begin + 1, end, prices.above[begin + 1])
    last = first_above(prices.above, begin + 1, end, prices.above[end] - 1)
    missing: Any = np.int64(0)
    if write > 0:
        missing = max(missing, write - (prices.out_idle[first] - prices.out_idle[min(made + 1, end)]))
    missing += max(0, read - (prices.back_idle[last + 1] - prices.back_idle[end]))
    gain = worth_of(net, prices, tensor, begin + 1, end)
    return min(best, (paid + missing) / gain)


@inner
def first_idle(idle, begin, end, wanted):
    """Return the first step from `begin` on with at least so much idle time before it, or `end`."""
    low, high = begin, end
    while low < high:
        middle = (low + high) // 2
        if idle[middle] >= wanted:
            high = middle
        else:
            low = middle + 1
    return low


@inner
def last_idle(idle, begin, end, wanted):
    """Return the step after the last one before `end` with at least so much idle time after it, or `begin`."""
    low, high = begin, end
    while low < high:
        middle = (low + high) // 2
        if idle[middle] >= wanted:
            low = middle + 1
        else:
            high = middle
    return low


@inner
def first_above(above, begin, end, count):
    """Return the first step from `begin` on after which more than `count` steps are over the budget."""
    low, high = begin, end - 1
    while low < high:
        middle = (low + high) // 2
        if above[middle + 1] > count:
            high = middle
        else:
            low = middle + 1
    return low


@kernel
def take_changes(net, choices, program, prices, items, price, leaning):
    """Move or recompute kept tensors, whichever is cheaper; prices of the program must be known."""
    prices.chain[LOGGED] = 0
    for i in items:
        tensor, begin, end = program.kept_tensor[i], program.kept_from[i], program.kept_to[i]
        stage = prices.stage_of[end]
        if prices.move[i] <= prices.again[i]:
            add_fetch(net, choices, prices, tensor, stage)
            continue
        gain = worth_of(net, prices, tensor, begin + 1, end)
        plan(net, choices, program, prices, net.writer[tensor], stage, (gain, price, leaning))
        for j in range(prices.chain[OPS]):
            add_run(net, choices, prices, prices.chain_op[j], stage)
        for j in range(prices.chain[FETCHES]):
            add_fetch(net, choices, prices, prices.chain_fetch[j], stage)


@kernel
def undo_changes(net, choices, prices):
    """Undo the changes of the log."""
    undo(net, choices, prices)


@kernel
def take_back(net, choices, program, prices, items, stages):
    """Take recomputations (ops) and fetches (numbers of ops + tensors) back where that costs neither time nor memory.

    Return the number of changes.
    """
    evaluate(net, choices, program)
    time = program.number[TIME]
    excess = program.number[EXCESS] + program.number[HOST_EXCESS]
    taken = 0
    for i in range(len(items)):
        prices.chain[LOGGED] = 0
        if items[i] < len(net.cost):
            take_run(choices, prices, items[i], stages[i])
        else:
            take_fetch(choices, prices, items[i] - len(net.cost), stages[i])
        if prices.chain[LOGGED] == 0:
            continue
        evaluate(net, choices, program)
        left = program.number[EXCESS] + program.number[HOST_EXCESS]
        if left <= excess and program.number[TIME] <= time:
            time, excess = program.number[TIME], left
            taken += 1
        else:
            undo(net, choices, prices)
    return taken
