"""Maximum flow in integers, compiled: Dinic's algorithm (1970) with a path in place of recursion."""

# Compiled functions carry no types.
# mypy: allow-untyped-defs

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from remat.compiled import inner, kernel

Int = NDArray[np.int64]

#: Fields of `FlowTables.number`.
NODE, DEPTH, TOTAL, SEARCHING = range(4)


class FlowTables(NamedTuple):
    """A network and a flow in it.

    Arc ``2i + 1`` is the reverse of arc ``2i``; `arcs[first[v]:first[v + 1]]` leave node ``v``, and `head` is where
    they lead. `capacity` is the residual one. `level` is the distance from the source, `here` the next arc of each node
    to be tried, and `path` the arcs to the node where the search stands. `number` is [that node, length of the path,
    value of the flow, whether there are levels]; all 0 in the beginning.
    """

    head: Int
    capacity: Int
    arcs: Int
    first: Int
    level: Int
    queue: Int
    here: Int
    path: Int
    number: Int


@inner
def levels(net, source, sink):
    """Distances from the source in the residual network; whether the sink can be reached."""
    level, queue = net.level, net.queue
    for node in range(len(level)):
        level[node] = -1
        net.here[node] = net.first[node]
    level[source] = 0
    queue[0] = source
    filled, taken = 1, 0
    while taken < filled:
        node = queue[taken]
        taken += 1
        for place in range(net.first[node], net.first[node + 1]):
            arc = net.arcs[place]
            if net.capacity[arc] > 0 and level[net.head[arc]] < 0:
                level[net.head[arc]] = level[node] + 1
                queue[filled] = net.head[arc]
                filled += 1
    return level[sink] >= 0


@kernel
def reached(indptr, indices, start, seen, queue):
    """Mark in `seen` all that can be reached from `start`, and list it in `queue`, `start` first; how many they are."""
    seen[start] = True
    queue[0] = start
    filled, taken = 1, 0
    while taken < filled:
        node = queue[taken]
        taken += 1
        for place in range(indptr[node], indptr[node + 1]):
            other = indices[place]
            if not seen[other]:
                seen[other] = True
                queue[filled] = other
                filled += 1
    return filled


@kernel
def increase_flow(net, source, sink, steps):
    """Increase the flow for about so many looks at arcs; whether it is a maximum flow now."""
    head, capacity, level, here, path, number = net.head, net.capacity, net.level, net.here, net.path, net.number
    node, depth = number[NODE], number[DEPTH]
    while steps > 0:
        if number[SEARCHING] == 0:
            if not levels(net, source, sink):
                return True
            number[SEARCHING] = 1
            node, depth = source, 0
            steps -= len(head)
        if node == sink:
            least = capacity[path[0]]
            for step in range(1, depth):
                least = min(least, capacity[path[step]])
            number[TOTAL] += least
            full = 0
            for step in range(depth - 1, -1, -1):
                arc = path[step]
                capacity[arc] -= least
                capacity[arc ^ 1] += least
                if capacity[arc] == 0:
                    full = step
            steps -= 2 * depth
            node = head[path[full] ^ 1]
            depth = full
            continue
        advanced = False
        while here[node] < net.first[node + 1]:
            arc = net.arcs[here[node]]
            steps -= 1
            if capacity[arc] > 0 and level[head[arc]] == level[node] + 1:
                path[depth] = arc
                depth += 1
                node = head[arc]
                advanced = True
                break
            here[node] += 1
        if not advanced:
            if depth == 0:
                number[SEARCHING] = 0
                continue
            depth -= 1
            node = head[path[depth] ^ 1]
            here[node] += 1
    number[NODE], number[DEPTH] = node, depth
    return False
