"""Kernels of searches with a host: programs of choices by stage, their memory and their time.

Time is counted in stages as in :mod:`remat.heuristics.drops.stages_kernel`: stage ``s`` ends with the first run of the
``s``-th op of an order, before that come recomputations in that order, and the last stage provides the kept tensors. A
choice is a run of an op in a stage, or a fetch of a tensor in a stage. A tensor that a stage uses is computed there,
fetched there, or kept since its last use; so any choices give a program, perhaps with too much memory.

A fetched tensor is absent between its last use and the stage: its *gap*. It is written once, right after the compute
before its first gap, and freed when the write has ended, or earlier with a wait where the room is needed. Its fetch is
issued as late as it arrives on time, or where room for it begins.
"""

# Kernels carry no types, and are called by position only.
# ruff: noqa: PLR0917
# mypy: allow-untyped-defs

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from remat.runtime.arrays import Int
from remat.runtime.compiled import inner, kernel


class TransferGraph(NamedTuple):
    """Graph without graph inputs, a machine, and an order; rows of all tables as in :class:`remat.graphs.arrays.Csr`.

    `writer` is the op of a tensor, -1 for an accumulation buffer; `touched` the bytes that each op needs; `most_runs`
    and `most_fetches` the room for choices that are allowed. `pair_ptr`, `pair_output` and `pair_source` are the
    outputs that ops may write in place of inputs. `scalars` is [budget, host, full duplex].
    """

    size: Int
    cost: Int
    touched: Int
    in_ptr: Int
    inputs: Int
    out_ptr: Int
    outputs: Int
    writer: Int
    reader_ptr: Int
    readers: Int
    pair_ptr: Int
    pair_output: Int
    pair_source: Int
    kept: Int
    most_runs: Int
    most_fetches: Int
    order: Int
    position: Int
    write: Int
    read: Int
    scalars: Int


class Choices(NamedTuple):
    """Runs of ops and fetches of tensors: `runs[x, :num_runs[x]]` and `fetched[t, :num_fetches[t]]` are their stages.

    Neither is sorted, and the first run of an op is not among them.
    """

    runs: NDArray[np.int32]
    num_runs: Int
    fetched: NDArray[np.int32]
    num_fetches: Int


class Program(NamedTuple):
    """Program of choices, and room to make it.

    `sequence` has the ops by step, `begins` the first step of each stage. `memory` has the bytes of each step without
    those that wait for writes or come early; `waiting` has the former, and `room` the bytes that remain. A step may
    begin at `start`. Gap ``g`` of tensor `gap_tensor` is between the steps `gap_from` and `gap_to`. Its `gap_state` is
    one of the states below. The tensor is freed before step `gap_release` and fetched before `gap_issue`. Tensors that
    stay have `kept_tensor`, `kept_from` and `kept_to` instead, and `kept_made`, the step that computed them. Tensors in
    `freed` are dead after the steps `freed_at`. Frees that may wait for a write are linked from `first_free` of the
    step. A tensor is written after step `write_at`, -1 for none, up to the time `written`.
    """

    sequence: Int
    begins: Int
    fetch_begins: Int
    fetch_tensors: Int
    memory: Int
    waiting: Int
    start: Int
    room: Int
    last: Int
    made: Int
    stamp: Int
    write_at: Int
    written: Int
    first_write: Int
    next_write: Int
    host: Int
    gap_tensor: Int
    gap_from: Int
    gap_to: Int
    gap_state: NDArray[np.int8]
    gap_release: Int
    gap_issue: Int
    gap_arrival: Int
    first_gap: Int
    next_gap: Int
    first_issue: Int
    next_issue: Int
    heap: Int
    released: Int
    kept_tensor: Int
    kept_from: Int
    kept_to: Int
    kept_made: Int
    freed: Int
    freed_at: Int
    first_free: Int
    next_free: Int
    number: Int


