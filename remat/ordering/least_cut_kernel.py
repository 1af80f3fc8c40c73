"""Kernel for the least boundary among all closed sets between two states of a search: a minimum cut on the ops between.

The tables are those of :mod:`remat.ordering.valley_kernel`.
"""

# Compiled functions carry no types.
# mypy: allow-untyped-defs
# Tables are separate arguments: a tuple of arrays would take longer to compile than the function itself.
# ruff: noqa: PLR0913, PLR0917

from __future__ import annotations

from remat.runtime.compiled import inner

#: A capacity that no cut reaches.
UNLIMITED = 2**62

# Rows of `ops` (a column for each op; the first four are CSR pointers into `links`) and of `tensors`.
PREDECESSORS, SUCCESSORS, BEGINS, ENDS, WORKSPACE, WAITING, PLACE, READY, KEY_A, KEY_B, OP_NODE, RANK = range(12)
SIZE, BEGUN, LEFT, TENSOR_NODE, INSIDE = range(5)
# Rows of `nodes` and `arcs`: linked lists, arc ``2i + 1`` the reverse of arc ``2i``.
FIRST, LEVEL, QUEUE, HERE, PATH, MEMBER = range(6)
HEAD, CAPACITY, NEXT = range(3)


@inner
def add_arc(nodes, arcs, count, tail, head, capacity):
    """Add an arc and its reverse; return the new number of arcs."""
    arcs[HEAD, count] = head
    arcs[CAPACITY, count] = capacity
    arcs[NEXT, count] = nodes[FIRST, tail]
    nodes[FIRST, tail] = count
    arcs[HEAD, count + 1] = tail
    arcs[CAPACITY, count + 1] = 0
    arcs[NEXT, count + 1] = nodes[FIRST, head]
    nodes[FIRST, head] = count + 1
    return count + 2


@inner
def flow_levels(nodes, arcs, num_nodes, source, sink):
    """Compute distances from the source in the residual network; return whether it reaches the sink."""
    for node in range(num_nodes):
        nodes[LEVEL, node] = -1
        nodes[HERE, node] = nodes[FIRST, node]
    nodes[LEVEL, source] = 0
    nodes[QUEUE, 0] = source
    filled, taken = 1, 0
    while taken < filled:
        node = nodes[QUEUE, taken]
        taken += 1
        arc = nodes[FIRST, node]
        while arc >= 0:
            other = arcs[HEAD, arc]
            if arcs[CAPACITY, arc] > 0 and nodes[LEVEL, other] < 0:
                nodes[LEVEL, other] = nodes[LEVEL, node] + 1
                nodes[QUEUE, filled] = other
                filled += 1
            arc = arcs[NEXT, arc]
    return nodes[LEVEL, sink] >= 0


@inner
def largest_flow(nodes, arcs, num_nodes, source, sink, number, work):
    """Run Dinic's algorithm (1970) and return the flow; the final levels mark the side of the source."""
    total = 0
    while flow_levels(nodes, arcs, num_nodes, source, sink):
        number[work] += num_nodes
        node, depth = source, 0
        while True:
            if node == sink:
                number[work] += depth
                least = UNLIMITED
                for step in range(depth):
                    least = min(least, arcs[CAPACITY, nodes[PATH, step]])
                total += least
                full = 0
                for step in range(depth - 1, -1, -1):
                    arc = nodes[PATH, step]
                    arcs[CAPACITY, arc] -= least
                    arcs[CAPACITY, arc ^ 1] += least
                    if arcs[CAPACITY, arc] == 0:
                        full = step
                node = arcs[HEAD, nodes[PATH, full] ^ 1]
                depth = full
                continue
            arc = nodes[HERE, node]
            while arc >= 0:
                if arcs[CAPACITY, arc] > 0 and nodes[LEVEL, arcs[HEAD, arc]] == nodes[LEVEL, node] + 1:
                    break
                arc = arcs[NEXT, arc]
            nodes[HERE, node] = arc
            number[work] += 1
            if arc >= 0:
                nodes[PATH, depth] = arc
                depth += 1
                node = arcs[HEAD, arc]
            elif depth == 0:
                break
            else:
                depth -= 1
                arc = nodes[PATH, depth]
                node = arcs[HEAD, arc ^ 1]
                nodes[HERE, node] = arcs[NEXT, arc]
    return total


