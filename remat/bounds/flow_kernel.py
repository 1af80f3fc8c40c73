"""Maximum flow in integers, compiled: Dinic's algorithm (1970) with a path in place of recursion."""

# mypy: disable-error-code="no-untyped-def"
# numba's compiled functions carry no types.

from __future__ import annotations

import numpy as np
from numba import njit


@njit(cache=True)
def _levels(head, capacity, arcs, first, source, sink, level, queue):  # noqa: PLR0917
    """Distances from the source in the residual network; whether the sink can be reached."""
    level[:] = -1
    level[source] = 0
    queue[0] = source
    filled = 1
    taken = 0
    while taken < filled:
        node = queue[taken]
        taken += 1
        for place in range(first[node], first[node + 1]):
            arc = arcs[place]
            if capacity[arc] > 0 and level[head[arc]] < 0:
                level[head[arc]] = level[node] + 1
                queue[filled] = head[arc]
                filled += 1
    return level[sink] >= 0


@njit(cache=True)
def max_flow(head, capacity, arcs, first, source, sink):  # noqa: PLR0917
    """Value of a maximum flow; `capacity` (arc 2i + 1 is the reverse of arc 2i) becomes the residual one."""
    nodes = len(first) - 1
    level = np.empty(nodes, dtype=np.int64)
    queue = np.empty(nodes, dtype=np.int64)
    here = np.empty(nodes, dtype=np.int64)
    path = np.empty(nodes, dtype=np.int64)
    total = 0
    while _levels(head, capacity, arcs, first, source, sink, level, queue):
        here[:] = first[:-1]
        node = source
        depth = 0
        while True:
            if node == sink:
                least = capacity[path[0]]
                for step in range(1, depth):
                    least = min(least, capacity[path[step]])
                total += least
                full = 0
                for step in range(depth - 1, -1, -1):
                    arc = path[step]
                    capacity[arc] -= least
                    capacity[arc ^ 1] += least
                    if capacity[arc] == 0:
                        full = step
                node = head[path[full] ^ 1]
                depth = full
                continue
            advanced = False
            while here[node] < first[node + 1]:
                arc = arcs[here[node]]
                if capacity[arc] > 0 and level[head[arc]] == level[node] + 1:
                    path[depth] = arc
                    depth += 1
                    node = head[arc]
                    advanced = True
                    break
                here[node] += 1
            if not advanced:
                if depth == 0:
                    break
                depth -= 1
                node = head[path[depth] ^ 1]
                here[node] += 1
    return total
