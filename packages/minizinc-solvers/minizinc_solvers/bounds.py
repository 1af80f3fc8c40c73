"""Bounds of integer variables declared without any, derived from linear constraints."""

from __future__ import annotations

import math
from collections import deque
from typing import Any

from minizinc_solvers.model import Constraint, FlatZinc, IntSet, Variable, VarKind

#: Evaluations of one constraint; bounds that still move after them diverge.
MAX_EVALUATIONS = 20
#: Wider bounds are discarded.
WIDEST = 2**52

Row = tuple[list[tuple[int, Any]], bool]


def tighten(model: FlatZinc) -> None:
    """Give unbounded integer variables of `model` the domains that follow from linear constraints, where finite.

    Examples
    --------
    >>> from minizinc_solvers.parser import parse
    >>> m = parse("var 0..3: x; var int: y; constraint int_lin_eq([2,-1],[x,y],1); solve minimize y;")
    >>> tighten(m)
    >>> m.variables[1].domain
    IntSet(ranges=((-1, 5),))
    """
    bounds = {
        v.index: [-math.inf, math.inf] for v in model.variables if v.kind is VarKind.INT and v.domain is None
    }  # fmt: skip
    if not bounds:
        return
    rows: list[Row] = []
    users: dict[int, list[int]] = {}
    for constraint in model.constraints:
        row = _row(constraint)
        unknown = {v.index for _, v in row[0] if isinstance(v, Variable) and v.index in bounds} if row else set()
        if row and unknown:
            for index in unknown:
                users.setdefault(index, []).append(len(rows))
            rows.append(row)
    evaluations = [0] * len(rows)
    waiting = deque(range(len(rows)))
    while waiting:
        number = waiting.popleft()
        evaluations[number] += 1
        for index in _narrow(*rows[number], bounds):
            waiting.extend(user for user in users[index] if evaluations[user] < MAX_EVALUATIONS)
    for index, (low, high) in bounds.items():
        if max(abs(low), abs(high)) <= WIDEST:
            model.variables[index].domain = IntSet.between(int(low), int(high))


def _row(constraint: Constraint) -> Row | None:
    """Return terms that sum to 0 (True) or at most 0 (False); None for other constraints."""
    name, arguments = constraint.name, constraint.arguments
    terms: list[tuple[int, Any]]
    if name in {"int_lin_eq", "int_lin_le"} and len(arguments) == 3:
        weights, variables, right = arguments
        if not (isinstance(weights, list) and isinstance(variables, list) and len(weights) == len(variables)):
            return None
        terms = [*zip(weights, variables, strict=True), (-1, right)]
    elif name in {"int_eq", "int_le", "bool2int"} and len(arguments) == 2:
        terms = [(1, arguments[0]), (-1, arguments[1])]
    elif name == "int_plus" and len(arguments) == 3:
        terms = [(1, arguments[0]), (1, arguments[1]), (-1, arguments[2])]
    else:
        return None
    if not all(isinstance(w, int) and isinstance(v, (int, Variable)) for w, v in terms):
        return None
    return terms, not name.endswith("_le")


def _narrow(terms: list[tuple[int, Any]], equal: bool, bounds: dict[int, list[float]]) -> list[int]:
    """Tighten the bounds of a row's variables; return the changed variables."""
    ranges = [_range(weight, value, bounds) for weight, value in terms]
    low_open = sum(low == -math.inf for low, _ in ranges)
    high_open = sum(high == math.inf for _, high in ranges)
    low_sum = sum(low for low, _ in ranges if low != -math.inf)
    high_sum = sum(high for _, high in ranges if high != math.inf)
    changed = []
    for (weight, value), (low, high) in zip(terms, ranges, strict=True):
        if not weight or not isinstance(value, Variable) or value.index not in bounds:
            continue
        # weight * value <= -(least sum of the others); for an equality also >= -(largest sum)
        limits = [-math.inf, math.inf]
        if low_open == (low == -math.inf):
            limits[1] = -(low_sum - (low if low != -math.inf else 0))
        if equal and high_open == (high == math.inf):
            limits[0] = -(high_sum - (high if high != math.inf else 0))
        if weight < 0:
            limits.reverse()
        first = limits[0] if math.isinf(limits[0]) else -(-limits[0] // weight)
        last = limits[1] if math.isinf(limits[1]) else limits[1] // weight
        if weight < 0:
            first, last = (-math.inf if math.isinf(first) else first), (math.inf if math.isinf(last) else last)
        known = bounds[value.index]
        if first > known[0] or last < known[1]:
            known[:] = max(first, known[0]), min(last, known[1])
            changed.append(value.index)
    return changed


def _range(weight: int, value: Any, bounds: dict[int, list[float]]) -> tuple[float, float]:
    """Return the least and the largest value of a term."""
    if not isinstance(value, Variable):
        return weight * value, weight * value
    if value.index in bounds:
        low, high = bounds[value.index]
    elif isinstance(value.domain, IntSet):
        if not value.domain.ranges:
            return 0, 0
        low, high = value.domain.ranges[0][0], value.domain.ranges[-1][1]
    else:
        low, high = (0, 1) if value.kind is VarKind.BOOL else (-math.inf, math.inf)
    if not weight:
        return 0, 0
    ends = weight * low, weight * high
    return min(ends), max(ends)
