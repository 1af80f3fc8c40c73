"""Rules for schedules in addition to the semantics of the graph."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from remat.schedule.machine import Machine


class OrderRule(StrEnum):
    """Admissible orders of first computes."""

    FIXED = "fixed"
    """First computations follow the reference order; recomputations may be anywhere."""
    FREE = "free"
    """Any topological order."""


@dataclass(frozen=True)
class Rules:
    """Rules for a schedule in addition to the semantics of its graph.

    Attributes
    ----------
    budget : int or None
        Bytes the schedule may hold on the device at any compute or fetch; None: no limit.
    order : OrderRule
    max_computes : int, mapping of op name to int, or None
        Largest number of computes, for all ops or by name; None: any number.
    keep : frozenset of str
        Tensors that must be live at the end, besides the graph's outputs.
    count_constant_memory : bool
        Count the graph's constant memory in peak and budget.
    machine : Machine or None
        Capacity of the host and rates of the links; None: a host without limit, and no times.
    """

    budget: int | None = None
    order: OrderRule = OrderRule.FREE
    max_computes: int | Mapping[str, int] | None = None
    keep: frozenset[str] = field(default_factory=frozenset)
    count_constant_memory: bool = False
    machine: Machine | None = None
