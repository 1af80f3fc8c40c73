"""Linear form of retention intervals with the fixed order: stages in place of events."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from remat.errors import ProblemError
from remat.formulations.base import Values
from remat.formulations.stages import Stages
from remat.modeling import Model
from remat.modeling.linear_form import LinearForm
from remat.modeling.rows import NONE

if TYPE_CHECKING:
    from remat.formulations.retention_intervals.formulation import RetentionIntervals


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

    Parameters
    ----------
    source : RetentionIntervals
        With the fixed order and ops as nodes.
    highest_peak : int, optional
        Phase 1, with M + rise at most this, in units; None: phase 2.
    """

    name = "retention-intervals in stages"

    def __init__(self, source: RetentionIntervals, highest_peak: int | None = None) -> None:
        limits = dict(zip(source.problem.graph.op_names, source.layout.copies.tolist(), strict=True))
        budget = source.problem.structural_peak if source.asks_peak else source.problem.budget
        super().__init__(replace(source.problem, budget=budget, max_computes=limits))  # (10)
        self.source, self.highest_peak = source, highest_peak
        self.deadline = source.deadline

    def _excess(self, model: Model) -> tuple[int, int]:
        """Add `rise` of (11), as an integer: a continuous one ends at 0.999999 in HiGHS, which is infeasible."""
        if self.highest_peak is None:
            return NONE, 0
        most = self.highest_peak - self.source.capacity
        return int(model.integers("rise", 1, 0, most).index[0]), most

    def _minimise(self, model: Model) -> None:
        """Set the objective (1), or (11), in bytes if that of the source is."""
        if self.highest_peak is None:
            super()._minimise(model)
            return
        f = self.source
        unit, held = (f.unit, f.held) if f.asks_peak else (1, 0)
        model.minimize(model.named.rise.index, unit, unit * f.capacity + held)

    def values(self, values: Values) -> Values:
        """Return values of the source's model from values of this one."""
        encoded = self.source.encode_runs(self.decode(values))
        return encoded if self.highest_peak is None else self.source.extended(encoded)

    def hint(self, values: Values) -> Values:
        """Return values of this model from values of the source's; NaN if those represent no schedule."""
        model, x = self.statement
        try:
            if not np.isfinite(values).all():
                return np.full(model.num_vars, np.nan)
            encoded = self.encode(self.source.decode(values))
        except ProblemError:
            return np.full(model.num_vars, np.nan)
        if self.highest_peak is not None:
            encoded[x.rise.index] = values[-1] - self.source.capacity
        return encoded


def linear_form(source: RetentionIntervals, *, highest_peak: int | None = None) -> LinearForm:
    """Return the linear form of phase 2, or of phase 1 with `highest_peak`."""
    stated = StagedCopies(source, highest_peak)
    return LinearForm(stated.build(), stated.values, stated.hint)
