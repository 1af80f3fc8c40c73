"""Hierarchy of nested groups, its validation, and topological orders of its parts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from remat.errors import ProblemError
from remat.graphs.arrays import GraphArrays
from remat.graphs.graph import ComputeGraph
from remat.hierarchy.groups import Group
from remat.hierarchy.outline import outline
from remat.problem import Problem
from remat.runtime.arrays import Int
from remat.schedule.rules import OrderRule


@dataclass(frozen=True, eq=False)
class Hierarchy:
    """A problem's ops as nested groups."""

    problem: Problem
    root: Group
    """All ops of the graph. In a training graph `forward` are the ops before the first one of the backward pass,
    including the loss, which is in no lower group; `backward` are all others."""

    @property
    def graph(self) -> ComputeGraph:
        """The graph of the problem."""
        return self.problem.graph

    @property
    def depth(self) -> int:
        """Number of levels, including the root's: 1 if nothing is grouped."""
        return self.root.height

    def groups(self) -> Iterator[Group]:
        """Yield all groups, children before their parent, the root last."""
        return self.root.walk()

    def levels(self) -> Iterator[tuple[Group, ...]]:
        """Yield the groups level by level, the root first."""
        level: tuple[Group, ...] = (self.root,)
        while level:
            yield level
            level = tuple(child for group in level for child in group.children)

    def check(self) -> None:
        """Validate the hierarchy, in time proportional to depth times (ops + dependencies).

        Raises
        ------
        ProblemError
            With names of a group and an op, if the root lacks an op, a child has an op that its parent lacks or that
            another child has, a group has no ops, ops are not in the reference order, or the groups and single ops of
            one level do not form an acyclic graph (with a node each for the forward and backward ops of a group). Only
            in an acyclic graph is each part convex, so that it can run as a whole.
        """
        arrays, name = self.graph.arrays, self.graph.op_names
        lacking = np.setdiff1d(np.arange(len(name)), self.root.ops)
        if len(lacking):
            raise ProblemError(f"the hierarchy of graph {self.graph.name!r} lacks op {name[lacking[0]]!r}", "lacks-op")
        above: tuple[Group, ...] = ()
        for level in self.levels():
            _check_level(arrays, level, above)
            above = level
        for number, level in enumerate(self.levels()):
            if number and (fault := cycle_fault(arrays, level)):
                raise ProblemError(f"graph {self.graph.name!r}: {fault}", "not-convex")

    def __str__(self) -> str:
        return outline(self.problem, self.root)

    def __repr__(self) -> str:
        return f"Hierarchy({self.graph.name!r}, depth {self.depth}, {sum(1 for _ in self.groups())} groups)"


def dependencies(problem: Problem, ops: Int | None = None) -> tuple[Int, Int]:
    """Return the dependencies between ops, as positions in ``graph.ops``: tails and heads, some repeatedly.

    With `ops`, only pairs among them. In a fixed order, neighbours in the reference order are also such pairs, because
    only contiguous ops can then run as a whole.
    """
    arrays = problem.graph.arrays
    tails, heads = arrays.edge_producer, arrays.edge_consumer
    if problem.order is OrderRule.FIXED:
        tails, heads = np.concatenate([tails, arrays.order[:-1]]), np.concatenate([heads, arrays.order[1:]])
    if ops is None:
        return tails, heads
    inside = np.zeros(len(arrays.cost), dtype=np.bool_)
    inside[ops] = True
    both = inside[tails] & inside[heads]
    return tails[both], heads[both]


def topological(successors: list[list[int]], first: list[int]) -> list[int]:
    """Return a depth-first topological order: a node follows its last predecessor closely; ties go by `first`."""
    waiting = [0] * len(successors)
    for following in successors:
        for node in following:
            waiting[node] += 1
    stack = sorted((node for node, count in enumerate(waiting) if not count), key=lambda node: -first[node])
    order: list[int] = []
    while stack:
        node = stack.pop()
        order.append(node)
        ready: list[int] = []
        for later in successors[node]:
            waiting[later] -= 1
            if not waiting[later]:
                ready.append(later)
        stack.extend(sorted(ready, key=lambda n: -first[n]))
    return order


def part_labels(num_ops: int, groups: tuple[Group, ...] | list[Group]) -> Int:
    """Return the node of each op if disjoint groups are two nodes each; shape (ops,).

    Forward ops of group ``i`` get ``num_ops + 2 i``, its backward ops one more; op ``k`` of no group gets ``k``.
    """
    labels = np.arange(num_ops, dtype=np.int64)
    for i, group in enumerate(groups):
        labels[group.forward] = num_ops + 2 * i
        labels[group.backward] = num_ops + 2 * i + 1
    return labels


