"""Objectives: criteria by which schedules are compared."""

from __future__ import annotations

from enum import StrEnum


class Objective(StrEnum):
    """Criterion by which schedules are compared."""

    LEAST_COST = "least-cost"
    """The least cost within the budget."""
    LEAST_PEAK = "least-peak"
    """The least peak, and of schedules with that peak the cheapest; a budget is an upper limit."""
