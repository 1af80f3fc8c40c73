"""Numbering of ops by structure, so that a search does not depend on the order of its input.

Searches break ties by the numbers of ops. These come from the reference order, so the same graph in another order had
other answers: up to 5 % higher peaks after the same time.
"""

from __future__ import annotations

import numpy as np

from remat.graphs.arrays import Csr
from remat.ordering.instance import OrderInstance
from remat.ordering.rules import RULES, post_order
from remat.runtime.arrays import Int
from remat.runtime.deadline import Deadline

#: Ops and tensors that differ only farther away than this many steps have equal colours.
ROUNDS = 24
#: Shifts and factors that mix the bits of a colour.
MIXING = ((30, 0x3F58476D1CE4E5B9), (27, 0x14D049BB133111EB))


def by_structure(instance: OrderInstance, deadline: Deadline) -> tuple[OrderInstance, Int]:
    """Return the instance numbered by structure and bytes alone, and the present numbers of its ops; shape (ops,).

    The numbers follow the best order of the rules, whose ties are broken by a depth-first traversal from ops without
    readers, and there by :func:`colours`. Ops of equal colour come in their present order: almost always they can be
    exchanged without effect.

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
    ops, tensors = colours(instance)
    colour, ends = ops.tolist(), np.flatnonzero(instance.successors.counts == 0).tolist()
    order = post_order(instance, lambda op: (colour[op],), iter(ends), deadline)
    tensors = np.argsort(tensors, kind="stable")
    numbered = instance.renumbered(order, tensors)
    order = order[min((rule().order(numbered, deadline) for rule in RULES), key=numbered.peak_of)]
    return instance.renumbered(order, tensors), order


def colours(instance: OrderInstance) -> tuple[Int, Int]:
    """Return a number for each op and for each tensor, equal for those with equal surroundings.

    Source: B. Weisfeiler and A. Leman, The reduction of a graph to canonical form, 1968: the colour of an op or tensor
    becomes a hash of its own colour and the sets of those next to it, :data:`ROUNDS` times. Numbers wrap at 64 bits.
    """
    ops = _mixed(instance.workspace)
    tensors = _mixed(4 * instance.size + 2 * instance.live + instance.kept)
    for _ in range(ROUNDS):
        reads, writes = (instance.op_inputs, tensors), (instance.op_outputs, tensors)
        before, after = (instance.predecessors, ops), (instance.successors, ops)
        users = (instance.producers, ops), (instance.consumers, ops)
        ops, tensors = _refined(ops, reads, writes, before, after), _refined(tensors, *users)
    return ops, tensors


def _refined(own: Int, *neighbours: tuple[Csr, Int]) -> Int:
    """Return new colours from the present ones and those of each kind of neighbour."""
    for kind, (table, colour) in enumerate(neighbours, 1):
        own = own + kind * _mixed(table.sums(_mixed(colour + kind)))
    return _mixed(own)


def _mixed(colour: Int) -> Int:
    for shift, factor in MIXING:
        colour = (colour ^ (colour >> shift)) * np.int64(factor)
    return colour ^ (colour >> 31)