@inner
def number_nodes(ops, tensors, links, nodes, path, row, begin, end):
    """Number the ops between two states and their tensors, which `nodes[QUEUE]` lists; return how many tensors."""
    count = 0
    for i in range(end - begin):
        op = path[row, begin + i]
        ops[OP_NODE, op] = i
        for kind in range(2):
            for k in range(ops[BEGINS + kind, op], ops[BEGINS + kind, op + 1]):
                tensor = links[k]
                if tensors[TENSOR_NODE, tensor] < 0:
                    tensors[TENSOR_NODE, tensor] = count
                    tensors[INSIDE, tensor] = 0
                    nodes[QUEUE, count] = tensor
                    count += 1
                if kind == 0:
                    tensors[INSIDE, tensor] += 1
    return count


@inner
def add_tensors(tensors, nodes, arcs, width, tensors_here):
    """Add the arcs of tensors; return the number of arcs, and the boundary of the later state."""
    source = width + 2 * tensors_here
    sink = source + 1
    count = whole = 0
    for i in range(tensors_here):
        tensor = nodes[QUEUE, i]
        old = tensors[BEGUN, tensor] > tensors[INSIDE, tensor]
        begun, ended = width + i, width + tensors_here + i
        if tensors[LEFT, tensor] > 0:
            if not old and tensors[BEGUN, tensor] > 0:
                whole += tensors[SIZE, tensor]
                count = add_arc(nodes, arcs, count, begun, sink, tensors[SIZE, tensor])
            continue
        count = add_arc(nodes, arcs, count, begun, ended, tensors[SIZE, tensor])
        if old:
            count = add_arc(nodes, arcs, count, source, begun, UNLIMITED)
    return count, whole


@inner
def is_least(ops, tensors, links, nodes, arcs, path, row, begin, end, number, work):
    """Return True if no closed set between two states has a smaller boundary than the later one.

    The later state is the current one; the ops between are `path[row, begin:end]`. If a set has a smaller boundary,
    `nodes[MEMBER]` marks the ops (by place in the path, from 0) between the earlier state and the smallest closed set
    of least boundary. `number[work]` increases by the work done.

    Nodes: ops (in the set if on the side of the source), and for each tensor one node for begun and one for all users
    done. Arcs: a tensor that is begun and not ended costs its size. Unlimited arcs enforce three conditions: an op in
    the set has its predecessors there, it begins the tensors it writes, and an ended tensor has all users in the set.
    """
    width = end - begin
    tensors_here = number_nodes(ops, tensors, links, nodes, path, row, begin, end)
    source = width + 2 * tensors_here
    sink = source + 1
    for node in range(sink + 1):
        nodes[FIRST, node] = -1
    count, whole = add_tensors(tensors, nodes, arcs, width, tensors_here)
    for i in range(width):
        op = path[row, begin + i]
        for k in range(ops[PREDECESSORS, op], ops[PREDECESSORS, op + 1]):
            if ops[OP_NODE, links[k]] >= 0:
                count = add_arc(nodes, arcs, count, i, ops[OP_NODE, links[k]], UNLIMITED)
        for k in range(ops[BEGINS, op], ops[BEGINS, op + 1]):
            count = add_arc(nodes, arcs, count, i, width + tensors[TENSOR_NODE, links[k]], UNLIMITED)
        for k in range(ops[ENDS, op], ops[ENDS, op + 1]):
            tensor = links[k]
            if tensors[LEFT, tensor] == 0:
                ended = width + tensors_here + tensors[TENSOR_NODE, tensor]
                count = add_arc(nodes, arcs, count, ended, i, UNLIMITED)
    for i in range(width):
        op = path[row, begin + i]
        ops[OP_NODE, op] = -1
        for kind in range(2):
            for k in range(ops[BEGINS + kind, op], ops[BEGINS + kind, op + 1]):
                tensors[TENSOR_NODE, links[k]] = -1
    number[work] += 3 * width + tensors_here
    flow = largest_flow(nodes, arcs, sink + 1, source, sink, number, work)
    for i in range(width):
        nodes[MEMBER, i] = nodes[LEVEL, i] >= 0
    return flow == whole
