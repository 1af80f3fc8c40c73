"""Base class of formulations, which state a problem as a model."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from remat.errors import ProblemError
from remat.graphs.arrays import GraphArrays
from remat.modeling import Model
from remat.modeling.naming import Labels
from remat.modeling.size import ModelSize
from remat.problem import Objective, Problem
from remat.problem.scope import Scope
from remat.runtime.arrays import Bool, Float, Int
from remat.runtime.deadline import Deadline
from remat.schedule import Schedule

Values = Float


@dataclass(frozen=True)
class Preliminary:
    """Model that is solved first, for a feasible start; its first variables are those of the main model.

    It may relax only the budget, so that an optimum above `goal` proves that no schedule in the scope of the
    formulation keeps the budget.
    """

    model: Model
    goal: float
    """Objective at or below which a solution is a start of the main model."""
    extend: Callable[[Values], Values]
    """Maps values of the main model that represent a schedule to a solution of this model with the same peak. If that
    peak is above that of the reference order, the reference order is used instead."""


@dataclass(frozen=True)
class Part:
    """Part of a schedule that is optimised again while the rest stays fixed."""

    ops: Bool
    """Mask of ops whose computes may be added, removed and moved, and whose inputs and outputs may be retained."""
    first: int
    last: int
    """Last stage, from 0, in which this may happen: stage k lasts until the first compute of the k-th op."""

    def touched(self, arrays: GraphArrays) -> Bool:
        """Mark the inputs and outputs of the ops; shape (tensors,)."""
        touched = np.zeros(len(arrays.size), dtype=np.bool_)
        for table in (arrays.op_inputs, arrays.op_outputs):
            touched[table.indices[self.ops[table.rows]]] = True
        return touched


@dataclass(frozen=True)
class VariableBounds:
    """Values and bounds of a model's variables while only a part of a schedule is optimised again.

    Attributes
    ----------
    values : float64 array, shape (variables of the model,)
        Values that represent the schedule.
    lower, upper : float64 arrays of the same shape
        Bounds, equal where a variable is fixed; the values are within.
    """

    values: Values
    lower: Float
    upper: Float


class Formulation(ABC):
    """Way to state one problem as a model, independent of solvers.

    A subclass's docstring is the formulation: sets, variables, numbered constraints in the paper's notation.

    Raises
    ------
    ProblemError
        On construction, if the formulation cannot state the problem; the message names the op or tensor.
    """

    name: ClassVar[str]
    options_type: ClassVar[type | None] = None
    """Dataclass of the options, the second argument of the constructor, which calls ``super().__init__(problem)``;
    None: no options."""
    objectives: ClassVar[frozenset[Objective]] = frozenset({Objective.LEAST_COST})
    """Supported objectives; :meth:`build` states that of the problem."""

    deadline: Deadline = Deadline()
    """Set by the caller before :meth:`build`, which checks it between steps of less than a second:
    ``self.deadline.check()`` raises :class:`~remat.runtime.deadline.OverdueError`. A formulation
    without checks may overrun the deadline."""

    counts_in_place: ClassVar[bool] = False
    """True if the model covers outputs that are written in place of inputs. Otherwise callers pass problems without
    such outputs, and its proofs hold for those problems only."""

    moves: ClassVar[bool] = False
    """True if the model covers transfers to a host; it then also states the least time. Otherwise callers pass problems
    with one memory, and its proofs hold for those only."""

    relaxes: ClassVar[bool] = False
    """True if the optimum is only a bound: a decoded schedule may cost more than its values state."""

    def __init__(self, problem: Problem) -> None:
        if problem.graph.in_place and not self.counts_in_place:
            raise ProblemError(
                f"formulation {self.name!r} does not state outputs in place of inputs; state problem.plain", "in-place"
            )
        if problem.machine is not None and not self.moves:
            raise ProblemError(
                f"formulation {self.name!r} does not state transfers to a host; state problem.one_memory", "transfers"
            )
        if problem.machine is None and self.moves:
            raise ProblemError(
                f"formulation {self.name!r} states the time on a machine; give the problem one", "no-machine"
            )
        self.problem = problem

    @property
    def objective(self) -> Objective:
        """Objective that :meth:`build` states: that of the problem if supported, otherwise the cost."""
        return self.problem.objective if self.problem.objective in self.objectives else Objective.LEAST_COST

    @abstractmethod
    def scope(self) -> Scope:
        """Return the scope in which the optimum of the model is optimal."""

    most_cost: int | None = None
    """Cost, or time with a machine, above which schedules may be left out of the model; most formulations ignore it.
    None: no limit."""

    def leave_out_above(self, cost: int | None) -> None:
        """Lower :attr:`most_cost` to the cost of a known schedule, if any; call it before any other method."""
        if cost is not None and (self.most_cost is None or cost < self.most_cost):
            self.most_cost = cost

    def estimate(self) -> ModelSize | None:
        """Estimate the size of the model in a small part of the time to build it; None: unknown.

        Callers refuse models that do not fit into memory or the remaining time.
        """
        return None

    def linear_estimate(self) -> ModelSize | None:
        """Estimate the size of the linear form, if :meth:`build` offers one, otherwise of the model."""
        return self.estimate()

    @abstractmethod
    def build(self) -> Model:
        """Build the model; its objective is the problem's: the cost of the schedule, or its peak in bytes."""

    @abstractmethod
    def encode(self, schedule: Schedule) -> Values:
        """Return values of the model's variables that represent `schedule`, regardless of the budget.

        Raises
        ------
        ProblemError
            If this formulation cannot express the schedule; the message names the step.
        """

    @abstractmethod
    def decode(self, values: Values) -> Schedule:
        """Return the schedule that `values` represent, with implied frees.

        ``decode(encode(s))`` has the cost of ``s``, less that of recomputations whose results are never read.
        """

    def variable_bounds(self, schedule: Schedule, part: Part) -> VariableBounds:
        """Return values and bounds of the variables if only `part` of `schedule` may change (base class: everything).

        Raises
        ------
        ProblemError
            If this formulation cannot express the schedule.
        """
        del part
        model = self.build()
        return VariableBounds(self.encode(schedule), model.lower, model.upper)

    def labels(self) -> Labels:
        """Return what the variables of the model stand for, by block, to name them in files for other solvers.

        Each axis (stage, op, tensor, ...) has an entry per variable of the block; other blocks are numbered.
        """
        return {}

    def ops_named(self, ops: Int) -> list[str]:
        """Return the names of ops by number."""
        names = self.problem.graph.op_names
        return [names[op] for op in ops.tolist()]

    def tensors_named(self, tensors: Int) -> list[str]:
        """Return the names of tensors by number."""
        names = self.problem.graph.tensor_names
        return [names[tensor] for tensor in tensors.tolist()]

    def preliminary(self) -> Preliminary | None:
        """Return a model that finds a feasible start, if the formulation has one."""
        return None
