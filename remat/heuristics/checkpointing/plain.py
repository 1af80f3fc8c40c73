"""The two extremes: checkpoint every forward value, or none."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from remat.heuristics.checkpointing.base import Checkpointing
from remat.heuristics.checkpointing.checkpoints import all_forward_ops, kept_ops, retained_with
from remat.problem import Problem
from remat.problem.training_step import TrainingStep
from remat.schedule import Schedule


class CheckpointAll(Checkpointing):
    """Checkpoint every forward value, so that nothing is recomputed: the default of frameworks.

    Checkmate's "checkpoint all (ideal)" (Jain et al., MLSys 2020, table 1). Its published peak is above that of the
    reference order: the published rule holds every checkpoint to the end, 1.06 to 1.24 times as much on the networks of
    the paper (option `dead_retention`).

    Examples
    --------
    >>> from remat.graphs.families import unit_chain
    >>> from remat.heuristics import HeuristicRun
    >>> CheckpointAll().run(Problem(unit_chain(8)), HeuristicRun()).num_computes
    17
    """

    name = "checkpoint-all"

    def candidates(self, problem: Problem) -> Iterator[Schedule]:
        step = TrainingStep.of(problem)
        yield self.retaining(problem, retained_with(step, all_forward_ops(step)))


class CheckpointLast(Checkpointing):
    """Retain only the last value into the next stage, and recompute the other inputs of an op.

    In the published program of Checkmate, not in the paper. Its peak is close to the smallest. Its cost is quadratic on
    chains, (n² + 5 n + 2) / 2 on the unit chain of n forward ops, and higher elsewhere. It needs no training graph.
    Tensors to be kept at the end are retained as well.

    Examples
    --------
    >>> from remat.graphs.families import unit_chain
    >>> from remat.heuristics import HeuristicRun
    >>> CheckpointLast().run(Problem(unit_chain(8)), HeuristicRun()).num_computes
    53
    """

    name = "checkpoint-last"

    def candidates(self, problem: Problem) -> Iterator[Schedule]:
        S = np.eye(len(problem.graph.ops), k=-1, dtype=np.bool_)
        for op in kept_ops(problem):
            S[op + 1 :, op] = True
        yield self.retaining(problem, S)
