"""Linear form of retention intervals with the fixed order: stages in place of events."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from remat.errors import ProblemError
from remat.formulations.base import Values
from remat.formulations.stages import Stages
from remat.modeling import Model
from remat.modeling.alternatives import LinearForm
from remat.modeling.rows import NONE
from remat.problem import Problem
from remat.runtime.arrays import Int
from remat.schedule import Schedule


class Rise(NamedTuple):
    """Capacity as a variable, for phase 1."""

    most: int
    """Largest rise, in units of memory."""
    capacity: int
    """Units that the budget leaves."""
    unit: int
    held: int
    """Bytes of the objective ``held + unit * (capacity + rise)``."""


class StagedCopies(Stages):
    r"""Retention intervals with the fixed order, with a variable for each op and stage in place of events.

    **Sets and variables** are those of :class:`~remat.formulations.stages.Stages`: R[k,j] = 1 if op j runs again in
    stage k, S[k,t] = 1 if tensor t is retained into it, and L, U and `over` for the memory. C_j copies of op j are
    allowed. M is the budget less the bytes that are always held, in units. In phase 1, M rises by `rise` ≥ 0 units.

    **Constraints**: (1) to (9) of Stages, with (10) as its limits of computes, and in phase 1 (11) in place of (1)::

        (10) 1 + sum_k R[k,j] ≤ C_j                     copies of op j
        (11) minimise  M + rise                         with M + rise in place of M in (6) and (9)

    **Both forms have the same schedules.** A copy of op j that runs in stage k starts at event k (k − 1) / 2 + j, so
    (6), (7) and (11) of retention intervals hold for any R. The copies of op j, by stage, satisfy (3). The end of an
    instance is the event after the last read up to which L and S hold it. (2), (3) and (4) of Stages keep the instance
    from its copy to that read, which is (5). (6) to (9) of Stages are the memory at every event that computes, which is
    (4). Conversely, each staged schedule with at most C_j copies gives R, S and L: see ``Stages.encode``.

    The order is fixed. `rise` is None in phase 2.
    """

    name = "retention-intervals in stages"

    def __init__(self, problem: Problem, copies: Int, rise: Rise | None = None) -> None:
        limits = dict(zip(problem.graph.op_names, copies.tolist(), strict=True))
        super().__init__(replace(problem, max_computes=limits))  # (10)
        self.rise = rise

    def _excess(self, model: Model) -> tuple[int, int]:
        """Add `rise` of (11), as an integer: a continuous one ends at 0.999999 in HiGHS, which is infeasible."""
        if self.rise is None:
            return NONE, 0
        return int(model.integers("rise", 1, 0, self.rise.most).index[0]), self.rise.most

    def _offer_text(self, model: Model) -> None:
        """Offer none: the model of retention intervals has one."""

    def _minimise(self, model: Model) -> None:
        """Set the objective (1), or (11)."""
        if self.rise is None:
            super()._minimise(model)
        else:
            unit = self.rise.unit
            model.minimize(model.named.rise.index, unit, unit * self.rise.capacity + self.rise.held)

    def hint(self, values: Values, decode: Callable[[Values], Schedule]) -> Values:
        """Return values of this model from those that `decode` reads; NaN if those represent no schedule."""
        model, x = self.statement
        try:
            if not np.isfinite(values).all():
                return np.full(model.num_vars, np.nan)
            encoded = self.encode(decode(values))
        except ProblemError:
            return np.full(model.num_vars, np.nan)
        if self.rise is not None:
            encoded[x.rise.index] = values[-1] - self.rise.capacity
        return encoded


def linear_form(
    staged: StagedCopies, encode: Callable[[Schedule], Values], decode: Callable[[Values], Schedule]
) -> LinearForm:
    """Return `staged` as a form of the model of retention intervals whose values `encode` makes and `decode` reads."""
    return LinearForm(
        staged.build(), lambda values: encode(staged.decode(values)), lambda values: staged.hint(values, decode),
        staged.labels,
    )  # fmt: skip
