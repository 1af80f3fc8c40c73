"""Statistics of studies: performance profiles, means, virtual best, wins and losses, quantiles."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

#: Values of each method, one per problem in the same order; None: none.
Values = Mapping[str, Sequence[float | None]]


def performance_profile(values: Values) -> dict[str, list[tuple[float, float]]]:
    """Return for each method the points (ratio, share) at which its performance profile rises.

    The profile at a ratio τ is the share of problems that a method solves with at most τ times the least value of all
    methods. Problems that no method solves count in the share. A ratio of 0 to 0 is 1.

    Source: Dolan and Moré, *Benchmarking optimization software with performance profiles* (2002).

    Examples
    --------
    >>> performance_profile({"a": [1, 4, None], "b": [2, 2, None]})
    {'a': [(1.0, 0.333...), (2.0, 0.666...)], 'b': [(1.0, 0.333...), (2.0, 0.666...)]}
    """
    best = virtual_best(values)
    profiles = {}
    for method, found in values.items():
        ratios = sorted(
            ratio for value, least in zip(found, best, strict=True) if math.isfinite(ratio := _ratio(value, least))
        )
        points: dict[float, float] = {}
        for number, ratio in enumerate(ratios, 1):
            points[ratio] = number / len(best)
        profiles[method] = list(points.items())
    return profiles


def _ratio(value: float | None, least: float | None) -> float:
    if value is None or least is None:
        return math.inf
    return 1.0 if value == least else math.inf if not least else value / least


def virtual_best(values: Values) -> list[float | None]:
    """Return the least value of any method, for each problem.

    Examples
    --------
    >>> virtual_best({"a": [1, 4, None], "b": [2, 2, None]})
    [1, 2, None]
    """
    columns = zip(*values.values(), strict=True)
    return [min((value for value in column if value is not None), default=None) for column in columns]


def shifted_geometric_mean(values: Sequence[float], shift: float) -> float | None:
    """Return (∏ (vᵢ + s))^(1/n) − s, which values close to zero do not dominate; None without values.

    Examples
    --------
    >>> round(shifted_geometric_mean([0, 3], 1), 12)
    1.0
    """
    if not values:
        return None
    return math.exp(math.fsum(math.log(value + shift) for value in values) / len(values)) - shift


@dataclass(frozen=True)
class Duel:
    """Wins, losses and ties of one method against another, and the two-sided p of the sign test."""

    wins: int
    losses: int
    ties: int
    p: float


def duel(mine: Sequence[float | None], theirs: Sequence[float | None]) -> Duel:
    """Compare two methods on the same problems; a smaller value wins, and any value wins over none.

    Examples
    --------
    >>> duel([1, 1, 1, 1, 1, None], [2, 2, 2, 2, 2, None])
    Duel(wins=5, losses=0, ties=1, p=0.0625)
    """
    from scipy.stats import binomtest

    pairs = [(math.inf if a is None else a, math.inf if b is None else b) for a, b in zip(mine, theirs, strict=True)]
    wins, losses = sum(a < b for a, b in pairs), sum(a > b for a, b in pairs)
    p = float(binomtest(wins, wins + losses).pvalue) if wins + losses else 1.0
    return Duel(wins, losses, len(pairs) - wins - losses, p)


def value_at(points: Sequence[tuple[float, float | None]], time: float) -> float | None:
    """Return the last value at or before a time; None before the first.

    Examples
    --------
    >>> value_at([(1, 9), (2, 7)], 1.5), value_at([(1, 9)], 0.5)
    (9, None)
    """
    found = None
    for moment, value in points:
        if moment <= time and value is not None:
            found = value
    return found


def quantile(values: Sequence[float | None], share: float) -> float:
    """Return a quantile by the nearest rank; None counts as infinite.

    Examples
    --------
    >>> quantile([3, 1, None], 0.5), quantile([3, 1, None], 0.9)
    (3, inf)
    """
    ordered = sorted(math.inf if value is None else value for value in values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]
