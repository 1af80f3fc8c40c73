"""Closed sets of ops as bitmasks, and what follows them; compiled, for the best-first and the beam search.

Tables of int64: `ops` and `tensors` (a row for each kind of number; the pointers are CSR into `links`), `words` (a
column of 64-bit words for each state), `info` (a column for each state), `table` (states by key, 0 for none, else the
state plus 1), `heap` and `number`.
"""

# Compiled functions carry no types.
# mypy: allow-untyped-defs
# Tables are handed over one by one: a tuple of arrays takes longer to compile than what is done with it.
# ruff: noqa: PLR0917

from __future__ import annotations

from remat.compiled import inner, kernel

# Rows of `ops`, `tensors` and `info`.
BEFORE, BEGINS, ENDS, WORKSPACE, KEY = range(5)
SIZE, BEGINNERS, ENDERS, LIVE_FIRST, KEPT = range(5)
STATE_KEY, LIVE, PEAK, PARENT, OP, COUNT, CLOSED = range(7)
# Fields of `number`: states, the limit that a step must stay below, the value from which steps count, entries of the
# heap, the least peak that was left out, states taken up, and by what a step and the bytes after it are told.
STATES, LIMIT, FLOOR, HEAP, LEFT_OUT, TAKEN, STEP, AFTER = range(8)
# What `best_first` answers.
WORKING, FOUND, EMPTY, FULL = range(4)


@inner
def has(words, state, op):
    """1 if `op` is in the set, else 0."""
    return (words[op >> 6, state] >> (op & 63)) & 1


@inner
def is_ready(ops, links, words, state, op):
    """Whether `op` is not in the set, but all that it depends on."""
    missing = has(words, state, op) > 0
    for k in range(ops[BEFORE, op], ops[BEFORE, op + 1]):
        if missing:
            break
        missing = has(words, state, links[k]) == 0
    return not missing


@inner
def weigh(ops, tensors, links, words, state, live, number, op):
    """Bytes at the step of `op` after a state and after it, in `number`."""
    step = live
    for k in range(ops[BEGINS, op], ops[BEGINS, op + 1]):
        tensor = links[k]
        begun = tensors[LIVE_FIRST, tensor] > 0
        for j in range(tensors[BEGINNERS, tensor], tensors[BEGINNERS, tensor + 1]):
            begun = begun or has(words, state, links[j]) > 0
        if not begun:
            step += tensors[SIZE, tensor]
    after = step
    for k in range(ops[ENDS, op], ops[ENDS, op + 1]):
        tensor = links[k]
        ended = tensors[KEPT, tensor] == 0
        for j in range(tensors[ENDERS, tensor], tensors[ENDERS, tensor + 1]):
            ended = ended and (links[j] == op or has(words, state, links[j]) > 0)
        if ended:
            after -= tensors[SIZE, tensor]
    number[STEP], number[AFTER] = step + ops[WORKSPACE, op], after


@inner
def place_of(table, words, info, old_words, state, key, op):
    """The place in `table` of the set `state` with `op`, or the free one where it belongs."""
    mask = len(table) - 1
    place = key & mask
    while table[place] > 0:
        other = table[place] - 1
        if info[STATE_KEY, other] == key:
            same = True
            for w in range(words.shape[0]):
                word = old_words[w, state]
                if w == op >> 6:
                    word |= 1 << (op & 63)
                same = same and words[w, other] == word
            if same:
                return place
        place = (place + 1) & mask
    return place


@inner
def follow(ops, old_words, old_info, words, info, table, number, state, op):
    """The state after `op`, in a table of states; -1 if it was there with no higher peak, -2 if there is no room."""
    key = old_info[STATE_KEY, state] ^ ops[KEY, op]
    peak = max(old_info[PEAK, state], number[STEP])
    place = place_of(table, words, info, old_words, state, key, op)
    other = table[place] - 1
    if other >= 0:
        if info[PEAK, other] <= peak:
            return -1
    else:
        other = number[STATES]
        if other == info.shape[1]:
            number[LEFT_OUT] = min(number[LEFT_OUT], peak)
            return -2
        number[STATES] += 1
        table[place] = other + 1
        for w in range(words.shape[0]):
            words[w, other] = old_words[w, state]
        words[op >> 6, other] |= 1 << (op & 63)
        info[STATE_KEY, other] = key
        info[LIVE, other] = number[AFTER]
        info[COUNT, other] = old_info[COUNT, state] + 1
    info[PEAK, other], info[PARENT, other], info[OP, other] = peak, state, op
    info[CLOSED, other] = 0
    return other


