"""The semantics of a schedule, once, as plain loops over arrays.

Both loops run in two ways from the same source: interpreted, on Python lists, for small schedules (no compile time);
and compiled by numba, on int64 arrays, for large ones. They therefore keep to indexing, integers and ``for``/``while``.

Who is where: `in_start[o]:in_start[o + 1]` are the places of op ``o`` in `in_tensor` (what it reads), likewise
`out_start` and `out_tensor` (what it writes). A place in `out_tensor` is one (op, tensor) pair, that is one
contributor of one tensor. It bears the *epoch* of the last instance it contributed to; a new instance of the tensor
only has to count its epoch up, and all old contributions are void.
"""

from __future__ import annotations

from typing import Any, TypeAlias

#: Codes of what :func:`run` finds wrong.
INPUT_NOT_LIVE, INPUT_INCOMPLETE, FREE_NOT_LIVE, FREE_PINNED, UNKNOWN_NAME = 0, 1, 2, 3, 4

COMPUTE = 0
NEVER = -1

#: A list of ints (interpreted) or an int64 array (compiled).
Ints: TypeAlias = Any


def implied_frees(  # noqa: PLR0917  (numba calls with positions only)
    kinds: Ints, targets: Ints, in_start: Ints, in_tensor: Ints, out_start: Ints, out_tensor: Ints,
    num_producers: Ints, is_kept: Ints, left: Ints, epoch: Ints, stamp: Ints, free_step: Ints, free_tensor: Ints,
) -> int:  # fmt: skip
    """Where each instance is last used, by one scan from the end.

    Scanning backwards, ``left[t]`` counts the producers whose contribution the reads seen so far still need; 0 means
    that nobody later needs the tensor. A read needs all producers anew; a contribution takes its producer away; at 0
    the instance has begun. A tensor that nobody needs later is freed after the step that touches it. The end of the
    schedule reads every tensor of `is_kept`.

    Fills `free_step` and `free_tensor` from the back and returns the place where they begin; `left`, `epoch` (per
    tensor) and `stamp` (per place in `out_tensor`) are scratch, all 0.
    """
    place = len(free_step)
    for t in range(len(num_producers)):
        if is_kept[t]:
            left[t] = num_producers[t]
            epoch[t] += 1
    for back in range(len(kinds)):
        step = len(kinds) - 1 - back
        op = targets[step]
        if kinds[step] != COMPUTE or op < 0:
            continue
        for k in range(out_start[op], out_start[op + 1]):
            t = out_tensor[k]
            if left[t] == 0:
                place -= 1
                free_step[place] = step
                free_tensor[place] = t
            elif stamp[k] != epoch[t]:
                stamp[k] = epoch[t]
                left[t] -= 1
        for k in range(in_start[op], in_start[op + 1]):
            t = in_tensor[k]
            if num_producers[t] == 0:  # a graph input, pinned
                continue
            if left[t] == 0:
                place -= 1
                free_step[place] = step
                free_tensor[place] = t
            left[t] = num_producers[t]
            epoch[t] += 1
    return place


