"""List scheduling for memory: an order of the ops that lets memory grow as little as possible at every step."""

# Compiled functions carry no types.
# mypy: allow-untyped-defs

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from remat.compiled import kernel
from remat.heuristics.drops.search_kernel import pop, push
from remat.heuristics.drops.stages_kernel import Int


class ListTables(NamedTuple):
    """The graph, and room to work in.

    Tensors that are always there are in no row of `inputs` or `outputs`; other tables as in
    :class:`remat.graphs.arrays.GraphArrays`. Room: of each tensor contributions (`missing`) and reads (`left`) still to
    come and whether it is there (`begun`), of each op inputs that are not there (`waiting`), bytes that it adds
    (`growth`), whether it is `done`, and its number by position; and a heap of as many entries as there are ops and
    links between ops and tensors. All of the room is 0.
    """

    size: Int
    in_ptr: Int
    inputs: Int
    out_ptr: Int
    outputs: Int
    writer_ptr: Int
    writers: Int
    reader_ptr: Int
    readers: Int
    kept: NDArray[np.bool_]
    position: Int
    missing: Int
    left: Int
    begun: NDArray[np.bool_]
    waiting: Int
    growth: Int
    done: NDArray[np.bool_]
    by_position: Int
    keys: NDArray[np.float64]
    items: Int


@kernel
def list_order(tables, order):
    """Fill in a topological order in which the ready op comes next whose step adds the fewest bytes, or frees the most.

    What it frees are inputs of which it is the last reader. Ties go to the op that comes first by `position`.
    """
    size, position, kept = tables.size, tables.position, tables.kept
    in_ptr, inputs, out_ptr, outputs = tables.in_ptr, tables.inputs, tables.out_ptr, tables.outputs
    writer_ptr, writers, reader_ptr, readers = tables.writer_ptr, tables.writers, tables.reader_ptr, tables.readers
    missing, left, begun, waiting = tables.missing, tables.left, tables.begun, tables.waiting
    growth, done, by_position = tables.growth, tables.done, tables.by_position
    keys, items = tables.keys, tables.items
    num_ops, num_tensors = len(in_ptr) - 1, len(size)
    for op in range(num_ops):
        by_position[position[op]] = op
    for tensor in range(num_tensors):
        missing[tensor] = writer_ptr[tensor + 1] - writer_ptr[tensor]
        left[tensor] = reader_ptr[tensor + 1] - reader_ptr[tensor]
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
