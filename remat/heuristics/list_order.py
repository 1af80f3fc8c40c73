"""List scheduling for memory: an order of the ops that lets memory grow as little as possible at every step."""

# Compiled functions carry no types, and are called by position only.
# ruff: noqa: PLR0917
# mypy: allow-untyped-defs

from __future__ import annotations

import numpy as np
from numba import njit

from remat.heuristics.drops.search import pop, push


@njit(cache=True)
def list_order(
    size, in_ptr, inputs, out_ptr, outputs, writer_ptr, writers, reader_ptr, readers, kept, position
):  # fmt: skip
    """A topological order in which the ready op comes next whose step adds the fewest bytes, or frees the most.

    What it frees are inputs of which it is the last reader. Ties go to the op that comes first by `position`. Tensors
    that are always there are in no row of `inputs` or `outputs`; other tables as in
    :class:`remat.graphs.arrays.GraphArrays`.
    """
    num_ops, num_tensors = len(in_ptr) - 1, len(size)
    by_position = np.empty(num_ops, dtype=np.int64)
    for op in range(num_ops):
        by_position[position[op]] = op
    missing = np.empty(num_tensors, dtype=np.int64)  # contributions still to come
    left = np.empty(num_tensors, dtype=np.int64)  # reads still to come
    begun = np.zeros(num_tensors, dtype=np.bool_)
    for tensor in range(num_tensors):
        missing[tensor] = writer_ptr[tensor + 1] - writer_ptr[tensor]
        left[tensor] = reader_ptr[tensor + 1] - reader_ptr[tensor]
    room = num_ops + len(inputs) + len(outputs) + len(writers)
    keys, items = np.empty(room), np.empty(room, dtype=np.int64)
    waiting = np.empty(num_ops, dtype=np.int64)
    growth = np.zeros(num_ops, dtype=np.int64)
    done = np.zeros(num_ops, dtype=np.bool_)
    number = 0
    for op in range(num_ops):
        waiting[op] = in_ptr[op + 1] - in_ptr[op]
        for k in range(out_ptr[op], out_ptr[op + 1]):
            if left[outputs[k]] > 0 or kept[outputs[k]]:
                growth[op] += size[outputs[k]]
        for k in range(in_ptr[op], in_ptr[op + 1]):
            if left[inputs[k]] == 1 and not kept[inputs[k]]:
                growth[op] -= size[inputs[k]]
        if waiting[op] == 0:
            push(keys, items, number, float(growth[op]), position[op])
            number += 1
    order = np.empty(num_ops, dtype=np.int64)
    place = 0
    while number > 0:
        op = by_position[items[0]]
        pop(keys, items, number)
        number -= 1
        if done[op]:  # an entry from before its growth fell
            continue
        done[op] = True
        order[place] = op
        place += 1
        for k in range(in_ptr[op], in_ptr[op + 1]):
            tensor = inputs[k]
            left[tensor] -= 1
            if left[tensor] == 1 and not kept[tensor]:
                for j in range(reader_ptr[tensor], reader_ptr[tensor + 1]):
                    reader = readers[j]
                    if not done[reader]:
                        growth[reader] -= size[tensor]
                        if waiting[reader] == 0:
                            push(keys, items, number, float(growth[reader]), position[reader])
                            number += 1
        for k in range(out_ptr[op], out_ptr[op + 1]):
            tensor = outputs[k]
            if not begun[tensor]:
                begun[tensor] = True
                for j in range(writer_ptr[tensor], writer_ptr[tensor + 1]):
                    other = writers[j]
                    if not done[other] and (left[tensor] > 0 or kept[tensor]):
                        growth[other] -= size[tensor]
                        if waiting[other] == 0:
                            push(keys, items, number, float(growth[other]), position[other])
                            number += 1
            missing[tensor] -= 1
            if missing[tensor] > 0:
                continue
            for j in range(reader_ptr[tensor], reader_ptr[tensor + 1]):
                reader = readers[j]
                waiting[reader] -= 1
                if waiting[reader] == 0:
                    push(keys, items, number, float(growth[reader]), position[reader])
                    number += 1
    return order
