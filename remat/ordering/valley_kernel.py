"""Kernel of the depth-first search from valley to valley for an order within a limit of memory.

Tables of int64, one row per quantity. `ops` (n + 1 columns; CSR pointers into `links` first) and `tensors` are those of
the graph. `frames` has the states of the path (n + 1 columns), and `arena` the ops still to try, frame after frame.
`table` holds the keys of states from which the end cannot be reached; `nodes` and `arcs` are room for cuts.
"""

# Compiled functions carry no types.
# mypy: allow-untyped-defs
# Tables are separate arguments: a tuple of arrays would take longer to compile than the function itself.
# ruff: noqa: PLR0913, PLR0917

from __future__ import annotations

from remat.ordering.least_cut_kernel import (
    BEGINS,
    BEGUN,
    ENDS,
    KEY_A,
    KEY_B,
    LEFT,
    MEMBER,
    PLACE,
    PREDECESSORS,
    RANK,
    READY,
    SIZE,
    SUCCESSORS,
    WAITING,
    WORKSPACE,
    is_least,
)
from remat.runtime.compiled import inner, kernel

# Rows of `frames`: the op that led there, bytes live, the ops to try (next, end, begin) and key of the state. Then the
# frames that may have ops to try (a list of its own), and room for a path.
OP, LIVE, TRY, TRY_END, TRY_BEGIN, FRAME_A, FRAME_B, OPEN, ROOM = range(9)
# `number`: current frame, bytes live, ops ready, the limit, the least step above it, states, frames in the list, keys
# in the table. Then a flag (nothing is listed yet), most ops of a cut, work done, a flag (choices were dropped), and
# their sort key (0: bytes left, 1: bytes at the step).
(
    DEPTH, LIVE_NOW, READY_COUNT, LIMIT, ABOVE, STATES, OPEN_COUNT, FILLED, FRESH, WINDOW, WORK, CLIPPED, RULE,
) = range(13)  # fmt: skip
# Results of `search`.
WORKING, FOUND, REFUTED = range(3)
#: Places of the table probed for one key.
PROBES = 8


@inner
def is_dead(table, key_a, key_b):
    """Return True if the table marks a state as one from which the end cannot be reached."""
    mask = table.shape[1] - 1
    for k in range(PROBES):
        place = (key_a + k) & mask
        if table[0, place] == key_a and table[1, place] == key_b:
            return True
        if table[0, place] == 0:
            return False
    return False


@inner
def mark_dead(table, number, key_a, key_b):
    """Mark a state as dead; a full table overwrites another state, which costs only time."""
    mask = table.shape[1] - 1
    for k in range(PROBES):
        place = (key_a + k) & mask
        if table[0, place] == 0:
            table[0, place], table[1, place] = key_a, key_b
            number[FILLED] += 1
            return
    place = (key_a + (key_b & (PROBES - 1))) & mask
    table[0, place], table[1, place] = key_a, key_b


@inner
def advance(ops, tensors, links, frames, number, op):
    """Compute `op`: the next frame, without ops to try."""
    live = number[LIVE_NOW]
    for k in range(ops[BEGINS, op], ops[BEGINS, op + 1]):
        tensor = links[k]
        if tensors[BEGUN, tensor] == 0:
            live += tensors[SIZE, tensor]
        tensors[BEGUN, tensor] += 1
    for k in range(ops[ENDS, op], ops[ENDS, op + 1]):
        tensor = links[k]
        tensors[LEFT, tensor] -= 1
        if tensors[LEFT, tensor] == 0:
            live -= tensors[SIZE, tensor]
    count = number[READY_COUNT] - 1
    other, place = ops[READY, count], ops[PLACE, op]
    ops[READY, place], ops[PLACE, other] = other, place
    for k in range(ops[SUCCESSORS, op], ops[SUCCESSORS, op + 1]):
        other = links[k]
        ops[WAITING, other] -= 1
        if ops[WAITING, other] == 0:
            ops[READY, count], ops[PLACE, other] = other, count
            count += 1
    number[READY_COUNT], number[LIVE_NOW] = count, live
    depth = number[DEPTH]
    top = frames[TRY_END, depth]
    frames[FRAME_A, depth + 1] = frames[FRAME_A, depth] ^ ops[KEY_A, op]
    frames[FRAME_B, depth + 1] = frames[FRAME_B, depth] ^ ops[KEY_B, op]
    depth += 1
    frames[OP, depth], frames[LIVE, depth] = op, live
    frames[TRY, depth] = frames[TRY_END, depth] = frames[TRY_BEGIN, depth] = top
    number[DEPTH] = depth


