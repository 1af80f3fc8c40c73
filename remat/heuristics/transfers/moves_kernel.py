"""Kernel of annealing: random changes of choices, each evaluated exactly."""

# Kernels carry no types, and are called by position only.
# ruff: noqa: PLR0917
# mypy: allow-untyped-defs

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from remat.heuristics.transfers.program_kernel import (
    COMPUTING,
    EXCESS,
    GAPS,
    HOST_EXCESS,
    KEPT,
    LINKS,
    STEPS,
    TIME,
    Choices,
    evaluate,
)
from remat.heuristics.transfers.search_kernel import (
    LOGGED,
    add_fetch,
    add_run,
    is_fetched,
    last_touch,
    next_read,
    next_run,
    take_fetch,
    take_run,
    undo,
)
from remat.runtime.arrays import Int
from remat.runtime.compiled import inner, kernel


class Walk(NamedTuple):
    """State of an annealing walk.

    `current` has time, excess, link time and computing time of the current choices. `choices` are the best ones without
    excess, and `best` is their time, or -1 for none. `stack` is room.
    """

    current: Int
    best: Int
    choices: Choices
    stack: Int


#: Attempts to draw a suitable step, tensor or op.
TRIES = 24


@inner
def stage_at(net, program, step):
    """Return the stage of a step."""
    low, high = 0, len(net.order)
    while low < high:
        middle = (low + high + 1) // 2
        if program.begins[middle] <= step:
            low = middle
        else:
            high = middle - 1
    return low


@inner
def drop_run(net, choices, prices, stack, op, stage):
    """Take a recomputation back, and those in its stage that only it needs."""
    stack[0], count = op, 1
    while count > 0:
        count -= 1
        x = stack[count]
        if not take_run(choices, prices, x, stage):
            continue
        for i in range(net.in_ptr[x], net.in_ptr[x + 1]):
            tensor = net.inputs[i]
            writer = net.writer[tensor]
            if writer < 0 or count >= len(stack) - 1:
                continue
            needed = False
            for j in range(net.out_ptr[writer], net.out_ptr[writer + 1]):
                needed = needed or next_read(net, choices, net.outputs[j], stage) >= 0
            if not needed:
                stack[count] = writer
                count += 1
            elif is_fetched(choices, tensor, stage) and next_read(net, choices, tensor, stage) != stage:
                take_fetch(choices, prices, tensor, stage)


@inner
def add_chain(net, choices, prices, stack, op, stage, again):
    """Recompute an op; recompute or fetch those inputs that would be held for it, with a probability `again`."""
    stack[0], count = op, 1
    while count > 0:
        count -= 1
        x = stack[count]
        if not add_run(net, choices, prices, x, stage):
            continue
        for i in range(net.in_ptr[x], net.in_ptr[x + 1]):
            tensor = net.inputs[i]
            if last_touch(net, choices, tensor, stage) == stage:
                readers = 0  # touched by another run of this stage, or by this one only
                for k in range(net.reader_ptr[tensor], net.reader_ptr[tensor + 1]):
                    if next_run(net, choices, net.readers[k], stage, stage + 1) == stage:
                        readers += 1
                writer = net.writer[tensor]
                if readers > 1 or (writer >= 0 and next_run(net, choices, writer, stage, stage + 1) == stage):
                    continue
            if next_read(net, choices, tensor, stage + 1) >= 0 or np.random.random() >= again:  # noqa: NPY002
                continue
            writer = net.writer[tensor]
            if writer < 0 or np.random.random() < 0.3:  # noqa: NPY002
                add_fetch(net, choices, prices, tensor, stage)
            elif count < len(stack):
                stack[count] = writer
                count += 1


