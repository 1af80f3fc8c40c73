"""Trees of separators, and the recursion of TW-Remat over them with an explicit stack."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from heapq import nsmallest
from typing import Any, cast

import numpy as np
from networkx.algorithms.approximation.treewidth import MinDegreeHeuristic, min_fill_in_heuristic

from remat.heuristics.retention import inputs_by_position, missing_inputs
from remat.problem import Problem
from remat.problem.op_sequence import allowed_computes
from remat.runtime.arrays import Int
from remat.runtime.deadline import Deadline
from remat.schedule import OrderRule

#: A graph as the neighbours of each node.
Neighbours = list[list[int]]
#: Returns the node to eliminate next; None: the remaining graph is complete.
Elimination = Callable[[dict[int, set[int]]], int | None]

#: Number of bags whose components are counted, by the size of their tree sides, which are never smaller.
CANDIDATES = 8


@dataclass(frozen=True)
class SeparatorTree:
    """Parts of a graph, each split by a separator into smaller ones; children are numbered after their parents."""

    home: list[int]
    """Part whose separator contains each node."""
    children: list[list[int]]
    """Parts left of each part without its separator, which alone connects them."""
    end: list[int]
    """Part p and all parts below it are ``p .. end[p] - 1``."""
    num_nodes: list[int]
    """Number of nodes of each part, including those below."""


def by_degree(graph: dict[int, set[int]]) -> Elimination:
    """Return the rule that eliminates a node of least degree next."""
    return cast("Elimination", MinDegreeHeuristic(cast(Any, graph)).best_node)


def by_fill_in(_: dict[int, set[int]]) -> Elimination:
    """Return the rule that next eliminates a node whose neighbours lack the fewest edges."""
    return min_fill_in_heuristic


def separator_tree(
    neighbours: Neighbours, elimination: Callable[[dict[int, set[int]]], Elimination], deadline: Deadline | None = None
) -> SeparatorTree:
    """Split repeatedly by the bag whose largest side is smallest.

    O(n w log n) for n nodes and width w, after the decomposition (:func:`decomposition`). Raise OverdueError at the
    deadline.

    Examples
    --------
    >>> path = [[1], [0, 2], [1, 3], [2, 4], [3]]
    >>> tree = separator_tree(path, by_degree)
    >>> tree.home, tree.children, tree.num_nodes
    ([2, 2, 0, 0, 1], [[1, 2], [], []], [5, 1, 2])
    """
    clock = deadline or Deadline()
    bags, above = decomposition(neighbours, elimination, clock)
    return _Splitter(neighbours, [sorted(bag) for bag in bags], above, clock).tree()


def decomposition(
    neighbours: Neighbours, elimination: Callable[[dict[int, set[int]]], Elimination], deadline: Deadline
) -> tuple[list[set[int]], list[int]]:
    """Return a tree decomposition from eliminating one node after another: bags, and the parent of each (-1: none).

    A bag comes after its parent. The bags are those of networkx, which compares each with all before it (half a minute
    for 20,000 nodes) and does not check the deadline. Raise OverdueError at the deadline.

    Examples
    --------
    >>> decomposition([[1], [0, 2], [1, 3], [2, 4], [3]], by_degree, Deadline())
    ([{2, 3}, {1, 2}, {3, 4}, {0, 1}], [-1, 0, 0, 1])
    """
    left = {node: set(others) - {node} for node, others in enumerate(neighbours)}
    following = elimination(left)
    eliminated: list[tuple[int, set[int]]] = []
    while (node := following(left)) is not None:
        deadline.check()
        around = left.pop(node)
        for other in deadline.each(around):
            known = left[other]
            known.update([each for each in around if each not in known and each != other])
        for other in around:
            left[other].remove(node)
        eliminated.append((node, around))
    bags, above, bag_of = [set(left)], [-1], dict.fromkeys(left, 0)
    for node, around in deadline.each(reversed(eliminated)):
        # these neighbours are adjacent to each other, so all are in the bag of the one that is eliminated next
        above.append(max((bag_of[other] for other in around), default=0))
        bag_of[node] = len(bags)
        bags.append({node, *around})
    return bags, above


class _Splitter:
    """Repeated splits of a tree decomposition."""

    def __init__(self, neighbours: Neighbours, bags: list[list[int]], above: list[int], deadline: Deadline) -> None:
        self.neighbours, self.bags, self.above, self.deadline = neighbours, bags, above, deadline
        self.bags_of: list[list[int]] = [[] for _ in neighbours]
        for k, bag in enumerate(bags):
            for node in bag:
                self.bags_of[node].append(k)
        self.part = [0] * len(neighbours)
        """Current part of each node; negative once its home is known or its component is collected."""

    def tree(self) -> SeparatorTree:
        """Return the parts in the order in which they are split, from the root down."""
        home, num_nodes = [0] * len(self.neighbours), []
        children: list[list[int]] = []
        everything = list(range(len(self.neighbours))), list(range(len(self.bags))), -1
        todo: list[tuple[list[int], list[int], int]] = [everything]
        while todo:
            self.deadline.check()
            nodes, bags, parent = todo.pop()
            part = len(children)
            if parent >= 0:
                children[parent].append(part)
            for node in nodes:
                self.part[node] = part
            between = self._best_bag(bags, part, nodes)
            for node in between:
                home[node], self.part[node] = part, -1
            children.append([])
            num_nodes.append(len(nodes))
            for component in self._components(nodes, part):
                inside = sorted({bag for node in component for bag in self.bags_of[node]})
                todo.append((component, inside, part))
        end = [0] * len(children)
        for part in range(len(children) - 1, -1, -1):
            end[part] = max((end[child] for child in children[part]), default=part + 1)
        return SeparatorTree(home, children, end, num_nodes)

    def _best_bag(self, bags: Sequence[int], part: int, nodes: Sequence[int]) -> list[int]:
        """Return the nodes of the bag with the smallest largest component, among the bags with the least sides."""
        left = [[node for node in self.bags[bag] if self.part[node] == part] for bag in bags]
        place = {bag: k for k, bag in enumerate(bags)}
        below, side, own = [0] * len(bags), [0] * len(bags), [0] * len(bags)
        met: set[int] = set()
        for k, some in enumerate(left):  # a node belongs to its highest bag
            below[k] = own[k] = sum(node not in met for node in some)
            met.update(some)
        for k in range(len(bags) - 1, 0, -1):
            above = place[self.above[bags[k]]]
            below[above] += below[k]
            side[above] = max(side[above], below[k])
        sides = [
            (max(side[k], len(nodes) - below[k] - (len(left[k]) - own[k])), k) for k in range(len(bags)) if left[k]
        ]
        few = sorted(k for _, k in nsmallest(CANDIDATES, sides))
        return min((left[k] for k in few), key=lambda between: self._largest_part(nodes, part, between))

    def _largest_part(self, nodes: Sequence[int], part: int, between: Sequence[int]) -> int:
        """Return the size of the largest component without the nodes `between`."""
        for node in between:
            self.part[node] = -1
        components = self._components(nodes, part)
        for node in nodes:
            self.part[node] = part
        return max(map(len, components), default=0)

    def _components(self, nodes: Sequence[int], part: int) -> list[list[int]]:
        """Return the connected components of the nodes of `part` that have no home yet."""
        components = []
        for first in nodes:
            if self.part[first] != part:
                continue
            self.part[first] = -2
            component = [first]
            for node in component:
                for other in self.neighbours[node]:
                    if self.part[other] == part:
                        self.part[other] = -2
                        component.append(other)
            components.append(sorted(component))
        return components


#: A part, and the values wanted of it.
Call = tuple[int, list[int]]


class LongSequenceError(Exception):
    """Raised when a sequence exceeds its limit of computes."""


class Ops:
    """Data of a problem for the recursion: ops by position in the reference order, and their inputs."""

    def __init__(self, problem: Problem) -> None:
        arrays = problem.graph.arrays
        self.inputs = inputs_by_position(problem)
        """Ops that each op reads from, ascending."""
        self.sinks = arrays.position[arrays.op_successors.counts == 0].tolist()
        """Ops whose values have no reader."""
        self.limits: list[int] = allowed_computes(problem, np.iinfo(np.int64).max)[arrays.order].tolist()
        """Largest number of computes of each op: one for the several writers of a buffer."""
        self.in_order = problem.order is OrderRule.FIXED

    @property
    def neighbours(self) -> list[list[int]]:
        """Ops that each op reads from or is read by."""
        both: list[list[int]] = [list(row) for row in self.inputs]
        for op, row in enumerate(self.inputs):
            for other in row:
                both[other].append(op)
        return both


def sequence_of(ops: Ops, tree: SeparatorTree, cut_off: int, most: int, deadline: Deadline) -> Int:
    """Return the computes of TW-Remat by position; parts of at most `cut_off` ops run in order, without drops.

    Raises
    ------
    LongSequenceError
        If there are more than `most`.
    OverdueError
        At the deadline.

    Notes
    -----
    Kumar et al., *Efficient Rematerialization for Deep Networks* (NeurIPS 2019), algorithm 1. Of a part with separator
    X, the wanted values of X and all that they need are computed in order. Before each op, its inputs in the parts
    below are computed, and these parts hold nothing else. At the end the wanted values of the parts below follow.
    """
    recursion = _Recursion(ops, tree, cut_off, _Machine(ops, most))
    stack = [recursion.leave(0, sorted(ops.sinks))]
    while stack:
        deadline.check()
        following = next(stack[-1], None)
        if following is None:
            stack.pop()
        else:
            stack.append(recursion.leave(*following))
    return np.array(recursion.machine.sequence, dtype=np.int64)


@dataclass(frozen=True)
class _Recursion:
    """Calls of the recursion, each of which yields those that it waits for."""

    ops: Ops
    tree: SeparatorTree
    cut_off: int
    machine: _Machine

    def leave(self, part: int, wanted: list[int]) -> Iterator[Call]:
        """Compute the wanted values of a part, and hold no others, given all that it needs from outside."""
        home, inputs, end = self.tree.home, self.ops.inputs, self.tree.end[part]
        needed, found = set(wanted), list(wanted)
        for op in found:
            for other in inputs[op]:
                if other not in needed and part <= home[other] < end:
                    needed.add(other)
                    found.append(other)
        whole = self.tree.num_nodes[part] <= self.cut_off
        children = [] if whole else self.tree.children[part]
        own = sorted(op for op in needed if whole or home[op] == part)

        def below(values: list[int]) -> dict[int, list[int]]:
            """Return the values in the parts below, by part."""
            parts: dict[int, list[int]] = {}
            for value in values:
                if children and part < home[value] < end:
                    parts.setdefault(children[bisect_right(children, home[value]) - 1], []).append(value)
            return parts

        for op in own:
            read = below(inputs[op])
            yield from read.items()
            self.machine.compute(op)
            for values in read.values():
                self.machine.drop(values)
        yield from below(wanted).items()
        kept = set(wanted)
        self.machine.drop([op for op in own if op not in kept])


class _Machine:
    """Execution of the recursion's calls, which skips live values and keeps the required order of first computes."""

    def __init__(self, ops: Ops, most: int) -> None:
        self.ops, self.most = ops, most
        self.counts = [0] * len(ops.inputs)
        self.live: set[int] = set()
        self.sequence: list[int] = []
        self.following = 0
        """Position up to which every op has been computed, where the order is fixed."""

    def compute(self, op: int) -> None:
        """Compute a value unless it is live, and before its first compute all earlier ops."""
        if op in self.live:
            return
        if self.ops.in_order and not self.counts[op]:
            for earlier in range(self.following, op):
                if not self.counts[earlier]:
                    self._regain(earlier)
                    self._run(earlier)
            self.following = max(self.following, op + 1)
            self._regain(op)
        self._run(op)

    def drop(self, values: list[int]) -> None:
        """Drop values, except those that cannot be recomputed."""
        self.live.difference_update(v for v in values if self.counts[v] < self.ops.limits[v])

    def _run(self, op: int) -> None:
        self.sequence.append(op)
        self.counts[op] += 1
        self.live.add(op)
        if len(self.sequence) > self.most:
            raise LongSequenceError

    def _regain(self, op: int) -> None:
        """Compute the missing inputs of an op temporarily, since the recursion does not provide them this early."""
        missing = missing_inputs(op, self.ops.inputs, self.live)
        for value in missing:
            self._run(value)
        self.drop(missing)
