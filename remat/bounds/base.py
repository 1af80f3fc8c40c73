"""What a bound is: a number, what it is a bound of, and for which schedules."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np

from remat.backends.highs import Highs
from remat.modeling import Linear, Model
from remat.modeling.size import ModelSize
from remat.problem import Problem
from remat.runtime.arrays import Float
from remat.runtime.resources import available_memory
from remat.schedule.certificate import overhead_percent
from remat.scope import Scope


class Measure(StrEnum):
    """What a bound is a bound of."""

    COST = "cost"
    """In the cost unit of the graph."""
    PEAK = "peak"
    """In bytes."""


@dataclass(frozen=True)
class Bound:
    """A lower bound on the cost, or on the peak, of every schedule in a scope, for one problem.

    Attributes
    ----------
    value : int or None
        No schedule in :attr:`scope` costs less (has a lower peak); None if nothing is known, or there is no schedule
        at all.
    kind : str
        Which bound it is, in words.
    scope : Scope
    base_cost : int
        Cost of computing each op once, which is a bound by itself.
    infeasible : bool
        Whether it is proved that no schedule in the scope keeps the budget.
    relaxed : float or None
        The bound of the linear relaxation, before it was rounded up to a whole cost.
    seconds : float
        All in all.
    duals : mapping of str to float64 array
        Dual values of each record's rows, where the bound has such.
    versions : mapping of str to str
    measure : Measure
    cause : str
        Name of the op at whose step the bound is found; empty where it is no single one.
    note : str
        Why it was not looked for, or not to the end, where more memory would have been needed; empty otherwise.
    """

    value: int | None
    kind: str
    scope: Scope
    base_cost: int
    infeasible: bool = False
    relaxed: float | None = None
    seconds: float = 0.0
    duals: Mapping[str, Float] = field(default_factory=dict, repr=False)
    versions: Mapping[str, str] = field(default_factory=dict)
    measure: Measure = Measure.COST
    cause: str = ""
    note: str = ""

    @property
    def overhead(self) -> float | None:
        """The bound as an overhead in %; None if there is no bound on cost, or all costs are 0."""
        if self.measure is not Measure.COST or self.value is None:
            return None
        return overhead_percent(self.value, self.base_cost)

    def __str__(self) -> str:
        if self.measure is Measure.PEAK and self.value is not None:
            what = f"peak ≥ {self.value:,} bytes" + (", more than the budget," if self.infeasible else "")
        elif self.infeasible:
            what = "no schedule exists"
        elif self.value is None:
            what = "nothing is known"
        else:
            share = "" if self.overhead is None else f" (overhead {self.overhead:.4g} %)"
            what = f"cost ≥ {self.value:,}{share}"
        return f"{what} for {self.scope}; by {self.kind}" + (f" ({self.note})" if self.note else "")


def bound_on_peak(problem: Problem, value: int | None, kind: str, scope: Scope, *, cause: str, began: float) -> Bound:
    """Return a bound on the peak, found since `began`; it is infeasible where it exceeds the budget."""
    budget = problem.budget_bytes
    return Bound(
        value,
        kind,
        scope,
        problem.graph.base_cost,
        infeasible=budget is not None and value is not None and value > budget,
        seconds=time.monotonic() - began,
        measure=Measure.PEAK,
        cause=cause,
    )


def whole_units(bound: float) -> int:
    """A solver's bound on a whole number, rounded up after the solver's tolerance is taken off.

    Examples
    --------
    >>> whole_units(2.4), whole_units(3.0000004)
    (3, 3)
    """
    return math.ceil(bound - 1e-6 - 1e-9 * abs(bound))


def cost_unit(problem: Problem) -> int:
    """Return a number of which every cost of recomputation is a multiple."""
    return max(1, int(np.gcd.reduce(problem.graph.arrays.cost)))


def lacks_memory(model: Model, memory_limit: int | None) -> str:
    """Why a linear programme is not handed to HiGHS: what it needs, and what there is; empty where it may fit."""
    entries = sum(len(record.value) for record in model.records if isinstance(record, Linear))
    size = ModelSize(entries)
    why = size.lacks_memory(available_memory(memory_limit), Highs.nonzero_bytes)
    return f"its model has {size} and {why}" if why else ""