#: Fields of `TransferGraph.scalars`.
BUDGET, HOST, DUPLEX = range(3)
#: Fields of `Program.number`: time; bytes above the budget, and above the host's memory, summed over steps; steps;
#: gaps; kept gaps; frees; releases; highest memory; time of the links for all gaps, also unused ones; time of all
#: computes.
TIME, EXCESS, HOST_EXCESS, STEPS, GAPS, KEPT, FREES, RELEASES, PEAK, LINKS, COMPUTING = range(11)
#: States of gaps: before it, waiting for the write, released, not used since the tensor did not leave in time.
OPEN, WAITING, RELEASED, UNUSED = range(4)


@kernel
def evaluate(net, choices, program):
    """Make the program of choices; its results are in `number`."""
    make_sequence(net, choices, program)
    make_gaps(net, program)
    release(net, program)
    issue(net, program)
    forget_writes(program)
    link_frees(program)
    measure(net, program)
    measure_host(net, program)


@inner
def make_sequence(net, choices, program):
    """List the ops by step, and the fetches by stage."""
    stages = len(net.order) + 1
    begins, fetch_begins = program.begins, program.fetch_begins
    for s in range(stages + 1):
        begins[s] = 0 if s in (0, stages) else 1
        fetch_begins[s] = 0
    for op in range(len(net.cost)):
        for j in range(choices.num_runs[op]):
            begins[choices.runs[op, j] + 1] += 1
    for tensor in range(len(net.size)):
        for j in range(choices.num_fetches[tensor]):
            fetch_begins[choices.fetched[tensor, j] + 1] += 1
    for s in range(stages):
        begins[s + 1] += begins[s]
        fetch_begins[s + 1] += fetch_begins[s]
    # filled from the front of each row; `begins` moves with it, and is set back at the end
    for place in range(len(net.order)):
        op = net.order[place]
        for j in range(choices.num_runs[op]):
            s = choices.runs[op, j]
            program.sequence[begins[s]] = op
            begins[s] += 1
    for tensor in range(len(net.size)):
        for j in range(choices.num_fetches[tensor]):
            s = choices.fetched[tensor, j]
            program.fetch_tensors[fetch_begins[s]] = tensor
            fetch_begins[s] += 1
    for s in range(stages - 1, -1, -1):
        if s < stages - 1:
            program.sequence[begins[s]] = net.order[s]
        begins[s + 1] = begins[s] + (1 if s < stages - 1 else 0)
        fetch_begins[s + 1] = fetch_begins[s]
    begins[0] = fetch_begins[0] = 0
    program.number[STEPS] = begins[stages]


@inner
def make_gaps(net, program):
    """Find the gaps of all tensors, and the memory of all steps without early fetches and late frees."""
    number, memory, last, made = program.number, program.memory, program.last, program.made
    steps = number[STEPS]
    number[GAPS] = number[KEPT] = number[FREES] = number[LINKS] = 0
    for k in range(steps + 2):
        memory[k] = program.waiting[k] = 0
        program.first_gap[k] = program.first_write[k] = -1
    for tensor in range(len(net.size)):
        last[tensor] = made[tensor] = program.write_at[tensor] = program.stamp[tensor] = -1
        program.written[tensor] = 0
    k = 0
    for s in range(len(net.order) + 1):
        begin = program.begins[s]
        for i in range(program.fetch_begins[s], program.fetch_begins[s + 1]):
            program.stamp[program.fetch_tensors[i]] = s
        while k < program.begins[s + 1]:
            op = program.sequence[k]
            memory[k] += net.touched[op]
            for i in range(net.in_ptr[op], net.in_ptr[op + 1]):
                use(net, program, net.inputs[i], k, begin, s)
            for i in range(net.out_ptr[op], net.out_ptr[op + 1]):
                tensor = net.outputs[i]
                if last[tensor] >= 0:
                    if net.writer[tensor] < 0:
                        hold(net, program, tensor, last[tensor], k)
                    else:
                        end(net, program, tensor)
                last[tensor] = made[tensor] = k
            k += 1
    final = program.begins[len(net.order)]
    for tensor in range(len(net.size)):
        if net.kept[tensor]:
            use(net, program, tensor, steps, final, len(net.order))
            memory[steps] += net.size[tensor]
        elif last[tensor] >= 0:
            end(net, program, tensor)
    changes, before = 0, 0
    for k in range(steps + 1):  # `use` and `hold` write changes between steps into the fields after `waiting`
        before = program.waiting[k]
        changes += before
        program.waiting[k] = 0
        memory[k] += changes
    program.waiting[steps + 1] = 0


