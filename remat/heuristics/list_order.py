"""List scheduling for memory: an order of the ops in which memory grows as little as possible at every step."""

from __future__ import annotations

from heapq import heapify, heappop, heappush

import numpy as np

from remat.problem import Problem
from remat.runtime.arrays import Int
from remat.runtime.deadline import Deadline


def list_order(problem: Problem, deadline: Deadline) -> Int:
    """Return a topological order by always taking the ready op whose step adds the fewest bytes, or frees the most.

    An op frees the inputs of which it is the last reader. Ties go to the first op in the reference order. Takes about
    1 s for 100,000 ops.

    Raises
    ------
    OverdueError
        At the deadline.

    Examples
    --------
    >>> from remat.graphs.families import unit_chain
    >>> list_order(Problem(unit_chain(2), 4), Deadline()).tolist()
    [0, 1, 2, 3, 4]
    """
    arrays = problem.graph.arrays
    size, kept, place = arrays.size.tolist(), problem.kept.tolist(), arrays.position.tolist()
    own = ~arrays.is_input
    inputs, outputs = arrays.op_inputs.where(own).lists(), arrays.op_outputs.where(own).lists()
    writers, readers = arrays.producers.lists(), arrays.consumers.lists()
    missing, left = arrays.producers.counts.tolist(), arrays.consumers.counts.tolist()
    begun, done = [False] * len(size), [False] * len(inputs)
    waiting = [len(tensors) for tensors in inputs]
    growth = [
        sum(size[t] for t in outputs[op] if left[t] or kept[t])
        - sum(size[t] for t in inputs[op] if left[t] == 1 and not kept[t])
        for op in range(len(inputs))
    ]
    # An op is pushed again whenever its growth falls; outdated entries are skipped.
    heap = [(growth[op], place[op], op) for op, count in enumerate(waiting) if not count]
    heapify(heap)

    def shrink(op: int, tensor: int) -> None:
        if not done[op]:
            growth[op] -= size[tensor]
            if not waiting[op]:
                heappush(heap, (growth[op], place[op], op))

    order = np.empty(len(inputs), dtype=np.int64)
    for step in deadline.each(range(len(inputs))):
        op = heappop(heap)[-1]
        while done[op]:
            op = heappop(heap)[-1]
        order[step], done[op] = op, True
        for tensor in inputs[op]:
            left[tensor] -= 1
            if left[tensor] == 1 and not kept[tensor]:
                for reader in readers[tensor]:
                    shrink(reader, tensor)
        for tensor in outputs[op]:
            if not begun[tensor] and (left[tensor] or kept[tensor]):
                for writer in writers[tensor]:
                    shrink(writer, tensor)
            begun[tensor] = True
            missing[tensor] -= 1
            for reader in readers[tensor] if not missing[tensor] else ():
                waiting[reader] -= 1
                if not waiting[reader]:
                    heappush(heap, (growth[reader], place[reader], reader))
    return order
