"""A second exhaustive search, to check the first: bit masks, one choice of what to hold after each compute.

It follows the rules as the notes on semantics and the simulator state them (epochs of buffers, masked contributions,
frees of incomplete buffers), for any order of computes, and shares nothing with ``remat.testing.exhaustive``.
"""

import heapq


def least_cost(graph, budget, order="free", kept=(), limit=None):
    """Least cost of a valid schedule within `budget` bytes (None: none), not staged; `limit`: computes of each op."""
    names = [tensor.name for tensor in graph.tensors]
    bit = {name: 1 << k for k, name in enumerate(names)}
    size = [tensor.size for tensor in graph.tensors]
    rank = {name: k for k, name in enumerate(graph.op_names[op] for op in graph.arrays.order.tolist())}
    ops = sorted(graph.ops, key=lambda op: rank[op.name])
    given = sum(bit[name] for name in graph.inputs)
    wanted = sum(bit[name] for name in {*graph.outputs, *kept})
    writers = {name: [k for k, op in enumerate(ops) if name in op.outputs] for name in names}
    reads = [sum(bit[name] for name in op.inputs) for op in ops]
    shared = [name for name in names if len(writers[name]) > 1]
    whole = {name: sum(1 << k for k in writers[name]) for name in shared}
    most = [1 if not op.recomputable else limit for op in ops]

    def held(mask):
        return sum(s for k, s in enumerate(size) if mask >> k & 1)

    def complete(live, sums):
        """What can be read: without the buffers that lack a contribution."""
        return live & ~sum(bit[name] for name, part in zip(shared, sums, strict=True) if part != whole[name])

    def subsets(mask):
        part = mask
        while True:
            yield part
            if not part:
                return
            part = (part - 1) & mask

    first = (given, (0,) * len(shared), (0,) * len(ops))
    best, heap = {first: 0}, [(0, first)]
    while heap:
        cost, state = heapq.heappop(heap)
        if cost > best[state]:
            continue
        live, sums, runs = state
        if all(runs) and not wanted & ~complete(live, sums):
            return cost
        ready = complete(live, sums)
        for k, op in enumerate(ops):
            if reads[k] & ~ready or (most[k] is not None and runs[k] >= most[k]):
                continue
            if order == "fixed" and not runs[k] and not all(runs[:k]):
                continue
            now = live | sum(bit[name] for name in op.outputs)
            if held(now) + op.workspace > budget:
                continue
            added = [part | 1 << k if k in writers[name] else part for name, part in zip(shared, sums, strict=True)]
            count = 1 if most[k] is None else runs[k] + 1
            after = (*runs[:k], count, *runs[k + 1 :])
            for kept_now in subsets(now & ~given):
                parts = tuple(part if kept_now & bit[name] else 0 for name, part in zip(shared, added, strict=True))
                target = (given | kept_now, parts, after)
                if cost + op.cost < best.get(target, 1 << 62):
                    best[target] = cost + op.cost
                    heapq.heappush(heap, (cost + op.cost, target))
    return None
