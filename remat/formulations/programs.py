"""Programs: steps of computes and transfers by number, without what is of no use."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

import numpy as np

from remat.errors import ProblemError
from remat.problem import Problem
from remat.schedule import Schedule
from remat.schedule.schedule import StepKind

COMPUTE, FREE, OFFLOAD, FETCH, DISCARD = map(int, StepKind)


class Program(NamedTuple):
    """Kinds of steps, and the numbers of their ops or tensors."""

    kinds: list[int]
    targets: list[int]

    @classmethod
    def of(cls, steps: list[tuple[int, int]]) -> Program:
        """Return the program of pairs of a kind and a target."""
        return cls([kind for kind, _ in steps], [target for _, target in steps])

    def schedule(self, problem: Problem, source: str) -> Schedule:
        """Return the program as a schedule."""
        kinds, targets = np.array(self.kinds, dtype=np.int8), np.array(self.targets, dtype=np.int64)
        return Schedule.for_graph(problem.graph, kinds, targets, source=source)

    def useful(self, problem: Problem) -> Program:
        """Return the program without recomputations and transfers whose results are never read."""
        return self._wanted(problem)._possible(problem)

    def _wanted(self, problem: Problem) -> Program:
        """Return the program without such steps, found from its end."""
        arrays = problem.graph.arrays
        inputs, outputs = arrays.op_inputs.shared_lists(), arrays.op_outputs.shared_lists()
        shared = (arrays.producers.counts > 1).tolist()
        wanted, copied = problem.kept.tolist(), [False] * len(shared)
        computes_left = Counter(target for kind, target in zip(*self, strict=True) if kind == COMPUTE)
        steps: list[tuple[int, int]] = []
        for kind, target in zip(self.kinds[::-1], self.targets[::-1], strict=True):
            if kind == COMPUTE:
                computes_left[target] -= 1
                if computes_left[target] and not any(wanted[t] for t in outputs[target]):
                    continue
                for t in outputs[target]:
                    wanted[t] = wanted[t] and shared[t]
                for t in inputs[target]:
                    wanted[t] = True
            elif kind == FETCH:
                if not wanted[target]:
                    continue
                wanted[target], copied[target] = False, True
            elif kind == OFFLOAD:
                if not copied[target]:
                    continue
                wanted[target], copied[target] = True, False
            steps.append((kind, target))
        return Program.of(steps[::-1])

    def _possible(self, problem: Problem) -> Program:
        """Return the program without frees and discards of what is not there."""
        outputs = problem.graph.arrays.op_outputs.shared_lists()
        live: set[int] = set()
        copied: set[int] = set()
        steps: list[tuple[int, int]] = []
        for kind, target in zip(*self, strict=True):
            if kind in {FREE, DISCARD}:
                there = live if kind == FREE else copied
                if target not in there:
                    continue
                there.discard(target)
            elif kind == COMPUTE:
                live.update(outputs[target])
            else:
                (copied if kind == OFFLOAD else live).add(target)
            steps.append((kind, target))
        return Program.of(steps)


def program_of(problem: Problem, schedule: Schedule) -> Program:
    """Return the useful steps of a schedule, with the numbers of ops and tensors of the graph.

    Raise ProblemError if it names others.
    """
    run = problem.simulate(schedule)
    if run.violations:
        raise ProblemError(f"the schedule is invalid: {run.violations[0]}")
    targets = np.where(run.is_compute, run.ops, run.moved)
    kinds = run.kinds
    if not schedule.has_frees:
        after = run.free_step + 1
        kinds, targets = np.insert(run.kinds, after, FREE), np.insert(targets, after, run.free_tensor)
    return Program(kinds.tolist(), targets.tolist()).useful(problem)