@inner
def retreat(ops, tensors, links, frames, number):
    """Undo the last op."""
    depth = number[DEPTH]
    op = frames[OP, depth]
    count = number[READY_COUNT]
    for k in range(ops[SUCCESSORS, op + 1] - 1, ops[SUCCESSORS, op] - 1, -1):
        other = links[k]
        if ops[WAITING, other] == 0:
            count -= 1
            last, place = ops[READY, count], ops[PLACE, other]
            ops[READY, place], ops[PLACE, last] = last, place
        ops[WAITING, other] += 1
    ops[READY, count], ops[PLACE, op] = op, count
    number[READY_COUNT] = count + 1
    for k in range(ops[ENDS, op], ops[ENDS, op + 1]):
        tensors[LEFT, links[k]] += 1
    for k in range(ops[BEGINS, op], ops[BEGINS, op + 1]):
        tensors[BEGUN, links[k]] -= 1
    if number[OPEN_COUNT] > 0 and frames[OPEN, number[OPEN_COUNT] - 1] == depth:
        number[OPEN_COUNT] -= 1
    number[DEPTH] = depth - 1
    number[LIVE_NOW] = frames[LIVE, depth - 1]


@inner
def list_choices(ops, tensors, links, frames, arena, table, number):
    """List the ops to try from the current state: within the limit, those that leave the fewest bytes first.

    An op that leaves no more bytes than are live now dominates all others and is the only one tried.
    """
    depth, live, rule = number[DEPTH], number[LIVE_NOW], number[RULE]
    begin = frames[TRY_BEGIN, depth]
    end = begin
    most = arena.shape[1] - ops.shape[1]  # beyond this each frame has room for one choice
    for i in range(number[READY_COUNT]):
        op = ops[READY, i]
        step = live
        for k in range(ops[BEGINS, op], ops[BEGINS, op + 1]):
            if tensors[BEGUN, links[k]] == 0:
                step += tensors[SIZE, links[k]]
        after = step
        step += ops[WORKSPACE, op]
        if step > number[LIMIT]:
            number[ABOVE] = min(number[ABOVE], step)
            continue
        for k in range(ops[ENDS, op], ops[ENDS, op + 1]):
            if tensors[LEFT, links[k]] == 1:
                after -= tensors[SIZE, links[k]]
        dead = is_dead(table, frames[FRAME_A, depth] ^ ops[KEY_A, op], frames[FRAME_B, depth] ^ ops[KEY_B, op])
        if after <= live:
            arena[0, begin] = op
            end = begin if dead else begin + 1
            break
        if dead:
            continue
        if end >= most and end > begin:
            number[CLIPPED] = 1
            continue
        arena[0, end], arena[1, end] = op, step if rule else after
        end += 1
    sort_choices(ops, arena, begin, end)
    frames[TRY, depth], frames[TRY_END, depth] = begin, end
    frames[OPEN, number[OPEN_COUNT]] = depth
    number[OPEN_COUNT] += 1
    number[STATES] += 1
    number[WORK] += 4 + number[READY_COUNT]


