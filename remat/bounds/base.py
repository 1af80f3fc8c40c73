"""What a bound is: a number, what it is a bound of, and for which schedules."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from remat.formulations.base import Scope


@dataclass(frozen=True)
class Bound:
    """A lower bound on the cost of every schedule in a scope, for one problem.

    Attributes
    ----------
    value : int or None
        No schedule in :attr:`scope` costs less; None if nothing is known, or there is no schedule at all.
    kind : str
        Which bound it is, in words.
    scope : Scope
    base_cost : int
        Cost of computing each op once, which is a bound by itself.
    infeasible : bool
        Whether it is proved that no schedule in the scope keeps the budget.
    relaxed : float or None
        The bound before it was rounded up to a whole cost.
    seconds : float
        All in all.
    duals : mapping of str to float64 array
        Dual values of each record's rows, where the bound has such.
    versions : mapping of str to str
    """

    value: int | None
    kind: str
    scope: Scope
    base_cost: int
    infeasible: bool = False
    relaxed: float | None = None
    seconds: float = 0.0
    duals: Mapping[str, NDArray[np.float64]] = field(default_factory=dict, repr=False)
    versions: Mapping[str, str] = field(default_factory=dict)

    @property
    def overhead(self) -> float | None:
        """The bound as an overhead in %; None if there is no bound, or all costs are 0."""
        if self.value is None or not self.base_cost:
            return None
        return 100 * (self.value - self.base_cost) / self.base_cost

    def __str__(self) -> str:
        if self.infeasible:
            what = "no schedule exists"
        elif self.value is None:
            what = "nothing is known"
        else:
            share = "" if self.overhead is None else f" (overhead {self.overhead:.4g} %)"
            what = f"cost ≥ {self.value:,}{share}"
        return f"{what} for {self.scope}; by {self.kind}"
