"""What tests of execution share: schedules that no method would make, and what is held at each of their steps."""

from remat.graphs import ComputeGraph
from remat.schedule import Schedule, Verdict, validate, with_frees
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
