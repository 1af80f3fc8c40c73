"""One level of Serenity's dynamic programme in compiled code.

Sets of ops are rows of 64-bit words. A level is a table of states with the same number of ops done: the ops that are
done, the signature (the ops that are ready then), live bytes, and the least peak on the way there.
"""

# Compiled functions carry no types, and are called by position only.
# ruff: noqa: PLR0917, SIM110
# mypy: allow-untyped-defs

from __future__ import annotations

import numpy as np

from remat.compiled import inner, kernel

ONE = np.uint64(1)
WORD = 64
#: The lowest bit of a word times this has its number in the six highest bits: a de Bruijn sequence.
SEQUENCE = np.uint64(0x03F79D71B4CB0A89)
TOP = np.uint64(58)
#: Factors and shift of the hash of a signature.
FACTOR, SHIFT = np.uint64(0xFF51AFD7ED558CCD), np.uint64(32)
#: Places in `found`.
NEXT, COUNT, REFUSED = 0, 1, 2


@inner
def slot_of(ready, row, table):
    """The slot of `table` that has the signature in that row of `ready`, or the free one where it belongs."""
    words, last = ready.shape[1], table.shape[0] - 1
    mixed = np.uint64(0)
    for w in range(words):
        mixed = (mixed ^ ready[row, w]) * FACTOR
        mixed ^= mixed >> SHIFT
    slot = np.int64(mixed & np.uint64(last))
    while table[slot] >= 0:
        other = table[slot]
        same = True
        for w in range(words):
            if ready[other, w] != ready[row, w]:
                same = False
                break
        if same:
            break
        slot = (slot + 1) & last
    return slot


@kernel
def place(ready, begin, end, table):
    """Put the rows of `ready` from `begin` to `end`, all different, into an empty table, or one of the rows before."""
    for row in range(begin, end):
        table[slot_of(ready, row, table)] = row


@inner
def within(small, row, large, other):
    """Whether a set is a part of another one."""
    for w in range(small.shape[1]):
        if small[row, w] & ~large[other, w]:
            return False
    return True


@inner
def meets(some, row, large, other):
    """Whether two sets have an op in common."""
    for w in range(some.shape[1]):
        if some[row, w] & large[other, w]:
            return True
    return False


@kernel
def expand(
    begin, end, budget, found, table, digits,
    done, ready, live, peak,
    next_done, next_ready, next_live, next_peak, parent, chosen,
    before, after_at, after, fresh, workspace, shared_at, shared, writers, touched_at, touched, users, size,
):  # fmt: skip
    """Schedule each ready op in the states from `begin` to `end`, and put what comes of it into the next level.

    It stops before a state for which there may be no room in the next level. `found` has the state to go on with, how
    many states the next level has, and the least peak that was above `budget` (in bytes).

    Tables: ops in `before` must be done before an op; those in ``after[after_at[op]:after_at[op + 1]]`` wait for it;
    `fresh` bytes are allocated by it in any case, and those `shared` tensors of which no op in `writers` is done; the
    tensors `touched` are freed after it if all `users` are done.
    """
    words, room = done.shape[1], next_live.shape[0]
    for state in range(begin, end):
        found[NEXT] = state
        for w in range(words):
            rest = ready[state, w]
            while rest:
                lowest = rest & (~rest + ONE)
                rest ^= lowest
                op = w * WORD + digits[np.int64((lowest * SEQUENCE) >> TOP)]
                row = found[COUNT]
                if row >= room:
                    return
                during = live[state] + fresh[op]
                for k in range(shared_at[op], shared_at[op + 1]):
                    if not meets(writers, shared[k], done, state):
                        during += size[shared[k]]
                highest = max(peak[state], during + workspace[op])
                if highest > budget:
                    found[REFUSED] = min(found[REFUSED], highest)
                    continue
                for v in range(words):
                    next_done[row, v] = done[state, v]
                    next_ready[row, v] = ready[state, v]
                next_done[row, w] |= lowest
                next_ready[row, w] ^= lowest
                for k in range(after_at[op], after_at[op + 1]):
                    if within(before, after[k], next_done, row):
                        next_ready[row, after[k] // WORD] |= ONE << np.uint64(after[k] % WORD)
                slot = slot_of(next_ready, row, table)
                if table[slot] >= 0:
                    row = np.int64(table[slot])
                    if highest < next_peak[row]:
                        next_peak[row], parent[row], chosen[row] = highest, state, op
                    continue
                table[slot] = row
                for k in range(touched_at[op], touched_at[op + 1]):
                    if within(users, touched[k], next_done, row):
                        during -= size[touched[k]]
                next_live[row], next_peak[row], parent[row], chosen[row] = during, highest, state, op
                found[COUNT] = row + 1
    found[NEXT] = end
