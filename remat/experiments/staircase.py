"""Choice of budgets for a curve that few solves determine: each where most of the curve is unknown."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from remat.graphs import ComputeGraph


class Step(NamedTuple):
    """Peak and value of the best schedule at a budget, and a value that none can beat."""

    budget: int
    peak: int
    value: int
    bound: int


def memory_unit(graph: ComputeGraph) -> int:
    """Return the greatest number of bytes by whose multiples alone the peaks of schedules differ."""
    arrays = graph.arrays
    return int(np.gcd.reduce(np.concatenate([arrays.size, arrays.workspace]))) or 1


def next_budget(steps: Sequence[Step], unit: int) -> int | None:
    """Return the budget at which a solve can determine most of the curve; None if none can determine anything.

    A schedule fits all larger budgets, and a bound holds for all smaller ones. So between two steps, the curve is below
    the schedule of the lower budget and above the bound of the higher one. From its own peak on, the schedule of the
    higher budget takes over; if it is proved, the curve is open only up to there.

    A solve in the open part can lower values to that of the higher budget. It can raise bounds to that of the lower
    one, or to a schedule. The part where this is most, in value times bytes, is divided in the middle. The exception is
    a lower schedule that leaves at least as many bytes of its budget unused as the part is wide. Its step probably
    lasts to the end of the part, and the budget is there.

    Parameters
    ----------
    steps : sequence of Step
        By ascending budgets; values and bounds never rise with them.
    unit : int
        Bytes by whose multiples budgets differ; see :func:`memory_unit`.

    Examples
    --------
    >>> next_budget([Step(10, 10, 50, 50), Step(30, 30, 10, 10)], unit=2)
    20
    >>> next_budget([Step(10, 10, 50, 50), Step(20, 12, 30, 30), Step(30, 30, 29, 29)], unit=2)
    24
    """
    best, most = None, 0
    for low, high in pairwise(steps):
        end = high.peak if high.value == high.bound else high.budget
        old = max(0, min(high.peak, end) - low.budget - unit)  # bytes at which the lower schedule is the best known one
        new = max(0, end - low.budget - unit) - old
        gain = old * (low.value - high.value + low.bound - high.bound)
        gain += new * (min(low.bound, high.value) - high.bound)
        if gain > most:
            width = end - low.budget
            lasts = low.budget - low.peak >= width
            best, most = end - unit if lasts else low.budget + max(unit, width // 2 // unit * unit), gain
    return best


def mean_gap(steps: Sequence[Step], unit: int) -> float | None:
    """Return the mean difference between schedules and bounds over all budgets from the lowest; None for one.

    Examples
    --------
    >>> mean_gap([Step(10, 10, 50, 50), Step(14, 13, 20, 19), Step(15, 15, 10, 10)], unit=1)
    10.666666666666666
    """
    if len(steps) < 2:
        return None
    area = steps[0].value - steps[0].bound
    for low, high in pairwise(steps):
        there = min(max(high.peak, low.budget + unit), high.budget)
        area += (there - low.budget - unit) // unit * (low.value - high.bound)
        area += ((high.budget - there) // unit + 1) * (high.value - high.bound)
    return area / ((steps[-1].budget - steps[0].budget) // unit + 1)