@inner
def hold(net, program, tensor, begin, end):
    """Hold a tensor between two steps."""
    if end > begin + 1:
        program.waiting[begin + 1] += net.size[tensor]
        program.waiting[end] -= net.size[tensor]


@inner
def use(net, program, tensor, k, begin, stage):
    """Read a tensor at step `k` of a stage that begins at step `begin`."""
    previous = program.last[tensor]
    program.last[tensor] = k
    number = program.number
    if previous < begin and program.stamp[tensor] == stage:
        gap = number[GAPS]
        number[GAPS] += 1
        program.gap_tensor[gap], program.gap_from[gap], program.gap_to[gap] = tensor, previous, k
        program.gap_state[gap] = OPEN
        program.gap_release[gap] = program.gap_issue[gap] = -1
        number[LINKS] += net.read[tensor]
        program.next_gap[gap] = program.first_gap[previous]
        program.first_gap[previous] = gap
        if program.write_at[tensor] < 0:
            made = program.made[tensor]
            program.write_at[tensor] = made
            program.next_write[tensor] = program.first_write[made]
            program.first_write[made] = tensor
            number[LINKS] += net.write[tensor]
        return
    if k > previous + 1:
        hold(net, program, tensor, previous, k)
        kept = number[KEPT]
        number[KEPT] += 1
        program.kept_tensor[kept], program.kept_from[kept], program.kept_to[kept] = tensor, previous, k
        program.kept_made[kept] = program.made[tensor]


@inner
def end(net, program, tensor):
    """Free a tensor after its last use; an op that writes in place of it needs less memory there."""
    step, number = program.last[tensor], program.number
    program.freed[number[FREES]], program.freed_at[number[FREES]] = tensor, step
    number[FREES] += 1
    op = program.sequence[step]
    if net.pair_ptr[op] == net.pair_ptr[op + 1] or program.made[tensor] == step:
        return
    for i in range(net.pair_ptr[op], net.pair_ptr[op + 1]):
        # one bit of `stamp` per output would be exact for several pairs; the first pair alone counts, which is safe
        if net.pair_source[i] == tensor:
            if i == net.pair_ptr[op] or net.pair_output[i] != net.pair_output[i - 1]:
                program.memory[step] -= net.size[tensor]
            return


@inner
def push(program, count, gap):
    """Add a gap to the heap by the end of its write; return the number of its entries."""
    heap, written = program.heap, program.written
    key = written[program.gap_tensor[gap]]
    i = count
    while i > 0:
        above = (i - 1) // 2
        if written[program.gap_tensor[heap[above]]] <= key:
            break
        heap[i] = heap[above]
        i = above
    heap[i] = gap
    return count + 1


@inner
def pop(program, count):
    """Remove the gap whose write ends first; return the number of entries left."""
    heap, written = program.heap, program.written
    count -= 1
    gap = heap[count]
    key = written[program.gap_tensor[gap]]
    i = 0
    while 2 * i + 1 < count:
        below = 2 * i + 1
        if (
            below + 1 < count
            and written[program.gap_tensor[heap[below + 1]]] < written[program.gap_tensor[heap[below]]]
        ):
            below += 1
        if written[program.gap_tensor[heap[below]]] >= key:
            break
        heap[i] = heap[below]
        i = below
    heap[i] = gap
    return count


