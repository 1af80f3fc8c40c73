"""The interface of a formulation: a way to state a problem as a model."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from remat.deadline import Deadline
from remat.errors import ProblemError
from remat.graphs.arrays import GraphArrays
from remat.modeling import Model
from remat.modeling.size import ModelSize
from remat.problem import Objective, Problem
from remat.runtime.arrays import Bool, Float
from remat.schedule import Schedule
from remat.scope import Scope

Values = Float


@dataclass(frozen=True)
class Preliminary:
    """A model that is solved first, for a feasible start; its first variables are those of the main model.

    It must be a relaxation of the budget alone: that its optimum exceeds `goal` proves that no schedule in the scope
    of the formulation keeps the budget.

    Attributes
    ----------
    model : Model
    goal : float
        Its solution starts the main model as soon as its objective is at most this.
    extend : callable
        From values of the main model that stand for a schedule to a solution of this one, as lean as that schedule;
        one that holds more than the reference order is replaced by it.
    """

    model: Model
    goal: float
    extend: Callable[[Values], Values]


@dataclass(frozen=True)
class Part:
    """A part of a schedule that is optimised anew while the rest stays as it is.

    Attributes
    ----------
    ops : bool array, shape (ops,)
        Those whose computes may come, go and move, and with them how long their inputs and outputs are held.
    first, last : int
        Stages, from 0, in which they may: stage k lasts until the k-th op is computed for the first time.
    """

    ops: Bool
    first: int
    last: int

    def touched(self, arrays: GraphArrays) -> Bool:
        """Mark the inputs and outputs of the ops; shape (tensors,)."""
        touched = np.zeros(len(arrays.size), dtype=np.bool_)
        for table in (arrays.op_inputs, arrays.op_outputs):
            touched[table.indices[self.ops[table.rows]]] = True
        return touched


@dataclass(frozen=True)
class Leeway:
    """What the variables of a model may do while only a part of a schedule is optimised anew.

    Attributes
    ----------
    values : float64 array, shape (variables of the model,)
        They stand for the schedule.
    lower, upper : float64 arrays of the same shape
        Bounds, equal where a variable stays as it is; the values are within.
    """

    values: Values
    lower: Float
    upper: Float


class Formulation(ABC):
    """A way to state one problem as a model. Knows nothing of solvers.

    A subclass's docstring is the formulation: sets, variables, numbered constraints in the paper's notation.

    Raises
    ------
    ProblemError
        On construction, when the problem cannot be stated in this way; the message names the op or tensor.
    """

    name: ClassVar[str]
    options_type: ClassVar[type | None] = None
    """The dataclass of its options, the second argument of its constructor, which calls ``super().__init__(problem)``;
    None where it has none."""
    objectives: ClassVar[frozenset[Objective]] = frozenset({Objective.LEAST_COST})
    """What it can be asked for; :meth:`build` states the one of its problem."""

    deadline: Deadline = Deadline()
    """Set by who asks for a model. `build` looks at it between steps of less than a second: ``self.deadline.check()``
    raises :class:`~remat.deadline.OverdueError`. A formulation that never looks is merely late."""

    counts_in_place: ClassVar[bool] = False
    """Whether it states outputs that are written in place of inputs; where it does not, it is given problems without,
    and what it proves of these counts for no others."""

    def __init__(self, problem: Problem) -> None:
        if problem.graph.in_place and not self.counts_in_place:
            raise ProblemError(
                f"formulation {self.name!r} does not state outputs in place of inputs; state problem.plain", "in-place"
            )
        self.problem = problem

    @abstractmethod
    def scope(self) -> Scope:
        """What the optimum of the model is optimal among."""

    most_cost: int | None = None
    """Schedules of a higher cost need not be stated; most formulations state them all the same. None: no limit."""

    def leave_out_above(self, cost: int | None) -> None:
        """A schedule of this cost is known, or none: costlier ones need not be stated. Called before anything else."""
        if cost is not None and (self.most_cost is None or cost < self.most_cost):
            self.most_cost = cost

    def estimate(self) -> ModelSize | None:
        """How large the model will be, at the cost of a small part of building it; None: unknown.

        Who asks for the model refuses what does not fit into memory or the time left.
        """
        return None

    def linear_estimate(self) -> ModelSize | None:
        """Return the size of the linear form, where :meth:`build` offers one; else that of the model."""
        return self.estimate()

    @abstractmethod
    def build(self) -> Model:
        """The model; its objective is the cost of the schedule, or its peak in bytes, as the problem asks."""

    @abstractmethod
    def encode(self, schedule: Schedule) -> Values:
        """Values of the model's variables that stand for `schedule`; the budget is not looked at.

        Raises
        ------
        ProblemError
            If this formulation cannot express the schedule; the message names the step.
        """

    @abstractmethod
    def decode(self, values: Values) -> Schedule:
        """The schedule that `values` stand for, frees implied.

        ``decode(encode(s))`` has the cost of ``s``, less that of recomputations whose results nobody reads.
        """

    def leeway(self, schedule: Schedule, part: Part) -> Leeway:
        """The model's variables around `schedule` while only `part` of it may change; without an override, all may.

        Raises
        ------
        ProblemError
            If this formulation cannot express the schedule.
        """
        del part
        model = self.build()
        return Leeway(self.encode(schedule), model.lower, model.upper)

    def preliminary(self) -> Preliminary | None:
        """A model to find a feasible start with, if the formulation comes with one."""
        return None
