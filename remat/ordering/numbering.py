"""Numbering of ops by structure, so that a search does not depend on the order of its input.

Searches break ties by the numbers of ops. These come from the reference order, so the same graph in another order had
other answers: up to 5 % higher peaks after the same time.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from remat.graphs.arrays import Csr
from remat.ordering.instance import OrderInstance
from remat.ordering.rules import RULES, post_order
from remat.runtime.arrays import Bool, Int
from remat.runtime.deadline import Deadline

#: Rounds without a new colour after which no more appear. One can pass without any: ops change, then their tensors.
PATIENCE = 2
#: Most rounds; 17 training steps of JAX with 363 to 1,433 ops need 3 to 48. Then ops may be left with equal colours.
ROUNDS = 200
#: Shifts and factors that mix the bits of a colour.
MIXING = ((30, 0x3F58476D1CE4E5B9), (27, 0x14D049BB133111EB))


def by_structure(instance: OrderInstance, deadline: Deadline) -> tuple[OrderInstance, Int]:
    """Return the instance numbered by structure and bytes alone, and the present numbers of its ops; shape (ops,).

    The numbers follow the best order of the rules, whose ties are broken by a depth-first traversal from ops without
    readers, and there by :func:`colours`.

    Raises
    ------
    OverdueError
        At the deadline.

    Examples
    --------
    Ops of different sizes get the same numbers from any reference order.

    >>> from remat import GraphBuilder, Problem
    >>> def sizes(names):
    ...     b = GraphBuilder("independent ops")
    ...     for name in names:
    ...         _ = b.op(name, size=ord(name))
    ...     numbered, _ = by_structure(OrderInstance.of(Problem(b.build(), keep=list(names))), Deadline())
    ...     return numbered.size.tolist()
    >>> sizes("abc") == sizes("cab")
    True
    """
    ops, tensors = colours(instance, deadline)
    colour, ends = ops.tolist(), np.flatnonzero(instance.successors.counts == 0).tolist()
    order = post_order(instance, lambda op: (colour[op],), iter(ends), deadline)
    tensors = np.argsort(tensors, kind="stable")
    numbered = instance.renumbered(order, tensors)
    order = order[min((rule().order(numbered, deadline) for rule in RULES), key=numbered.peak_of)]
    return instance.renumbered(order, tensors), order


def colours(instance: OrderInstance, deadline: Deadline) -> tuple[Int, Int]:
    """Return a number for each op and for each tensor, from structure and bytes; almost always all are different.

    In each round the colour of an op or tensor becomes a hash of its own colour and the sets of those next to it. If no
    more colours appear, ops of equal colour are in parts of the graph that look alike. Then such parts get different
    colours, in the present order, and the rounds continue. Almost always the parts can be exchanged without effect.

    Source: B. Weisfeiler and A. Leman, The reduction of a graph to canonical form, 1968. Numbers wrap at 64 bits. The
    first colours have the lengths of the longest paths to an op and from it, so that long chains need few rounds.

    Raises
    ------
    OverdueError
        At the deadline.
    """
    before, after = instance.predecessors.lists(), instance.successors.lists()
    ops = _mixed(_mixed(instance.workspace + _longest(before, range(instance.num_ops)))
                 + _longest(after, reversed(range(instance.num_ops))))  # fmt: skip
    tensors = _mixed(4 * instance.size + 2 * instance.live + instance.kept)
    known, unchanged = _distinct(ops), 0
    for _ in range(ROUNDS):
        deadline.check()
        ops, tensors = _refined(instance, ops, tensors)
        count = _distinct(ops)
        known, unchanged = count, unchanged + 1 if count == known else 0
        if count == instance.num_ops:
            break
        if unchanged == PATIENCE:
            ops, unchanged = _split(instance, ops, tensors), 0
    return ops, _refined(instance, ops, tensors)[1]


def _longest(neighbours: list[list[int]], order: Iterable[int]) -> Int:
    """Return the number of ops on the longest path that ends at each op, whose neighbours come first in an order."""
    length = [0] * len(neighbours)
    for op in order:
        length[op] = 1 + max((length[each] for each in neighbours[op]), default=0)
    return np.array(length, dtype=np.int64)


def _refined(instance: OrderInstance, ops: Int, tensors: Int) -> tuple[Int, Int]:
    """Return the colours after one round."""
    reads, writes = (instance.op_inputs, tensors), (instance.op_outputs, tensors)
    before, after = (instance.predecessors, ops), (instance.successors, ops)
    users = (instance.producers, ops), (instance.consumers, ops)
    return _hashed(ops, reads, writes, before, after), _hashed(tensors, *users)


def _split(instance: OrderInstance, ops: Int, tensors: Int) -> Int:
    """Return more colours of ops: parts that look alike get different ones, or else two ops of one part."""
    found = _mixed(ops + _alike_parts(instance, ops, tensors))
    if _distinct(found) == _distinct(ops):
        tied = np.flatnonzero(_shared(ops))
        found[tied[np.argmin(ops[tied])]] += 1
    return found


def _alike_parts(instance: OrderInstance, ops: Int, tensors: Int) -> Int:
    """Return the position of each op's part among the parts with the same colours; shape (ops,).

    A part is connected, of ops and tensors whose colour is not unique. Positions follow the first op of each part.
    """
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    colour = np.concatenate([ops, tensors])
    shared = np.concatenate([_shared(ops), _shared(tensors)])
    edges = [(table.rows, table.indices + shift) for table, shift in (
        (instance.op_inputs, len(ops)), (instance.op_outputs, len(ops)), (instance.predecessors, 0))]  # fmt: skip
    rows, columns = (np.concatenate(side) for side in zip(*edges, strict=True))
    both = shared[rows] & shared[columns]
    wires = coo_array((np.ones(int(both.sum()), np.int8), (rows[both], columns[both])), shape=(len(colour),) * 2)
    count, part = connected_components(wires, directed=False)
    signature = np.zeros(count, dtype=np.int64)
    np.add.at(signature, part, _mixed(colour))
    _, first = np.unique(part, return_index=True)
    order = np.lexsort((first, signature))
    position = np.empty(count, dtype=np.int64)
    position[order] = np.arange(count) - np.searchsorted(signature[order], signature[order])
    return position[part[: len(ops)]]


def _distinct(colour: Int) -> int:
    return len(np.unique(colour))


def _shared(colour: Int) -> Bool:
    """Return a mask of the colours that occur more than once."""
    _, classes, counts = np.unique(colour, return_inverse=True, return_counts=True)
    return counts[classes] > 1


def _hashed(own: Int, *neighbours: tuple[Csr, Int]) -> Int:
    """Return new colours from the present ones and those of each kind of neighbour."""
    for kind, (table, colour) in enumerate(neighbours, 1):
        own = own + kind * _mixed(table.sums(_mixed(colour + kind)))
    return _mixed(own)


def _mixed(colour: Int) -> Int:
    for shift, factor in MIXING:
        colour = (colour ^ (colour >> shift)) * np.int64(factor)
    return colour ^ (colour >> 31)