@inner
def release(net, program):
    """Issue the writes and choose the frees of fetched tensors, as if every fetch arrived on time."""
    number, budget = program.number, net.scalars[BUDGET]
    steps = number[STEPS]
    clock: Any = np.int64(0)
    link: Any = np.int64(0)
    waiting: Any = np.int64(0)
    entries, gap_to_come, releases = 0, 0, 0
    number[EXCESS] = number[PEAK] = 0
    for k in range(steps + 1):
        while gap_to_come < number[GAPS] and program.gap_to[gap_to_come] == k:
            if program.gap_state[gap_to_come] == WAITING:
                program.gap_state[gap_to_come] = UNUSED
                waiting -= net.size[program.gap_tensor[gap_to_come]]
            gap_to_come += 1
        while entries > 0:
            gap = program.heap[0]
            tensor = program.gap_tensor[gap]
            if program.gap_state[gap] == WAITING:
                if program.written[tensor] > clock:
                    if program.memory[k] + waiting <= budget:
                        break
                    clock = program.written[tensor]
                program.gap_state[gap] = RELEASED
                program.gap_release[gap] = k
                program.released[releases] = gap
                releases += 1
                waiting -= net.size[tensor]
            entries = pop(program, entries)
        held = program.memory[k] + waiting
        number[EXCESS] += max(0, held - budget)
        number[PEAK] = max(number[PEAK], held)
        program.waiting[k], program.room[k], program.start[k] = waiting, budget - held, clock
        if k == steps:
            break
        clock += net.cost[program.sequence[k]]
        tensor = program.first_write[k]
        while tensor >= 0:
            link = max(clock, link) + net.write[tensor]
            program.written[tensor] = link
            tensor = program.next_write[tensor]
        gap = program.first_gap[k]
        while gap >= 0:
            program.gap_state[gap] = WAITING
            waiting += net.size[program.gap_tensor[gap]]
            entries = push(program, entries, gap)
            gap = program.next_gap[gap]
    number[RELEASES] = releases


@inner
def issue(net, program):
    """Choose where fetches are issued, from the last to the first."""
    number = program.number
    for k in range(number[STEPS] + 1):
        program.first_issue[k] = -1
    link: Any = program.start[number[STEPS]]
    for gap in range(number[GAPS] - 1, -1, -1):
        if program.gap_state[gap] != RELEASED:
            continue
        tensor = program.gap_tensor[gap]
        size, k = net.size[tensor], program.gap_to[gap]
        begin = min(program.start[k], link) - net.read[tensor]
        while k > program.gap_release[gap] and program.start[k] > begin and program.room[k - 1] >= size:
            k -= 1
            program.room[k] -= size
        if k == program.gap_release[gap]:
            program.gap_state[gap] = UNUSED
            continue
        link = max(begin, program.start[k])
        program.gap_issue[gap] = k
        program.next_issue[gap] = program.first_issue[k]
        program.first_issue[k] = gap


