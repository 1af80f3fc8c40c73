"""What the formulations of orders have in common: which problems they state, the peak, and orders in and out."""

from __future__ import annotations

from abc import abstractmethod
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from remat.errors import ProblemError
from remat.formulations.base import Formulation, Values
from remat.formulations.ordering.layout import OrderLayout
from remat.formulations.sequence import MemoryScale, op_sequence, standing_buffers
from remat.modeling import Model, Vars
from remat.problem import Objective, Problem
from remat.runtime.arrays import Int
from remat.schedule import OrderRule, Schedule
from remat.scope import Scope

#: Ops up to which the size of a model is found from who precedes whom; beyond, from their number alone.
CLOSURE_OPS = 3000


class OrderFormulation(Formulation):
    """A formulation of the schedules that compute each op once, in any order.

    Asked for the least peak, its model has a variable for the peak, in units of the greatest common divisor of all
    sizes. Asked for the least cost within a budget, it looks for any order that keeps the budget: all cost the same.
    """

    objectives = frozenset(Objective)

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        if problem.order is not OrderRule.FREE:
            raise ProblemError(f"the {self.name} formulation looks for an order; ask for order 'free'", "order-rule")
        scale = MemoryScale.of(problem, standing_buffers(problem)[1])
        if self.asks_peak:  # whose budget, if there is one, is a matter of the answer
            total = problem.graph.arrays.size.sum() + problem.graph.arrays.workspace.max(initial=0)
            scale = MemoryScale(scale.unit, scale.held, max(1, int(total) // scale.unit))
        self.unit, self.held, self.capacity = scale.unit, scale.held, scale.capacity

    @property
    def asks_peak(self) -> bool:
        """Whether the peak is to be minimised."""
        return self.problem.objective is Objective.LEAST_PEAK

    @cached_property
    def layout(self) -> OrderLayout:
        """Who must precede whom, and what is held from when to when."""
        return OrderLayout(self.problem, self.deadline)

    @property
    def num_ops(self) -> int:
        """Number of ops."""
        return len(self.problem.graph.ops)

    @property
    def least(self) -> int:
        """Units that some op, or what is alive at the end, needs in every order."""
        need = int(self.problem.graph.arrays.op_bytes.max(initial=0)) - self.problem.graph.arrays.input_bytes
        return max(need, int(self.layout.size[self.layout.kept].sum())) // self.unit

    def scope(self) -> Scope:
        return Scope(OrderRule.FREE, False, 1)

    def aim(self, model: Model) -> Vars | None:
        """Set the objective; the variable of the peak, in units, where that is asked for."""
        if not self.asks_peak:
            model.minimize([], [], self.problem.graph.base_cost)
            return None
        tau = model.integers("tau", 1, min(self.least, self.capacity), self.capacity)
        model.minimize(tau.index, self.unit, self.held)
        return tau

    def encode(self, schedule: Schedule) -> Values:
        sequence = op_sequence(self.problem, schedule)
        twice = np.flatnonzero(np.bincount(sequence, minlength=self.num_ops) > 1)
        if len(twice):
            op = self.problem.graph.op_names[twice[0]]
            raise ProblemError(
                f"the schedule computes op {op!r} twice, the {self.name} formulation each op once", "computed-twice"
            )
        model = self.build()
        values, position = np.zeros(model.num_vars), np.empty(self.num_ops, dtype=np.int64)
        position[sequence] = np.arange(1, self.num_ops + 1)
        if self.asks_peak:
            peak = self.problem.simulate(self._schedule_of(sequence)).peak
            values[model.objective.index] = (peak - self.held) // self.unit
        self.fill(values, position)
        return values

    @abstractmethod
    def fill(self, values: Values, position: Int) -> None:
        """Set the values of all variables but the peak for positions, from 1, of the ops."""

    def decode(self, values: Values) -> Schedule:
        return self._schedule_of(np.argsort(self.ranks(values), kind="stable"))

    @abstractmethod
    def ranks(self, values: Values) -> NDArray[Any]:
        """Return numbers that ascend in the order of the ops; shape (ops,)."""

    def _schedule_of(self, sequence: Int) -> Schedule:
        """The schedule that computes the ops in that order, frees implied."""
        return Schedule.of_computes(self.problem.graph, sequence, source=self.name)
