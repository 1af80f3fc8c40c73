"""Cuts of a graph into parts that can be ordered separately: Serenity's divide and conquer."""

from __future__ import annotations

from remat.ordering.instance import OrderInstance


def cut_positions(instance: OrderInstance) -> list[int]:
    """Return the numbers of ops after which every order has done the same ones, without 0 and the number of all.

    In every order the ops done by then are the first ones of the reference order. The problem thus splits into
    independent parts (:meth:`~remat.ordering.instance.OrderInstance.part`). Serenity cuts at single ops on which all
    later ones depend; this generalises it. A set of ops is done first in every order if and only if each of its last
    ops (no op in the set waits for them) has an edge to each of the first ops outside (all that they wait for is in the
    set). The function counts edges between the two while it takes ops in the reference order, in time O(ops + edges).


    Examples
    --------
    Two diamonds in sequence: a cut lies before and after each op that has no parallel op.

    >>> from remat import GraphBuilder, Problem
    >>> b = GraphBuilder("diamonds")
    >>> for name, reads in ("a", ""), ("b", "a"), ("c", "a"), ("d", "bc"), ("e", "d"), ("f", "d"), ("g", "ef"):
    ...     _ = b.op(name, inputs=list(reads), size=1)
    >>> cut_positions(OrderInstance.of(Problem(b.build())))
    [1, 3, 4, 6]
    """
    before, after = instance.predecessors.lists(), instance.successors.lists()
    waiting = [len(row) for row in before]
    first = {op for op, count in enumerate(waiting) if not count}  # of the ops outside
    last: set[int] = set()  # of the ops inside
    edges, cuts = 0, []
    for op in range(instance.num_ops):
        edges -= sum(other in last for other in before[op])
        first.remove(op)
        for other in before[op]:
            if other in last:
                edges -= sum(third in first for third in after[other])
                last.remove(other)
        last.add(op)
        for other in after[op]:
            waiting[other] -= 1
            if not waiting[other]:
                first.add(other)
                edges += sum(third in last for third in before[other])
        if first and edges == len(first) * len(last):
            cuts.append(op + 1)
    return cuts


def segments(instance: OrderInstance) -> list[tuple[int, int]]:
    """Return ranges of ops (first, one after the last) between the cuts; consecutive single ops form one range.

    Examples
    --------
    >>> from remat import Problem
    >>> from remat.graphs.families import unit_chain
    >>> segments(OrderInstance.of(Problem(unit_chain(3))))
    [(0, 7)]
    """
    ends = [*cut_positions(instance), instance.num_ops]
    ranges: list[tuple[int, int]] = []
    begin, alone = 0, False
    for end in ends:
        if end - begin == 1 and alone:
            ranges[-1] = ranges[-1][0], end
        elif end > begin:
            ranges.append((begin, end))
        alone = end - begin == 1
        begin = end
    return ranges
