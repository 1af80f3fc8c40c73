"""Orders at random, guided by the scores of rules; compiled.

Tables of int64. `op_ptr` has rows of pointers into `links`: inputs, outputs, ops that follow; `tensor_ptr` likewise:
writers, readers. `ops` and `tensors` have what holds at the start, `ranks` fixed scores of ops, smaller is sooner;
`op_room` and `tensor_room` are what holds at the moment, and room.
"""

# Compiled functions carry no types.
# mypy: allow-untyped-defs
# Tables are handed over one by one: a tuple of arrays takes longer to compile than what is done with it.
# ruff: noqa: PLR0917

from __future__ import annotations

from remat.compiled import inner, kernel

# Rows of the tables.
INPUTS, OUTPUTS, AFTER = range(3)
WRITERS, READERS = range(2)
NEED, GROWTH, WAITING = range(3)
STAMP, LIST, DONE = range(3, 6)  # of `op_room`, after the rows of `ops`: since when it is ready; the ready ones
USES, BEGUN = range(2)
SIZE, KEPT = range(2, 4)  # of `tensors`, after the rows of `tensor_room`
# `number`: random state; which rule, how many ready ops it looks at, how often of 1000 it is not asked; peaks from
# this on are not wanted; restarts to make; bytes at the start; steps made, orders completed.
RANDOM, RULE, SAMPLE, RATE, LIMIT, COUNT, START, STEPS, COMPLETE = range(9)
# Rules: the first three look at memory and at how long an op has been ready, the others at a row of `ranks`.
PEAK_FIRST, GROWTH_FIRST, NEWEST_FIRST, RANKS = range(4)


@inner
def drawn(number, most):
    """A number below `most`, at random."""
    number[RANDOM] = (number[RANDOM] * 1103515245 + 12345) & 0x7FFFFFFF
    return (number[RANDOM] >> 8) % most


@inner
def picked(op_room, ranks, number, ready, live, peak):
    """The place, among the ready ops, of the one that comes next."""
    if drawn(number, 1000) < number[RATE]:
        return drawn(number, ready)
    rule, looks = number[RULE], min(ready, number[SAMPLE])
    place, best, first, second = drawn(number, ready), -1, 0, 0
    for _ in range(looks):
        op = op_room[LIST, place]
        if rule == PEAK_FIRST:
            a, b = max(live + op_room[NEED, op], peak), op_room[GROWTH, op]
        elif rule == GROWTH_FIRST:
            a, b = op_room[GROWTH, op], ranks[0, op]
        elif rule == NEWEST_FIRST:
            a, b = -op_room[STAMP, op], op_room[GROWTH, op]
        else:
            a, b = ranks[rule - RANKS, op], 0
        if best < 0 or a < first or (a == first and b < second):
            best, first, second = place, a, b
        place = (place + 1) % ready if looks == ready else drawn(number, ready)
    return best


@inner
def compute(op_ptr, tensor_ptr, links, tensors, op_room, tensor_room, op):
    """Keep needs and growths up to date when an op is computed (see :class:`remat.ordering.ready.Ready`)."""
    op_room[DONE, op] = 1
    for k in range(op_ptr[OUTPUTS, op], op_ptr[OUTPUTS, op + 1]):
        tensor = links[k]
        if tensor_room[BEGUN, tensor] == 0:
            tensor_room[BEGUN, tensor] = 1
            for j in range(tensor_ptr[WRITERS, tensor], tensor_ptr[WRITERS, tensor + 1]):
                if op_room[DONE, links[j]] == 0:
                    op_room[NEED, links[j]] -= tensors[SIZE, tensor]
                    op_room[GROWTH, links[j]] -= tensors[SIZE, tensor]
    for side in range(2):
        for k in range(op_ptr[side, op], op_ptr[side, op + 1]):
            tensor = links[k]
            tensor_room[USES, tensor] -= 1
            if tensor_room[USES, tensor] == 1 and tensors[KEPT, tensor] == 0:
                for users in range(2):
                    for j in range(tensor_ptr[users, tensor], tensor_ptr[users, tensor + 1]):
                        if op_room[DONE, links[j]] == 0:
                            op_room[GROWTH, links[j]] -= tensors[SIZE, tensor]


@kernel
def restart(op_ptr, tensor_ptr, links, ops, tensors, ranks, op_room, tensor_room, number, order, best):
    """Make orders at random; the best one, if its peak is below the limit, stays in `best`, and is the limit then."""
    num_ops, num_tensors = ops.shape[1], tensors.shape[1]
    for _ in range(number[COUNT]):
        ready = 0
        for op in range(num_ops):
            for row in range(3):
                op_room[row, op] = ops[row, op]
            op_room[STAMP, op] = op_room[DONE, op] = 0
            if ops[WAITING, op] == 0:
                op_room[LIST, ready] = op
                ready += 1
        for tensor in range(num_tensors):
            tensor_room[USES, tensor], tensor_room[BEGUN, tensor] = tensors[USES, tensor], tensors[BEGUN, tensor]
        live = peak = number[START]
        step = 0
        while ready > 0:
            place = picked(op_room, ranks, number, ready, live, peak)
            op = op_room[LIST, place]
            peak = max(peak, live + op_room[NEED, op])
            if peak >= number[LIMIT]:
                break
            ready -= 1
            op_room[LIST, place] = op_room[LIST, ready]
            order[step] = op
            step += 1
            live += op_room[GROWTH, op]
            compute(op_ptr, tensor_ptr, links, tensors, op_room, tensor_room, op)
            for k in range(op_ptr[AFTER, op], op_ptr[AFTER, op + 1]):
                other = links[k]
                op_room[WAITING, other] -= 1
                if op_room[WAITING, other] == 0:
                    op_room[STAMP, other] = step
                    op_room[LIST, ready] = other
                    ready += 1
        number[STEPS] += step
        if step == num_ops and peak < number[LIMIT]:
            number[COMPLETE] += 1
            number[LIMIT] = peak
            for place in range(num_ops):
                best[place] = order[place]
