"""What tests of execution share: schedules that no method would make, and what is held at each of their steps."""

import random

from remat.graphs import ComputeGraph
from remat.schedule import Rules, Schedule, Verdict, validate, with_frees
from remat.torch import Executor, OpRun
from remat.torch.memory import StorageTracker


class Held:
    """Called after each run of an op: the most that was held while it ran, and what was held when it had run."""

    def __init__(self, executor: Executor, tracker: StorageTracker) -> None:
        self.executor, self.tracker = executor, tracker
        self.runs = 0
        self.wrong: list[tuple[OpRun, int, int, int]] = []
        self._samples = 0

    def __call__(self, run: OpRun) -> None:
        """Both must be what the schedule says."""
        self.runs += 1
        during = [sample.live for sample in self.tracker.timeline[self._samples :]]
        self._samples = len(self.tracker.timeline)
        most, after, predicted = max(during), self.tracker.live, int(self.executor.timeline[run.step])
        if not most == after == predicted:
            self.wrong.append((run, most, after, predicted))


def pinned(graph: ComputeGraph, schedule: Schedule) -> Schedule:
    """The same, but graph outputs are never freed: they are live when their ops run again for other outputs."""
    outputs = set(graph.outputs)
    steps = [step for step in with_frees(graph, schedule).steps() if step[0] == "compute" or step[1] not in outputs]
    kept = Schedule.from_steps(steps, source=f"{schedule.source}, outputs pinned")
    assert validate(graph, kept).verdict is Verdict.VALID
    return kept


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
            if not counts[op.name] or not live.issuperset(op.outputs):
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
