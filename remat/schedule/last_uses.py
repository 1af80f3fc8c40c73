"""Last uses of tensors: where a schedule without written frees releases its values."""

from __future__ import annotations

from collections.abc import Sequence

from remat.graphs import ComputeGraph
from remat.runtime.arrays import Bool
from remat.schedule.schedule import StepKind

COMPUTE, OFFLOAD, FETCH = (int(kind) for kind in (StepKind.COMPUTE, StepKind.OFFLOAD, StepKind.FETCH))


def last_uses(graph: ComputeGraph, kinds: list[int], targets: list[int], kept: Bool) -> dict[int, list[int]]:
    """Return the tensors to free after each step if frees are implied: each instance after its last use.

    An instance is in use from its first contribution, or its fetch, to the last read or offload of its value, or to the
    end if it is kept. A later write of the same contribution, or of a value that is not read, is a separate use.
    """
    reads, writes = graph.arrays.op_inputs.shared_lists(), graph.arrays.op_outputs.shared_lists()
    producers = graph.arrays.producers.counts.tolist()
    left = [count if keep else 0 for count, keep in zip(producers, kept.tolist(), strict=True)]
    given: list[set[int]] = [set() for _ in producers]  # ops whose contributions to the value are counted in `left`
    after: dict[int, list[int]] = {}
    for step in range(len(kinds) - 1, -1, -1):
        target, kind = targets[step], kinds[step]
        if target < 0:
            continue
        freed = []
        written: Sequence[int] = ()
        read: Sequence[int] = ()
        if kind == COMPUTE:
            written, read = writes[target], reads[target]
        elif kind == OFFLOAD:
            read = (target,)
        elif kind == FETCH and producers[target]:
            if left[target] == 0:
                freed.append(target)
            left[target] = 0
            given[target].clear()
        for t in written:
            if left[t] == 0:
                freed.append(t)
            elif target not in given[t]:
                given[t].add(target)
                left[t] -= 1
        for t in read:
            if producers[t]:  # graph inputs stay live
                if left[t] == 0:
                    freed.append(t)
                left[t] = producers[t]
                given[t].clear()
        if freed:
            after[step] = freed[::-1]
    return after