def run(  # noqa: PLR0917
    kinds: Ints, targets: Ints, in_start: Ints, in_tensor: Ints, out_start: Ints, out_tensor: Ints,
    num_producers: Ints, size: Ints, workspace: Ints, free_step: Ints, free_tensor: Ints, next_free: int, live: int,
    stamp: Ints, epoch: Ints, missing: Ints, begun: Ints, freed: Ints, memory: Ints, counts: Ints,
    interval_tensor: Ints, interval_start: Ints, interval_end: Ints, fault: tuple[Ints, Ints, Ints, Ints, Ints],
    totals: Ints,
) -> None:  # fmt: skip
    """Run the steps; go on after a fault as if the missing input were there and the illegal free were not.

    Parameters
    ----------
    kinds, targets
        The steps; a target below 0 is a name that the graph does not know.
    free_step, free_tensor, next_free
        Implied frees: tensors to free after each step, by step, from place `next_free` on.
    live : int
        Bytes live before the first step: graph inputs and, where it counts, constant memory.
    stamp, epoch, missing, begun, freed
        Scratch, per place in `out_tensor` (first) and per tensor: 0, 0, 0, -1 (0 for graph inputs) and -1. `missing` is
        the number of contributions that a live instance lacks, `begun` its first step (-1: not live), `freed` the
        step of the last free. `missing`, `begun` and `freed` hold the final state afterwards.
    memory, counts
        Filled: bytes at each step, computes per op.
    interval_tensor, interval_start, interval_end
        Filled: the instances that ended, in the order of their ends; each lives in the steps start <= step < end.
    fault
        Five sequences of one length (step, code, op, tensor, since) for the first faults; `since` is the step
        where the value was freed (not live) or its instance began (incomplete).
    totals
        Filled: number of faults, of redundant computes, of masked contributions, of intervals, of those that ended
        in a free (they come first).
    """
    fault_step, fault_code, fault_op, fault_tensor, fault_since = fault
    faults = redundant = masked = intervals = 0
    room = len(fault_step)
    for step in range(len(kinds)):
        target = targets[step]
        if target < 0:
            if faults < room:
                fault_step[faults] = step
                fault_code[faults] = UNKNOWN_NAME
            faults += 1
            memory[step] = live
        elif kinds[step] == COMPUTE:
            op = target
            for k in range(in_start[op], in_start[op + 1]):
                t = in_tensor[k]
                if begun[t] < 0 or missing[t] > 0:
                    if faults < room:
                        fault_step[faults] = step
                        fault_op[faults] = op
                        fault_tensor[faults] = t
                        if begun[t] < 0:
                            fault_code[faults] = INPUT_NOT_LIVE
                            fault_since[faults] = freed[t]
                        else:
                            fault_code[faults] = INPUT_INCOMPLETE
                            fault_since[faults] = begun[t]
                    faults += 1
            changed = counts[op] == 0
            for k in range(out_start[op], out_start[op + 1]):
                t = out_tensor[k]
                if begun[t] < 0:
                    live += size[t]
                    begun[t] = step
                    epoch[t] += 1
                    missing[t] = num_producers[t]
                if stamp[k] != epoch[t]:
                    stamp[k] = epoch[t]
                    missing[t] -= 1
                    changed = True
                elif num_producers[t] > 1:
                    masked += 1
            if not changed:
                redundant += 1
            counts[op] += 1
            memory[step] = live + workspace[op]
        else:
            t = target
            if num_producers[t] == 0 or begun[t] < 0:
                if faults < room:
                    fault_step[faults] = step
                    fault_tensor[faults] = t
                    fault_since[faults] = freed[t]
                    fault_code[faults] = FREE_PINNED if num_producers[t] == 0 else FREE_NOT_LIVE
                faults += 1
            else:
                live -= size[t]
                interval_tensor[intervals] = t
                interval_start[intervals] = begun[t]
                interval_end[intervals] = step
                intervals += 1
                begun[t] = NEVER
                freed[t] = step
            memory[step] = live
        while next_free < len(free_step) and free_step[next_free] == step:
            t = free_tensor[next_free]
            next_free += 1
            if begun[t] >= 0:  # not so where a read of a missing value was the last use
                live -= size[t]
                interval_tensor[intervals] = t
                interval_start[intervals] = begun[t]
                interval_end[intervals] = step + 1
                intervals += 1
                begun[t] = NEVER
                freed[t] = step
    totals[4] = intervals
    for t in range(len(begun)):
        if begun[t] >= 0:
            interval_tensor[intervals] = t
            interval_start[intervals] = begun[t]
            interval_end[intervals] = len(kinds)
            intervals += 1
    totals[0] = faults
    totals[1] = redundant
    totals[2] = masked
    totals[3] = intervals
