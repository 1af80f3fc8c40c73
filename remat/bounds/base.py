"""Bounds: a value, its measure, and the scope of schedules it holds for."""

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
from remat.problem.scope import Scope
from remat.runtime.arrays import Float
from remat.runtime.resources import available_memory
from remat.schedule.certificate import overhead_percent


class Measure(StrEnum):
    """Quantity that a bound limits."""

    COST = "cost"
    """In the cost unit of the graph."""
    TIME = "time"
    """On a machine with a host, in the cost unit of the graph."""
    ENERGY = "energy"
    """On such a machine, in units of the energy of a cost unit of computing."""
    PEAK = "peak"
    """In bytes."""


@dataclass(frozen=True)
class Bound:
    """Lower bound on the cost, the time or the peak of every schedule in a scope, for one problem.

    Attributes
    ----------
    value : int or None
        No schedule in :attr:`scope` costs less (takes less time, has a lower peak); None if nothing is known, or no
        schedule exists.
    kind : str
        Name of the bound, for example "the cut bound".
    scope : Scope
    base_cost : int
        Cost of computing each op once, which is itself a bound.
    infeasible : bool
        True when it is proved that no schedule in the scope keeps the budget.
    relaxed : float or None
        Bound of the linear relaxation, before rounding up to a whole cost.
    seconds : float
        Total time.
    duals : mapping of str to float64 array
        Dual values of each record's rows, where the bound has any.
    versions : mapping of str to str
        Versions of the solvers.
    measure : Measure
    cause : str
        Name of the op at whose step the bound is attained; empty if there is no single one.
    note : str
        Reason why the search was skipped or stopped early, for example lack of memory; empty otherwise.
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
        """Overhead in % that corresponds to the bound; None without one on cost or time, or if all costs are 0."""
        if self.measure is Measure.PEAK or self.value is None:
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
            what = f"{self.measure} ≥ {self.value:,}{share}"
        return f"{what} for {self.scope}; by {self.kind}" + (f" ({self.note})" if self.note else "")


def bound_on_peak(problem: Problem, value: int | None, kind: str, scope: Scope, *, cause: str, began: float) -> Bound:
    """Return a bound on the peak; it is infeasible if it exceeds the budget.

    `began` is the time by ``time.monotonic()`` at which the computation started.
    """
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
    """Subtract the solver's tolerance from its bound on a whole number, and round up.

    Examples
    --------
    >>> whole_units(2.4), whole_units(3.0000004)
    (3, 3)
    """
    return math.ceil(without_tolerance(bound))


def without_tolerance(bound: float) -> float:
    """Subtract the solver's tolerance from its bound."""
    return bound - 1e-6 - 1e-9 * abs(bound)


def cost_unit(problem: Problem) -> int:
    """Return the largest number that divides every cost of recomputation."""
    return max(1, int(np.gcd.reduce(problem.graph.arrays.cost)))


def lacks_memory(model: Model, memory_limit: int | None) -> str:
    """Return why a linear programme exceeds the memory available to HiGHS; empty if it may fit."""
    entries = sum(len(record.value) for record in model.records if isinstance(record, Linear))
    size = ModelSize(entries)
    why = size.lacks_memory(available_memory(memory_limit), Highs.nonzero_bytes)
    return f"its model has {size} and {why}" if why else ""