@inner
def safe_op(ops, tensors, links, words, info, number, state):
    """A ready op whose step holds no more than has been held, and that leaves no more bytes; -1: there is none."""
    live, peak = info[LIVE, state], max(info[PEAK, state], number[FLOOR])
    for op in range(ops.shape[1] - 1):
        if is_ready(ops, links, words, state, op):
            weigh(ops, tensors, links, words, state, live, number, op)
            if number[STEP] <= peak and number[AFTER] <= live:
                return op
    return -1


@kernel
def next_level(ops, tensors, links, old_words, old_info, words, info, table, number, first, last):
    """All states that follow the states `first` to `last`, each once, with the lowest peak known."""
    for state in range(first, last):
        safe = safe_op(ops, tensors, links, old_words, old_info, number, state)
        for op in range(ops.shape[1] - 1):
            if (safe < 0 or op == safe) and is_ready(ops, links, old_words, state, op):
                weigh(ops, tensors, links, old_words, state, old_info[LIVE, state], number, op)
                if number[STEP] < number[LIMIT]:
                    follow(ops, old_words, old_info, words, info, table, number, state, op)


@inner
def before(info, first_peak, first, second_peak, second):
    """Whether a state is to be taken up before another one: lower peak, more ops, fewer bytes."""
    if first_peak != second_peak:
        return first_peak < second_peak
    if info[COUNT, first] != info[COUNT, second]:
        return info[COUNT, first] > info[COUNT, second]
    return info[LIVE, first] < info[LIVE, second]


@inner
def push(heap, info, number, state):
    """Add a state with the peak that it has now; where it had a higher one, the older entry stays behind."""
    peak = info[PEAK, state]
    place = number[HEAP]
    number[HEAP] += 1
    while place > 0:
        above = (place - 1) >> 1
        if not before(info, peak, state, heap[1, above], heap[0, above]):
            break
        heap[0, place], heap[1, place] = heap[0, above], heap[1, above]
        place = above
    heap[0, place], heap[1, place] = state, peak


@inner
def pop(heap, info, number):
    """Take the first state off the heap."""
    top = heap[0, 0]
    number[HEAP] -= 1
    end = number[HEAP]
    last, peak = heap[0, end], heap[1, end]
    place = 0
    while 2 * place + 1 < end:
        child = 2 * place + 1
        if child + 1 < end and before(info, heap[1, child + 1], heap[0, child + 1], heap[1, child], heap[0, child]):
            child += 1
        if not before(info, heap[1, child], heap[0, child], peak, last):
            break
        heap[0, place], heap[1, place] = heap[0, child], heap[1, child]
        place = child
    heap[0, place], heap[1, place] = last, peak
    return top


@kernel
def best_first(ops, tensors, links, words, info, table, heap, number, steps):
    """Take up so many states, the lowest peak first; the state in ``number[TAKEN]`` is the last one, or the end."""
    num_ops = ops.shape[1] - 1
    for _ in range(steps):
        if number[HEAP] == 0:
            return EMPTY
        if number[HEAP] + num_ops >= heap.shape[1] or number[STATES] + num_ops >= info.shape[1]:
            number[LEFT_OUT] = heap[1, 0]
            return FULL
        state = pop(heap, info, number)
        if info[CLOSED, state]:
            continue
        info[CLOSED, state] = 1
        number[TAKEN] = state
        if info[COUNT, state] == num_ops:
            return FOUND
        safe = safe_op(ops, tensors, links, words, info, number, state)
        for op in range(num_ops):
            if (safe < 0 or op == safe) and is_ready(ops, links, words, state, op):
                weigh(ops, tensors, links, words, state, info[LIVE, state], number, op)
                if number[STEP] < number[LIMIT]:
                    other = follow(ops, words, info, words, info, table, number, state, op)
                    if other >= 0:
                        push(heap, info, number, other)
    return WORKING
