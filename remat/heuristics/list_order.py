"""List scheduling for memory: the order that the compiled function makes, for one problem."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from remat.compiled import KernelSet
from remat.deadline import Deadline
from remat.problem import Problem

Int = NDArray[np.int64]


def list_order(problem: Problem, deadline: Deadline | None = None) -> Int | None:
    """A topological order in which the ready op comes next whose step adds the fewest bytes, or frees the most.

    Returns
    -------
    int64 array, shape (ops,)
        None if it is not compiled by the deadline.

    Examples
    --------
    >>> from remat.graphs.families import unit_chain
    >>> list_order(Problem(unit_chain(2), 4)).tolist()
    [0, 1, 2, 3, 4]
    """
    return _order(problem) if KERNELS.ready(deadline) else None


def _order(problem: Problem) -> Int:
    from remat.heuristics.list_order_kernel import ListTables, list_order

    arrays = problem.graph.arrays
    num_ops, num_tensors = len(arrays.cost), len(arrays.size)
    reads, writes = arrays.op_inputs.where(~arrays.is_input), arrays.op_outputs.where(~arrays.is_input)
    links = len(reads.indices) + len(writes.indices) + len(arrays.producers.indices)

    def room(length: int, kind: type = np.int64) -> NDArray[Any]:
        return np.zeros(length, dtype=kind)

    order = room(num_ops)
    list_order(
        ListTables(
            arrays.size, reads.indptr, reads.indices, writes.indptr, writes.indices, arrays.producers.indptr,
            arrays.producers.indices, arrays.consumers.indptr, arrays.consumers.indices, problem.kept, arrays.position,
            room(num_tensors), room(num_tensors), room(num_tensors, np.bool_), room(num_ops), room(num_ops),
            room(num_ops, np.bool_), room(num_ops), room(num_ops + links, np.float64), room(num_ops + links),
        ),
        order,
    )  # fmt: skip
    return order


def _example() -> None:
    from remat.graphs.families import unit_chain

    _order(Problem(unit_chain(8), 7))


#: The compiled list scheduling.
KERNELS = KernelSet("list-order", __name__, _example)
