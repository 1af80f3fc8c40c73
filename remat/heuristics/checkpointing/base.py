"""Base of checkpointing heuristics: certify every candidate, and keep the cheapest that fits."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

from remat.errors import FormatError, ProblemError
from remat.heuristics.base import Best, Heuristic, HeuristicRun
from remat.heuristics.retention import recomputation_for, schedule_for
from remat.problem import Problem
from remat.runtime.arrays import Bool
from remat.runtime.checked_options import Options, Positive
from remat.runtime.deadline import Deadline, OverdueError
from remat.runtime.resources import available_memory
from remat.schedule import Schedule
from remat.schedule.formats.checkmate import schedule_from_matrices

#: Seconds per compute for validating a schedule, which may have millions of computes.
SECONDS_PER_COMPUTE = 3e-6
#: Bytes per pair of ops, for tables of values retained and computed in each stage.
TABLES = 8
#: Minimum seconds for the first schedule, even after the deadline.
FIRST = 0.25


@dataclass(frozen=True)
class CheckpointingOptions(Options):
    """Options of checkpointing heuristics."""

    dead_retention: bool = False
    """Write frees that hold every retained value as long as the published rules do, beyond its last read. Only for
    comparison with published peaks, which are up to 1.6 times those of frees at last use. For graphs with one output
    per op and no limits of computes."""


@dataclass(frozen=True)
class SweepOptions(CheckpointingOptions):
    """Options of greedy checkpointing."""

    sweep: Positive = 50
    """Number of segment sizes, evenly spaced from the largest value to all forward values together."""


class Checkpointing(Heuristic):
    """Family of schedules, of which the cheapest within the budget is taken, or else the one of least peak.

    Ops that must not be recomputed, and buffers that several ops accumulate into, are held until their last use.
    """

    options_type: ClassVar[type | None] = CheckpointingOptions
    table_bytes: ClassVar[int] = TABLES
    """Bytes of memory per pair of ops."""
    deadline = Deadline()
    """Deadline of the current candidate."""
    fitted = False
    """True when the last candidate was within the budget; the next candidate may depend on it."""

    @abstractmethod
    def candidates(self, problem: Problem) -> Iterator[Schedule]:
        """Yield the schedules of the family.

        Raise ProblemError if the method does not apply to the graph.
        """

    def run(self, problem: Problem, run: HeuristicRun) -> Schedule | None:
        num_ops, available = len(problem.graph.ops), available_memory(run.options.memory_bytes)
        if (needed := self.table_bytes * num_ops**2) > available:
            raise ProblemError(
                f"{self.name} needs about {needed / 2**30:.1f} GiB for {num_ops:,} ops, but only "
                f"{available / 2**30:.1f} GiB are available",
                "memory",
            )
        best = Best(problem, run)
        # the first schedule of a small graph takes no time, so make it even after the deadline
        self.deadline = Deadline.after(max(FIRST, run.deadline.remaining))
        candidates = self.candidates(problem)
        while True:
            try:
                schedule = next(candidates, None)
            except OverdueError:
                break
            if schedule is None or self.deadline.remaining < SECONDS_PER_COMPUTE * schedule.num_computes:
                break
            self.deadline = run.deadline
            self.fitted = best.offer(schedule).accepted
            if best.enough or run.deadline.expired:
                break
        return best.schedule

    def retaining(self, problem: Problem, S: Bool) -> Schedule:
        """Return the schedule that retains `S` and computes as little as that allows."""
        if not self.options.dead_retention:
            return schedule_for(problem, S, self.name, self.deadline)
        if any(limit is not None for limit in problem.compute_limits):
            raise ProblemError(
                f"{self.name} with dead retention does not support compute limits of ops", "dead-retention"
            )
        try:
            schedule = schedule_from_matrices(problem.graph, recomputation_for(problem, S, self.deadline), S)
        except FormatError as error:
            raise ProblemError(f"{self.name} with dead retention: {error}", "dead-retention") from None
        return replace(schedule, source=self.name)
