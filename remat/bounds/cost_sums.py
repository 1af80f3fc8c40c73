"""Sums that the costs of recomputation can take: a bound between two of them is rounded up to the next."""

from __future__ import annotations

from collections.abc import Mapping
from math import gcd

import numpy as np

from remat.modeling import Model
from remat.modeling.model import Kind
from remat.runtime.arrays import Float, Int

#: Widest range of sums that is searched, as a share of its end. Solvers leave 1e-9 of a bound open.
WIDEST = 1e-8
#: Most distinct costs, and most steps of a search. Beyond them a sum is taken to exist.
MOST_COSTS, MOST_STEPS = 100, 20_000


def objective_of(model: Model, values: Float) -> int:
    """Return the objective of a model at a solution, whose values are rounded to whole numbers."""
    objective = model.objective
    return int(np.rint(values[objective.index]).astype(np.int64) @ objective.coefficient.astype(np.int64))


def attained(model: Model, bound: int, known: int) -> int:
    """Round a bound on the objective of a model up to a known value if it can take no value between them.

    Parameters
    ----------
    model : Model
        With a whole-numbered objective of 0/1 variables; otherwise the bound is returned.
    bound, known : int
    """
    objective = model.objective
    index, coefficient = objective.index, objective.coefficient
    whole = (
        not objective.constant
        and (model.kind[index] == Kind.BOOLEAN.value).all()
        and (coefficient == np.rint(coefficient)).all()
    )
    if not whole or (coefficient < 0).any():
        return bound
    return next_sum(coefficient[model.upper[index] > 0].astype(np.int64), bound, known)


def next_sum(costs: Int, bound: int, known: int) -> int:
    """Round a bound on a sum of some of `costs` up to a known sum if no sum lies between them.

    Examples
    --------
    >>> costs = np.full(9, 10**9)
    >>> next_sum(costs, 5 * 10**9 - 9, 5 * 10**9), next_sum(costs, 4, 5 * 10**9)
    (5000000000, 4)
    """
    if not 0 < known - bound <= WIDEST * known:
        return bound
    values, counts = np.unique(costs, return_counts=True)
    return bound if has_sum(dict(zip(values.tolist(), counts.tolist(), strict=True)), bound, known - 1) else known


def has_sum(terms: Mapping[int, int], least: int, most: int) -> bool:
    """Return True if a sum of `terms`, each value at most so often, lies in a range, or if that is not decided.

    Values with the smallest divisors are chosen first. What remains must be a multiple of the others' common divisor.

    Examples
    --------
    >>> has_sum({6: 2, 10: 2, 15: 1}, 17, 20), has_sum({6: 2, 10: 2, 15: 1}, 17, 19)
    (True, False)
    """
    rest = sorted(value for value in terms if value > 0)
    if len(rest) > MOST_COSTS:
        return True
    order: list[int] = []
    while rest:
        last = max(range(len(rest)), key=lambda place: gcd(*rest[:place], *rest[place + 1 :]) or rest[place])
        order.append(rest.pop(last))
    units = [gcd(*order[place:]) for place in range(len(order))]
    totals = [sum(value * terms[value] for value in order[place:]) for place in range(len(order))]
    steps = 0

    def found(place: int, low: int, high: int) -> bool:
        nonlocal steps
        steps += 1
        if low <= 0 or steps > MOST_STEPS:
            return True
        if place == len(order) or -(-low // units[place]) * units[place] > min(high, totals[place]):
            return False
        value = order[place]
        often = range(min(terms[value], high // value) + 1)
        return any(found(place + 1, low - times * value, high - times * value) for times in often)

    return most >= 0 and least <= most and found(0, least, most)