@inner
def measure(net, program):
    """Compute the time of the program exactly."""
    number = program.number
    steps = number[STEPS]
    clock: Any = np.int64(0)
    out: Any = np.int64(0)
    back: Any = np.int64(0)
    computing: Any = np.int64(0)
    freed, arriving = 0, 0
    half = net.scalars[DUPLEX] == 0
    for k in range(steps + 1):
        while freed < number[RELEASES] and program.gap_release[program.released[freed]] == k:
            gap = program.released[freed]
            if program.gap_state[gap] == RELEASED:
                clock = max(clock, program.written[program.gap_tensor[gap]])
            freed += 1
        gap = program.first_issue[k]
        while gap >= 0:
            tensor = program.gap_tensor[gap]
            back = max(clock, back, program.written[tensor]) + net.read[tensor]
            program.gap_arrival[gap] = back
            if half:
                out = back
            gap = program.next_issue[gap]
        while arriving < number[GAPS] and program.gap_to[arriving] == k:
            if program.gap_state[arriving] == RELEASED:
                clock = max(clock, program.gap_arrival[arriving])
            arriving += 1
        if k == steps:
            break
        op = program.sequence[k]
        if net.pair_ptr[op] < net.pair_ptr[op + 1]:
            clock = max(clock, written_sources(net, program, k, freed))
        clock += net.cost[op]
        computing += net.cost[op]
        tensor = program.first_write[k]
        while tensor >= 0:
            if program.write_at[tensor] >= 0:
                out = max(clock, out) + net.write[tensor]
                program.written[tensor] = out
                if half:
                    back = out
            tensor = program.next_write[tensor]
        i = program.first_free[k]
        while i >= 0:
            clock = max(clock, program.written[program.freed[i]])
            i = program.next_free[i]
    number[TIME], number[COMPUTING] = clock, computing


@inner
def written_sources(net, program, k, following):
    """Return the time at which the writes of all inputs that step `k` may overwrite have ended.

    `following` is the next release. Of several inputs that exclude each other all count, which is safe.
    """
    op, end = program.sequence[k], np.int64(0)
    i = program.first_free[k]
    while i >= 0:
        if is_source(net, op, program.freed[i]):
            end = max(end, program.written[program.freed[i]])
        i = program.next_free[i]
    j = following
    while j < program.number[RELEASES] and program.gap_release[program.released[j]] == k + 1:
        gap = program.released[j]
        tensor = program.gap_tensor[gap]
        if program.gap_state[gap] == RELEASED and program.gap_from[gap] == k and is_source(net, op, tensor):
            end = max(end, program.written[tensor])
        j += 1
    return end


@inner
def is_source(net, op, tensor):
    """Return True if the op may write an output in place of the tensor."""
    found = False
    for i in range(net.pair_ptr[op], net.pair_ptr[op + 1]):
        found = found or net.pair_source[i] == tensor
    return found


@inner
def forget_writes(program):
    """Forget the writes that no gap uses."""
    number = program.number
    for i in range(number[GAPS]):
        program.stamp[program.gap_tensor[i]] = -2
    for i in range(number[GAPS]):
        if program.gap_state[i] == RELEASED:
            program.stamp[program.gap_tensor[i]] = -1
    for i in range(number[GAPS]):
        tensor = program.gap_tensor[i]
        if program.stamp[tensor] == -2:
            program.write_at[tensor] = -1


@inner
def link_frees(program):
    """Link the frees that follow a write of their tensor.

    The write may still be under way: its gaps are all unused, and the tensor is freed, recomputed and fetched later.
    """
    number = program.number
    for k in range(number[STEPS] + 1):
        program.first_free[k] = -1
    for i in range(number[FREES]):
        k = program.freed_at[i]
        if 0 <= program.write_at[program.freed[i]] <= k:
            program.next_free[i] = program.first_free[k]
            program.first_free[k] = i


@inner
def measure_host(net, program):
    """Sum the bytes above the host's memory over all steps."""
    number, host = program.number, net.scalars[HOST]
    number[HOST_EXCESS] = 0
    if host < 0:
        return
    steps = number[STEPS]
    for k in range(steps + 2):
        program.host[k] = 0
    for i in range(number[GAPS] - 1, -1, -1):  # the last gap of each tensor ends its copy
        tensor = program.gap_tensor[i]
        if program.gap_state[i] == RELEASED and program.write_at[tensor] >= 0 and program.stamp[tensor] != -3:
            program.stamp[tensor] = -3
            program.host[program.write_at[tensor]] += net.size[tensor]
            program.host[program.gap_to[i]] -= net.size[tensor]
    held = 0
    for k in range(steps + 1):
        held += program.host[k]
        number[HOST_EXCESS] += max(0, held - host)