def components(labels: Int, tails: Int, heads: Int) -> Int:
    """Return the strongly connected component of each op if the ops of one label are one node; shape (ops,)."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    nodes, node_of = np.unique(labels, return_inverse=True)
    size = len(nodes)
    ends = (node_of[tails], node_of[heads])
    quotient = coo_array((np.ones(len(tails), dtype=np.int8), ends), shape=(size, size)).tocsr()
    _, component = connected_components(quotient, directed=True, connection="strong")
    return component[node_of].astype(np.int64)


def cycle_fault(arrays: GraphArrays, groups: tuple[Group, ...] | list[Group]) -> str:
    """Return why disjoint groups cannot be nodes of an acyclic graph, with names, or an empty string."""
    labels = part_labels(len(arrays.cost), groups)
    component = components(labels, arrays.edge_producer, arrays.edge_consumer)
    first_label = np.full(int(component.max(initial=0)) + 1, -1, dtype=np.int64)
    first_label[component] = labels
    mixed = np.flatnonzero(first_label[component] != labels)
    if not len(mixed):
        return ""
    members = np.flatnonzero(component == component[mixed[0]])
    grouped = members[labels[members] >= len(labels)]
    one = int(grouped[0])
    other = int(members[labels[members] != labels[one]][0])
    where = _label_name(labels, one, groups)
    if labels[other] >= len(labels):
        return f"{where} and {_label_name(labels, other, groups)} depend on each other"
    return f"{where} is not convex: op {arrays.op_names[other]!r} lies on a path out of it and back"


def _label_name(labels: Int, op: int, groups: tuple[Group, ...] | list[Group]) -> str:
    number, backward = divmod(int(labels[op]) - len(labels), 2)
    group = groups[number]
    return f"group {group.name!r}" + (" (its backward ops)" if backward else "")


def _check_level(arrays: GraphArrays, level: tuple[Group, ...], above: tuple[Group, ...]) -> None:
    """Check that the groups of a level are in order, and disjoint parts of their parents in the level `above`.

    Raise ProblemError for the first fault.
    """
    name = arrays.op_names
    parts = [ops for group in level for ops in (group.forward, group.backward)]
    lengths = np.array([len(ops) for ops in parts])
    ops, part = np.concatenate(parts), np.repeat(np.arange(len(parts)), lengths)
    empty = np.flatnonzero(lengths[::2] + lengths[1::2] == 0)
    if len(empty):
        raise ProblemError(f"group {level[empty[0]].name!r} has no ops", "no-ops")
    late = np.flatnonzero((np.diff(arrays.position[ops]) <= 0) & (np.diff(part) == 0)) + 1
    if len(late):
        group, op = level[part[late[0]] // 2].name, name[ops[late[0]]]
        raise ProblemError(f"group {group!r}: op {op!r} is listed twice or not in the reference order", "not-in-order")
    by_op = np.argsort(ops, kind="stable")
    again = np.flatnonzero(np.diff(ops[by_op]) == 0)
    one, other = by_op[again], by_op[again + 1]
    both = one[part[one] // 2 == part[other] // 2]
    if len(both):
        group, op = level[part[both[0]] // 2].name, name[ops[both[0]]]
        raise ProblemError(f"group {group!r}: op {op!r} is both a forward and a backward op", "two-parts")
    if not above:
        return
    parent = np.repeat(np.arange(len(above)), [len(group.children) for group in above])
    part_above = np.full(len(name), -1, dtype=np.int64)
    for number, group_above in enumerate(above):
        part_above[group_above.forward], part_above[group_above.backward] = 2 * number, 2 * number + 1
    strange = np.flatnonzero(part_above[ops] != 2 * parent[part // 2] + part % 2)
    if len(strange):
        child, kind = divmod(int(part[strange[0]]), 2)
        raise ProblemError(
            f"{('forward', 'backward')[kind]} op {name[ops[strange[0]]]!r} of group {level[child].name!r} is not one "
            f"of its parent {above[parent[child]].name!r}",
            "not-in-parent",
        )
    if len(again):
        holders = part[ops == ops[one[0]]] // 2
        shown = " and ".join(repr(level[holder].name) for holder in holders.tolist())
        where = above[parent[holders[0]]].name
        raise ProblemError(
            f"op {name[ops[one[0]]]!r} is in several children of group {where!r}: {shown}", "not-disjoint"
        )
