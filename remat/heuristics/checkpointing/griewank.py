"""Griewank and Walther's REVOLVE as a heuristic for chains."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from remat.heuristics.checkpointing.base import Checkpointing
from remat.heuristics.checkpointing.revolve import reversal
from remat.problem import Problem
from remat.problem.op_sequence import useful_schedule
from remat.problem.training_step import TrainingStep
from remat.schedule import Schedule


class GriewankWalther(Checkpointing):
    """REVOLVE: the least forward computes for a number of stored states, on a chain of equal steps.

    Griewank and Walther, ACM TOMS 26 (2000), there for time steps; Checkmate (MLSys 2020, table 1) calls it "Griewank &
    Walther log n". Its schedules follow from binomial coefficients (:mod:`.revolve`); the published program of
    Checkmate downloads them. All numbers of stored states are tried, the cheapest schedules first.

    On the unit chain of n forward ops with budget B ≥ 3 it is optimal, n + 1 + t(n + 1, B - 2), where t counts the
    initial state as stored. On other chains it is only a heuristic: sizes and costs count as equal, and the published
    "states" are tensors of different sizes. Backward ops run with the forward op that they belong to
    (:attr:`TrainingStep.mirror`), the loss with the last one.

    Examples
    --------
    >>> from remat.graphs.families import unit_chain
    >>> from remat.heuristics import HeuristicRun
    >>> GriewankWalther().run(Problem(unit_chain(8), 4), HeuristicRun()).num_computes
    26
    """

    name = "griewank-walther"
    options_type = None

    def candidates(self, problem: Problem) -> Iterator[Schedule]:
        step = TrainingStep.of(problem)
        step.require_chain(self.name)
        for slots in range(step.num_forward, 0, -1):
            yield _reversed_with(step, slots, self.name)


def _reversed_with(step: TrainingStep, slots: int, source: str) -> Schedule:
    """Return the schedule with `slots` stored states, where state i + 1 is the output of forward op i.

    Computes beyond an op's limit are omitted: the value is then held from the previous compute.
    """
    turned: list[list[int]] = [[] for _ in range(step.num_forward + 1)]
    for backward, forward in enumerate(step.mirror.tolist(), step.first_backward):
        turned[forward + 1].append(backward)
    turned[-1][:0] = range(step.num_forward, step.first_backward)
    left = [len(turned) if limit is None else limit for limit in step.problem.compute_limits]
    order = step.problem.graph.arrays.order.tolist()
    sequence: list[int] = []
    for what, state in reversal(len(turned), slots):
        for position in [state] if what == "advance" else turned[state]:
            op = order[position]
            if left[op]:
                left[op] -= 1
                sequence.append(op)
    return useful_schedule(step.problem, np.array(sequence, dtype=np.int64), source)
