"""A cell of a frontier."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from remat.problem import Objective
from remat.schedule import Schedule
from remat.solving.progress import relative_gap

#: Keys of a row, besides that of the objective, that describe the schedule.
OF_SCHEDULE = (
    "overhead_percent", "cost", "peak", "source", "recomputations", "stall", "bytes_written", "bytes_read", "host_peak",
)  # fmt: skip


@dataclass(frozen=True)
class Cell:
    """Result of one method at one budget.

    Attributes
    ----------
    method : str
        Label of the method.
    budget : int
        Bytes.
    row : mapping
        As :meth:`remat.experiments.runs.Run.row`.
    schedule : Schedule or None
    found_at : int or None
        Budget in bytes at which the schedule was found: this one or a smaller one. None without a schedule.
    own : bool
        True if the schedule is the formulation's own, so that its claims cover it.
    complete : bool
        True if bound and status cover every schedule within the rules.
    objective : Objective
        Objective of the problem.
    """

    method: str
    budget: int
    row: Mapping[str, Any] = field(repr=False)
    schedule: Schedule | None = field(default=None, repr=False)
    found_at: int | None = None
    own: bool = False
    complete: bool = False
    objective: Objective = Objective.DEFAULT

    @property
    def status(self) -> str:
        """``optimal``, ``feasible``, ``infeasible``, ``unknown`` or ``failed``."""
        return str(self.row["status"])

    @property
    def cost(self) -> int | None:
        """Certified cost of the schedule."""
        cost: int | None = self.row["cost"]
        return cost

    @property
    def value(self) -> int | None:
        """Certified objective of the schedule."""
        value: int | None = self.row[self.objective.key]
        return value

    @property
    def peak(self) -> int:
        """Certified peak of the schedule; the budget without one."""
        peak: int | None = self.row.get("peak")
        return self.budget if peak is None else peak

    @property
    def bound(self) -> int | None:
        """Value that no schedule in the scope can beat; None if the method failed."""
        bound: int | None = self.row["bound"]
        return bound

    @property
    def source(self) -> str:
        """Source of the schedule; empty without one."""
        return str(self.row["source"] or "")

    def with_schedule_of(self, other: Cell) -> Cell:
        """Return this cell with the schedule of another one, whose peak is within the budget."""
        value, bound = other.value, self.bound
        row = {
            **self.row, **{key: other.row[key] for key in (*OF_SCHEDULE, self.objective.key) if key in other.row},
            "gap": relative_gap(value, bound), "status": "optimal" if value == bound else "feasible",
            "to_best_seconds": None,
        }  # fmt: skip
        return replace(self, row=row, schedule=other.schedule, found_at=other.found_at, own=other.own)
