"""Base of heuristics that run the ops in one order and insert recomputations where memory is short."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

import numpy as np

from remat.heuristics.base import Heuristic, HeuristicRun
from remat.problem import Problem
from remat.problem.op_sequence import order_of, useful_schedule
from remat.runtime.deadline import Deadline, OverdueError
from remat.schedule import OrderRule, Schedule


class OnlineHeuristic(Heuristic):
    """Heuristic on the reference order, or on that of the start where the order is free."""

    def run(self, problem: Problem, run: HeuristicRun) -> Schedule | None:
        order = problem.graph.arrays.order
        if run.start is not None and problem.order is OrderRule.FREE:
            order = order_of(problem, run.start)
        try:
            sequence = self.sequence(problem, order.tolist(), run.deadline)
        except OverdueError:
            return None
        return None if sequence is None else useful_schedule(problem, np.array(sequence, dtype=np.int64), self.name)

    @abstractmethod
    def sequence(self, problem: Problem, order: list[int], deadline: Deadline) -> Sequence[int] | None:
        """Return the computes for ops in this order; None if the method gives up.

        Raises
        ------
        OverdueError
            At the deadline.
        """