@inner
def sort_choices(ops, arena, begin, end):
    """Shell sort: by the second row, then by rank."""
    gap = 1
    while 3 * gap < end - begin:
        gap = 3 * gap + 1
    while gap > 0:
        for i in range(begin + gap, end):
            op, key = arena[0, i], arena[1, i]
            place = i
            while place - gap >= begin:
                other = arena[1, place - gap]
                if other < key or (other == key and ops[RANK, arena[0, place - gap]] < ops[RANK, op]):
                    break
                arena[0, place], arena[1, place] = arena[0, place - gap], other
                place -= gap
            arena[0, place], arena[1, place] = op, key
        gap //= 3


@inner
def commit(ops, tensors, links, frames, nodes, arcs, number):
    """Discard the remaining choices of earlier states if the current state is a valley below them.

    Returns whether the state changed: a lower one between them replaces it.
    """
    depth, live = number[DEPTH], number[LIVE_NOW]
    far = -1
    count = number[OPEN_COUNT]
    while count > 0:
        frame = frames[OPEN, count - 1]
        if frames[LIVE, frame] < live or depth - frame > number[WINDOW]:
            break
        if frames[TRY, frame] < frames[TRY_END, frame]:
            far = frame
        count -= 1
    if far < 0:
        number[OPEN_COUNT] = count
        return False
    chain = True
    for i in range(far + 1, depth):
        joined = False
        op = frames[OP, i + 1]
        for k in range(ops[PREDECESSORS, op], ops[PREDECESSORS, op + 1]):
            joined = joined or links[k] == frames[OP, i]
        if not joined:
            chain = False
            break
    number[OPEN_COUNT] = count
    lower = False
    if not chain:
        lower = not is_least(ops, tensors, links, nodes, arcs, frames, OP, far + 1, depth + 1, number, WORK)
    if not lower:
        top = frames[TRY_BEGIN, far]
        for i in range(far, depth + 1):
            frames[TRY, i] = frames[TRY_END, i] = frames[TRY_BEGIN, i] = top
        return False
    width = 0
    for i in range(depth - far):
        if nodes[MEMBER, i]:
            frames[ROOM, width] = frames[OP, far + 1 + i]
            width += 1
    while number[DEPTH] > far:
        retreat(ops, tensors, links, frames, number)
    frames[TRY, far] = frames[TRY_END, far] = frames[TRY_BEGIN, far]
    for i in range(width):
        advance(ops, tensors, links, frames, number, frames[ROOM, i])
    return True


@kernel
def search(ops, tensors, links, frames, arena, table, nodes, arcs, number, most):
    """Continue until `most` work is done; return WORKING, FOUND or REFUTED."""
    num_ops = ops.shape[1] - 1
    if number[FRESH]:
        number[FRESH] = 0
        list_choices(ops, tensors, links, frames, arena, table, number)
    while number[WORK] < most:
        depth = number[DEPTH]
        if depth == num_ops:
            return FOUND
        if frames[TRY, depth] == frames[TRY_END, depth]:
            if number[CLIPPED] == 0:
                mark_dead(table, number, frames[FRAME_A, depth], frames[FRAME_B, depth])
            if depth == 0:
                return REFUTED
            retreat(ops, tensors, links, frames, number)
            continue
        op = arena[0, frames[TRY, depth]]
        frames[TRY, depth] += 1
        number[WORK] += 1
        if is_dead(table, frames[FRAME_A, depth] ^ ops[KEY_A, op], frames[FRAME_B, depth] ^ ops[KEY_B, op]):
            continue
        advance(ops, tensors, links, frames, number, op)
        while commit(ops, tensors, links, frames, nodes, arcs, number):
            pass
        depth = number[DEPTH]
        if is_dead(table, frames[FRAME_A, depth], frames[FRAME_B, depth]):
            frames[TRY, depth] = frames[TRY_END, depth]
        else:
            list_choices(ops, tensors, links, frames, arena, table, number)
    return WORKING


@kernel
def refill(old, table, number):
    """Copy the keys of a table into a larger one."""
    number[FILLED] = 0
    for k in range(old.shape[1]):
        if old[0, k] != 0:
            mark_dead(table, number, old[0, k], old[1, k])
