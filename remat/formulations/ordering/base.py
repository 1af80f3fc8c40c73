"""Base of the formulations of orders: supported problems, the peak variable, encoding and decoding of orders."""

from __future__ import annotations

from abc import abstractmethod
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from remat.errors import ProblemError
from remat.formulations.base import Formulation, Values
from remat.formulations.ordering.layout import OrderLayout
from remat.modeling import Model, Vars
from remat.problem import Objective, Problem
from remat.problem.op_sequence import MemoryScale, op_sequence, standing_buffers
from remat.problem.scope import Scope
from remat.runtime.arrays import Int
from remat.schedule import OrderRule, Schedule

#: Largest number of ops for which a model's size is estimated from the precedence relation; above, from counts only.
CLOSURE_OPS = 3000


class OrderFormulation(Formulation):
    """Formulation of the schedules that compute each op once, in any order.

    For the least peak, the model has a variable for the peak, in units of the greatest common divisor of all sizes.
    For the least cost within a budget, any order that keeps the budget is optimal, since all orders cost the same.
    """

    objectives = frozenset({Objective.LEAST_COST, Objective.LEAST_PEAK})

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        if problem.order is not OrderRule.FREE:
            raise ProblemError(f"the {self.name} formulation searches for an order; ask for order 'free'", "order-rule")
        scale = MemoryScale.of(problem, standing_buffers(problem)[1])
        if self.objective.is_memory:  # a budget, if any, is compared with the result
            total = problem.graph.arrays.size.sum() + problem.graph.arrays.workspace.max(initial=0)
            scale = MemoryScale(scale.unit, scale.held, max(1, int(total) // scale.unit))
        self.unit, self.held, self.capacity = scale.unit, scale.held, scale.capacity

    @cached_property
    def layout(self) -> OrderLayout:
        """Precedence relation of the ops, and the tensors held between them."""
        return OrderLayout(self.problem, self.deadline)

    @property
    def num_ops(self) -> int:
        """Number of ops."""
        return len(self.problem.graph.ops)

    @property
    def least(self) -> int:
        """Units that every order needs, for a single op or at the end."""
        need = int(self.problem.graph.arrays.op_bytes.max(initial=0)) - self.problem.graph.arrays.input_bytes
        return max(need, int(self.layout.size[self.layout.kept].sum())) // self.unit

    def scope(self) -> Scope:
        return Scope(OrderRule.FREE, False, 1)

    def aim(self, model: Model) -> Vars | None:
        """Set the objective; return the variable of the peak, in units, if that is the objective."""
        if not self.objective.is_memory:
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
        if self.objective.is_memory:
            peak = self.problem.simulate(self._schedule_of(sequence)).peak
            values[model.objective.index] = (peak - self.held) // self.unit
        self.fill(values, position)
        return values

    @abstractmethod
    def fill(self, values: Values, position: Int) -> None:
        """Set the values of all variables except the peak from the ops' positions, which count from 1."""

    def decode(self, values: Values) -> Schedule:
        return self._schedule_of(np.argsort(self.ranks(values), kind="stable"))

    @abstractmethod
    def ranks(self, values: Values) -> NDArray[Any]:
        """Return numbers that ascend in the order of the ops; shape (ops,)."""

    def _schedule_of(self, sequence: Int) -> Schedule:
        """Return the schedule that computes the ops in that order, with implied frees."""
        return Schedule.of_computes(self.problem.graph, sequence, source=self.name)
