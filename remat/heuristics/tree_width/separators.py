"""Trees of separators: repeated splits of a graph by a bag of its tree decomposition."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from heapq import nsmallest
from typing import Any, cast

from networkx.algorithms.approximation.treewidth import MinDegreeHeuristic, min_fill_in_heuristic

from remat.runtime.deadline import Deadline

#: A graph as the neighbours of each node.
Neighbours = list[list[int]]
#: Returns the node to eliminate next; None: the remaining graph is complete.
Elimination = Callable[[dict[int, set[int]]], int | None]

#: Bags whose components are counted. The sides of the tree, known for all bags, are never smaller.
CANDIDATES = 8


@dataclass(frozen=True)
class SeparatorTree:
    """Parts of a graph, each split by a separator into smaller ones; children are numbered after their parents.

    Attributes
    ----------
    home : list of int
        Part whose separator has each node.
    children : list of list of int
        Parts that remain without the separator, which alone connects them.
    end : list of int
        Part p and all parts below it are ``p .. end[p] - 1``.
    num_nodes : list of int
        Nodes of each part, including those below.
    """

    home: list[int]
    children: list[list[int]]
    end: list[int]
    num_nodes: list[int]


def by_degree(graph: dict[int, set[int]]) -> Elimination:
    """Return the rule that eliminates a node of least degree next."""
    return cast("Elimination", MinDegreeHeuristic(cast(Any, graph)).best_node)


def by_fill_in(_: dict[int, set[int]]) -> Elimination:
    """Return the rule that eliminates a node next whose neighbours lack the fewest edges."""
    return min_fill_in_heuristic


def separator_tree(
    neighbours: Neighbours,
    elimination: Callable[[dict[int, set[int]]], Elimination],
    deadline: Deadline | None = None,
) -> SeparatorTree:
    """Split repeatedly by the bag whose largest side is smallest.

    O(n w log n) for n nodes and width w, after the decomposition (:func:`decomposition`).

    Raises
    ------
    OverdueError
        At the deadline.

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
    """Return a tree decomposition by elimination of one node after another: bags, and the parent of each (-1: none).

    A bag comes after its parent. The bags are those of networkx, which compares each with all before it (half a minute
    for 20,000 nodes) and does not check the deadline.

    Raises
    ------
    OverdueError
        At the deadline.

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
