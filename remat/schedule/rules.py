"""The rules that a schedule must keep, besides the semantics of the graph itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class OrderRule(StrEnum):
    """Which orders of first computation a schedule may have."""

    FIXED = "fixed"
    """First computations follow the reference order; recomputations anywhere."""
    FREE = "free"
    """Any topological order."""


@dataclass(frozen=True)
class Rules:
    """What a schedule must keep to, besides the semantics of its graph.

    Attributes
    ----------
    budget : int or None
        Bytes the schedule may hold at any compute step; None: no limit.
    order : OrderRule
    max_computes : int, mapping of op name to int, or None
        How often an op may be computed, for all ops or by name; None: any number of times.
    keep : frozenset of str
        Tensors that must be alive at the end, besides the graph's outputs.
    count_constant_memory : bool
        Whether the graph's constant memory counts in peak and budget.
    """

    budget: int | None = None
    order: OrderRule = OrderRule.FREE
    max_computes: int | Mapping[str, int] | None = None
    keep: frozenset[str] = field(default_factory=frozenset)
    count_constant_memory: bool = False
