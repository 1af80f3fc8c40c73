"""One round of H-Partition: a graph of nodes, candidates for groups, and the selection among them."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from remat.graphs.arrays import Csr
from remat.heuristics.forward_blocks import long_lived
from remat.hierarchy.tree import dependencies, topological
from remat.problem import Problem
from remat.problem.training_step import training_step
from remat.runtime.arrays import Bool, Int
from remat.runtime.deadline import Deadline

#: Most long-lived values with many readers for which classes are formed; with more, there is one class.
MAX_SPLITTING = 8


@dataclass(frozen=True, eq=False)
class Level:
    """A graph of nodes, each a set of ops."""

    rank: list[int]
    """Position of each node in a topological order."""
    by_rank: list[int]
    """The nodes in that order."""
    predecessors: list[list[int]]
    """Predecessors of each node within its class."""
    ops: list[int]
    """Number of ops of each node."""
    reads: list[list[int]]
    """Tensors that each node reads and another node writes."""
    writes: list[list[int]]
    """Tensors that each node writes and that cross its border."""
    readers: list[int]
    """Number of nodes that read each tensor, without its only writer."""
    writers: list[int]
    """Number of nodes that write each tensor."""
    leaves: list[bool]
    """Flag of tensors that are graph outputs or read outside the nodes."""
    size: list[int]
    """Bytes of each tensor."""

    @classmethod
    def of(cls, problem: Problem, node: Int, kinds: Int | None, leaves: Bool) -> Level:
        """Return the level with the given nodes, numbered from 0.

        Parameters
        ----------
        node : int64 array, shape (ops,)
            Node of each op; -1 for ops that are not grouped.
        kinds : int64 array, shape (ops,), or None
            Class of each op (:func:`classes`); None: one class.
        leaves : bool array, shape (tensors,)
            :func:`leaving`.
        """
        arrays = problem.graph.arrays
        count, inside = int(node.max(initial=-1)) + 1, node >= 0
        width = len(arrays.size)
        reads = _pairs(node[arrays.consumers.indices], arrays.consumers.rows, width)
        writes = _pairs(node[arrays.producers.indices], arrays.producers.rows, width)
        readers, writers = (np.bincount(pairs % width, minlength=width) for pairs in (reads, writes))
        both = np.intersect1d(reads, writes, assume_unique=True)  # tensors that a node reads and writes
        only_writer = writers[both % width] == 1
        own = both[only_writer]
        hidden = own[(readers[own % width] == 1) & ~leaves[own % width]]
        reads = np.setdiff1d(reads, own, assume_unique=True)
        readers = readers - np.bincount(own % width, minlength=width)
        writes = np.setdiff1d(writes, hidden, assume_unique=True)
        reads = reads[writers[reads % width] > 0]
        tails, heads = dependencies(problem) if kinds is None else (arrays.edge_producer, arrays.edge_consumer)
        edges = inside[tails] & inside[heads] & (node[tails] != node[heads])
        tails, heads = tails[edges], heads[edges]
        first = np.full(count, len(node), dtype=np.int64)
        np.minimum.at(first, node[inside], arrays.position[inside])
        by_rank = topological(Csr.distinct(node[tails], node[heads], count).lists(), first.tolist())
        rank = np.empty(count, dtype=np.int64)
        rank[by_rank] = np.arange(count)
        if kinds is not None:
            same = kinds[tails] == kinds[heads]
            tails, heads = tails[same], heads[same]
        return cls(
            rank=rank.tolist(),
            by_rank=by_rank,
            predecessors=Csr.distinct(node[heads], node[tails], count).lists(),
            ops=np.bincount(node[inside], minlength=count).tolist(),
            reads=Csr.from_pairs(reads // width, reads % width, count).lists(),
            writes=Csr.from_pairs(writes // width, writes % width, count).lists(),
            readers=readers.tolist(),
            writers=writers.tolist(),
            leaves=leaves.tolist(),
            size=arrays.size.tolist(),
        )


def leaving(problem: Problem) -> Bool:
    """Return a flag per tensor: the loss reads it, or it is a graph output.

    Forward values that backward ops read do not count, since the backward ops join the group.
    """
    arrays = problem.graph.arrays
    step, leaves = training_step(problem), problem.kept.copy()
    if step is not None:
        loss = np.zeros(len(arrays.cost), dtype=np.bool_)
        loss[arrays.order[step.num_forward : step.first_backward]] = True
        leaves[arrays.consumers.rows[loss[arrays.consumers.indices]]] = True
    return leaves


def _pairs(nodes: Int, tensors: Int, width: int) -> Int:
    """Return the distinct pairs of node and tensor, as ``node * width + tensor``, ascending."""
    known = nodes >= 0
    return np.unique(nodes[known] * width + tensors[known])


def classes(problem: Problem, ops: Int) -> Int:
    """Return the class of each op, such that values pass between two classes one way; shape (ops of the graph,).

    Masks and the output of an encoder are read everywhere after them, so everything would depend on two values. The
    ops that lead to such a value therefore form one class and the others another. Groups lie within a class.
    Dependencies between classes can then be ignored, since no cycle can include them.
    """
    arrays = problem.graph.arrays
    kinds = np.zeros(len(arrays.cost), dtype=np.int64)
    _, _, special = long_lived(problem, ops)
    if len(special) > MAX_SPLITTING:
        return kinds
    values = [0] * len(kinds)
    for bit, tensor in enumerate(special.tolist()):
        for op in arrays.producers[tensor].tolist():
            values[op] |= 1 << bit
    predecessors = arrays.op_predecessors.lists()
    for op in ops[::-1].tolist():
        if values[op]:
            for before in predecessors[op]:
                values[before] |= values[op]
    return np.array(values, dtype=np.int64)


def region_candidates(level: Level, most: int, deadline: Deadline) -> Iterator[list[int]]:
    """Yield, for each node ``x``, the nodes between it and ``a(x)``, with either, both or none of these two.

    ``a(x)`` is the closest node that all paths to ``x`` in its class pass through. Sets of fewer than two nodes or more
    than `most` are skipped.
    """
    for x in deadline.each(level.by_rank):
        head, between = closest_common_ancestor(level, x, most)
        if between is None:
            continue
        for ends in ([], [x]) if head is None else ([], [x], [head], [head, x]):
            if 2 <= len(between) + len(ends) <= most:
                yield [*between, *ends]


def closest_common_ancestor(level: Level, x: int, most: int) -> tuple[int | None, list[int] | None]:
    """Return ``a(x)`` and the nodes between it and `x`; None for the nodes if there are more than `most`.

    No node is ``a(x)`` if paths into `x` start at several nodes; then all nodes that lead to `x` are between.
    """
    rank, predecessors, by_rank = level.rank, level.predecessors, level.by_rank
    start = predecessors[x]
    if len(start) == 1:
        return start[0], []
    if len(start) > most + 1:
        return None, None
    heap = [-rank[u] for u in start]
    heapq.heapify(heap)
    seen = set(start)
    between: list[int] = []
    several = False
    while heap:
        u = by_rank[-heapq.heappop(heap)]
        if not heap and not several:
            return u, between
        between.append(u)
        several = several or not predecessors[u]
        for v in predecessors[u]:
            if v not in seen:
                seen.add(v)
                heapq.heappush(heap, -rank[v])
        if len(between) + len(heap) > most + 1:  # all of these except one are between
            return None, None
    return None, between


def run_candidates(level: Level, most: int, deadline: Deadline) -> Iterator[list[int]]:
    """Yield neighbours in the order, and runs of it from ``a(x)`` to ``x`` with or without these ends."""
    rank, by_rank = level.rank, level.by_rank
    for k, x in enumerate(deadline.each(by_rank)):
        if k:
            yield by_rank[k - 1 : k + 1]
        if len(level.predecessors[x]) > 1:
            head, between = closest_common_ancestor(level, x, most)
            if between is None:
                continue
            begin = rank[head] + 1 if head is not None else min(map(rank.__getitem__, between), default=k)
            for a in {begin, begin - (head is not None)}:
                for b in (k, k + 1):
                    if 2 < b - a <= most:
                        yield by_rank[a:b]


class Wrapping:
    """Growing groups: the candidate with the least score becomes a group, and overlapping candidates absorb it.

    The score of a candidate is (bytes across its border) x (number of its ops) ** alpha. It is recomputed when the
    candidate comes up, since the candidate may have absorbed others; if its score rose by that, it waits.
    """

    def __init__(self, level: Level, alpha: float, most: int) -> None:
        self.level, self.alpha, self.most = level, alpha, most
        count = len(level.rank)
        self.above = list(range(count))
        self.nodes = [1] * count
        self.ops = list(level.ops)
        self.reads = [dict.fromkeys(tensors, 1) for tensors in level.reads]
        self.writes = [dict.fromkeys(tensors, 1) for tensors in level.writes]
        self.count = count

    def find(self, node: int) -> int:
        """Return the group of a node, represented by one of its nodes."""
        above = self.above
        while above[node] != node:
            above[node] = above[above[node]]
            node = above[node]
        return node

    def score(self, parts: Iterable[int]) -> tuple[float, int]:
        """Return the score of the union of the groups `parts`, and its number of ops."""
        level, ops = self.level, 0
        reads: list[dict[int, int]] = []
        writes: list[dict[int, int]] = []
        for part in parts:
            ops += self.ops[part]
            reads.append(self.reads[part])
            writes.append(self.writes[part])
        read, written = set().union(*reads), set().union(*writes)
        crossing = sum(map(level.size.__getitem__, read ^ written))
        for tensor in read & written:
            inside = sum(table.get(tensor, 0) for table in writes) == level.writers[tensor]
            if not inside:
                crossing += level.size[tensor]
            if not inside or self._read_elsewhere(tensor, reads):
                crossing += level.size[tensor]
        return crossing * ops**self.alpha, ops

    def _read_elsewhere(self, tensor: int, reads: list[dict[int, int]]) -> bool:
        """Return True if other nodes than these read a tensor."""
        level = self.level
        return level.leaves[tensor] or sum(table.get(tensor, 0) for table in reads) < level.readers[tensor]

    def wrap(self, parts: list[int]) -> None:
        """Merge several groups."""
        root, *others = sorted(parts, key=lambda part: -self.nodes[part])
        for tables in (self.reads, self.writes):
            merged = tables[root]
            for part in others:
                for tensor, number in tables[part].items():
                    merged[tensor] = merged.get(tensor, 0) + number
                tables[part] = {}
        read, written = self.reads[root], self.writes[root]
        for tensor in read.keys() & written.keys():
            if written[tensor] == self.level.writers[tensor] and not self._read_elsewhere(tensor, [read]):
                del read[tensor], written[tensor]
        for part in others:
            self.above[part] = root
            self.nodes[root] += self.nodes[part]
            self.ops[root] += self.ops[part]
        self.count -= len(others)

    def run(self, candidates: Iterable[list[int]], stop_at: int, deadline: Deadline) -> list[list[int]]:
        """Merge until no candidate is left or `stop_at` nodes remain; return the groups of several nodes."""
        kept: list[list[int]] = []
        heap: list[tuple[float, int, int]] = []
        for candidate in candidates:
            score, ops = self.score(candidate)
            heap.append((score, ops, len(kept)))
            kept.append(candidate)
        heapq.heapify(heap)
        rounds = 0
        while heap and self.count > stop_at:
            rounds += 1
            if rounds % 256 == 0:
                deadline.check()
            score, ops, number = heap[0]
            parts = list({self.find(node) for node in kept[number]})
            if len(parts) < 2 or sum(self.nodes[part] for part in parts) > self.most:
                heapq.heappop(heap)
                continue
            now = self.score(parts) if sum(self.ops[part] for part in parts) != ops else (score, ops)
            if now > (score, ops):
                heapq.heapreplace(heap, (*now, number))
                continue
            heapq.heappop(heap)
            self.wrap(parts)
        groups: dict[int, list[int]] = defaultdict(list)
        for node in self.level.by_rank:
            groups[self.find(node)].append(node)
        return [nodes for nodes in groups.values() if len(nodes) > 1]