@inner
def vary(net, choices, program, prices, walk, again):
    """Change choices at random; the changes are in the log."""
    number, stack = program.number, walk.stack
    kind = np.random.random()  # noqa: NPY002
    removing = kind < 0.6
    if removing and kind < 0.36:  # a recomputation
        for _ in range(TRIES):
            k = np.random.randint(number[STEPS])  # noqa: NPY002
            stage = stage_at(net, program, k)
            if stage < len(net.order) and k + 1 == program.begins[stage + 1]:
                continue
            op = program.sequence[k]
            drop_run(net, choices, prices, stack, op, stage)
            if np.random.random() < 0.5:  # noqa: NPY002
                for i in range(net.out_ptr[op], net.out_ptr[op + 1]):
                    tensor = net.outputs[i]
                    following = next_read(net, choices, tensor, stage)
                    if following >= 0 and net.size[tensor] > 0:
                        add_fetch(net, choices, prices, tensor, following)
            break
    elif removing and number[GAPS] > 0:
        gap = np.random.randint(number[GAPS])  # noqa: NPY002
        tensor, stage = program.gap_tensor[gap], stage_at(net, program, program.gap_to[gap])
        take_fetch(choices, prices, tensor, stage)
        if np.random.random() < 0.5 and net.writer[tensor] >= 0:  # noqa: NPY002
            add_chain(net, choices, prices, stack, net.writer[tensor], stage, again)
    if (not removing or np.random.random() < 0.3) and number[KEPT] > 0:  # noqa: NPY002
        chosen, worth = -1, -1.0
        for _ in range(3):
            i = np.random.randint(number[KEPT])  # noqa: NPY002
            span = program.start[program.kept_to[i]] - program.start[program.kept_from[i]]
            value = float(net.size[program.kept_tensor[i]]) * span * np.random.random()  # noqa: NPY002
            if value > worth:
                chosen, worth = i, value
        tensor, stage = program.kept_tensor[chosen], stage_at(net, program, program.kept_to[chosen])
        if net.writer[tensor] < 0 or np.random.random() < 0.5:  # noqa: NPY002
            add_fetch(net, choices, prices, tensor, stage)
        else:
            add_chain(net, choices, prices, stack, net.writer[tensor], stage, again)


@inner
def copy(given, to):
    """Copy choices into the arrays of others."""
    for op in range(len(given.num_runs)):
        to.num_runs[op] = given.num_runs[op]
        for j in range(given.num_runs[op]):
            to.runs[op, j] = given.runs[op, j]
    for tensor in range(len(given.num_fetches)):
        to.num_fetches[tensor] = given.num_fetches[tensor]
        for j in range(given.num_fetches[tensor]):
            to.fetched[tensor, j] = given.fetched[tensor, j]


@kernel
def anneal(net, choices, program, prices, walk, energy, limits):
    """Make random moves at one temperature; return the share of states without excess.

    `energy` is [temperature, price of the excess, probability to recompute an input, price of link time, price of
    waiting]. `limits` is the seed and the number of moves.
    """
    np.random.seed(limits[0])  # noqa: NPY002
    moves = limits[1]
    temperature, penalty, again, link, waiting = energy[0], energy[1], energy[2], energy[3], energy[4]
    fitting = 0
    for _ in range(moves):
        prices.chain[LOGGED] = 0
        vary(net, choices, program, prices, walk, again)
        if prices.chain[LOGGED] == 0:
            fitting += walk.current[1] == 0
            continue
        evaluate(net, choices, program)
        time = program.number[TIME]
        excess = program.number[EXCESS] + program.number[HOST_EXCESS]
        links, computing = program.number[LINKS], program.number[COMPUTING]
        change = float(time - walk.current[0]) + penalty * float(excess - walk.current[1])
        change += link * float(links - walk.current[2])
        change += (waiting - 1.0) * (float(time - walk.current[0]) - float(computing - walk.current[3]))
        if change <= 0 or np.random.random() < np.exp(-change / temperature):  # noqa: NPY002
            walk.current[0], walk.current[1], walk.current[2], walk.current[3] = time, excess, links, computing
            if excess == 0 and (walk.best[0] < 0 or time < walk.best[0]):
                walk.best[0] = time
                copy(choices, walk.choices)
        else:
            undo(net, choices, prices)
        fitting += walk.current[1] == 0
    return fitting / moves
