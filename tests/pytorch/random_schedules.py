"""Schedules that no method would make: values are dropped at random and computed again when they are needed."""

import random

from remat.graphs import ComputeGraph
from remat.schedule import Rules, Schedule, Verdict, validate


def random_schedule(graph: ComputeGraph, seed: int, *, drop: float = 0.08, most: int = 12) -> Schedule:
    """The reference order, with recomputations of what was dropped before; certified.

    Parameters
    ----------
    drop : float
        Probability that a live value is dropped after an op of the reference order.
    most : int
        No op that was computed so often is dropped again.
    """
    rng = random.Random(seed)
    writer = {tensor: op for op in graph.ops for tensor in op.outputs}
    computes: list[str] = []
    counts = dict.fromkeys(graph.op_names, 0)
    live: set[str] = set(graph.inputs)

    def compute(name: str) -> None:
        """With all that it needs, deepest first."""
        stack = [name]
        while stack:
            op = graph.ops[graph.op_index[stack[-1]]]
            missing = [writer[tensor].name for tensor in op.inputs if tensor not in live]
            if missing:
                stack.append(missing[0])
                continue
            stack.pop()
            if op.name not in computes or not live.issuperset(op.outputs):
                computes.append(op.name)
                counts[op.name] += 1
                live.update(op.outputs)

    assert graph.order is not None
    for name in graph.order:
        compute(name)
        for tensor in sorted(live):
            op = writer.get(tensor)
            if op is not None and op.recomputable and counts[op.name] < most and rng.random() < drop:
                live.discard(tensor)
    for tensor in graph.outputs:
        if tensor not in live:
            compute(writer[tensor].name)
    schedule = Schedule.from_steps([("compute", name) for name in computes], source=f"random, seed {seed}")
    assert validate(graph, schedule, Rules(order="fixed")).verdict is Verdict.VALID
    return schedule
