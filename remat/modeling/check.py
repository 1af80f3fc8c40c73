"""Reference semantics of all records, in plain numpy: the violations of given values."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import ArrayLike

from remat.errors import ModelError
from remat.modeling.model import Kind, Model
from remat.modeling.records import (
    AllDifferent,
    Clauses,
    Cumulative,
    Domain,
    Linear,
    NoOverlap,
    NoOverlap2D,
    Record,
    Reservoir,
    truth,
)
from remat.runtime.arrays import Bool, Float, Int

#: Maximum number of violations listed per record; the others are counted.
NAMED = 10


def violations(model: Model, values: ArrayLike, tolerance: float = 1e-6) -> list[str]:
    """Return the violations of `values`, one line each; empty if they satisfy the model.

    `tolerance` is the largest allowed violation of a bound b, relative to ``max(1, |b|)``, and distance from an
    integer. Literals, and the integers of records other than :class:`Linear`, are rounded first.

    Examples
    --------
    >>> from remat.modeling import AllDifferent, Model
    >>> m = Model("two")
    >>> x = m.integers("x", 2, 0, 3)
    >>> m.add(AllDifferent("different", x.index))
    >>> violations(m, [2, 2])
    ["record 'different': value 2 is taken 2 times"]
    """
    numbers = np.asarray(values, dtype=np.float64)
    if numbers.shape != (model.num_vars,):
        return [f"{numbers.shape} values for {model.num_vars} variables"]
    found = [line for block in _blocks(model, numbers, tolerance) for line in _first(block)]
    if np.isnan(numbers).any():
        return found
    for record in model.records:
        check = _CHECKS.get(type(record))
        if check is None:
            raise ModelError(
                f"record {record.name!r} of model {model.name!r} is of unknown kind {type(record).__name__}",
                "unknown-record",
            )
        found += [f"record {record.name!r}{line}" for line in _first(check(record, numbers, tolerance))]
    return found


def _first(lines: Iterator[str]) -> list[str]:
    """Return the first few of `lines`, then a line with the number of the others."""
    listed = list(itertools.islice(lines, NAMED))
    more = sum(1 for _ in lines)
    return [*listed, f": {more} more"] if more else listed


def _true(literals: Int, values: Float) -> Bool:
    """Return a mask of the literals that are true."""
    return truth(literals, values, values) > 0


def _blocks(model: Model, values: Float, tolerance: float) -> Iterator[Iterator[str]]:
    lower, upper = model.lower, model.upper
    for block in model.blocks:
        index = block.index.ravel()
        x, low, high = values[index], lower[index], upper[index]
        whole = block.kind in {Kind.INTEGER, Kind.BOOLEAN}
        slack_low, slack_high = tolerance * _scale(low), tolerance * _scale(high)
        wrong = np.isnan(x) | (x < low - slack_low) | (x > high + slack_high)
        if whole:
            wrong |= np.abs(x - np.rint(x)) > tolerance
        at = np.flatnonzero(wrong)
        kind = "an integer" if whole else "a number"
        yield (f"variable {block.name}[{i}] = {x[i]:.12g} is not {kind} in [{low[i]:.12g}, {high[i]:.12g}]" for i in at)


def _scale(bound: Float) -> Float:
    return np.maximum(1.0, np.where(np.isfinite(bound), np.abs(bound), 0.0))


def _linear(record: Linear, values: Float, tolerance: float) -> Iterator[str]:
    left = np.bincount(record.row, record.value * values[record.column], minlength=len(record))
    wrong = (left < record.lower - tolerance * _scale(record.lower)) | (
        left > record.upper + tolerance * _scale(record.upper)
    )
    if record.enforce is not None:
        wrong &= _true(record.enforce, values)
    for i in np.flatnonzero(wrong):
        yield f" row {i}: {left[i]:.12g} is not in [{record.lower[i]:.12g}, {record.upper[i]:.12g}]"


def _clauses(record: Clauses, values: Float, tolerance: float) -> Iterator[str]:
    true = np.bincount(record.owner[_true(record.literals, values)], minlength=len(record))
    for i in np.flatnonzero(true == 0):
        yield f" row {i}: no literal of {record.literals[record.indptr[i] : record.indptr[i + 1]].tolist()} is true"


def _domain(record: Domain, values: Float, tolerance: float) -> Iterator[str]:
    owner, x = record.owner, np.rint(values[record.variable]).astype(np.int64)
    hits = np.bincount(owner[record.values == x[owner]], minlength=len(record))
    for i in np.flatnonzero(hits == 0):
        yield f" row {i}: {x[i]} is not a listed value"


def _cumulative(record: Cumulative, values: Float, tolerance: float) -> Iterator[str]:
    present, start, end = _intervals(record, values)
    for i in np.flatnonzero(start > end):
        yield f" interval {present[i]}: start {start[i]} is after end {end[i]}"
    times, used = cumulative_use(record, values)
    capacity = record.capacity
    if record.capacity_variable is not None:
        capacity = int(np.rint(values[record.capacity_variable]))
    if capacity < 0:
        yield f": capacity {capacity} is negative"
    for i in np.flatnonzero(used > capacity):
        yield f" time {times[i]}: use {used[i]} exceeds capacity {capacity}"


def cumulative_use(record: Cumulative, values: Float) -> tuple[Int, Int]:
    """Return the times at which intervals start, ascending, and the use at each."""
    present, start, end = _intervals(record, values)
    proper = start < end
    demand = record.demand[present][proper]
    times = np.unique(start[proper])
    # Use at t: demands of intervals started by then, minus those ended by then.
    return times, _sum_until(start[proper], demand, times) - _sum_until(end[proper], demand, times)


def _intervals(record: Cumulative | NoOverlap, values: Float) -> tuple[Int, Int, Int]:
    """Return the numbers, starts and ends of the present intervals."""
    present = np.flatnonzero(_true(record.presence, values))
    start = np.rint(values[record.start[present]]).astype(np.int64)
    return present, start, np.rint(values[record.end[present]]).astype(np.int64)


def _sum_until(when: Int, amount: Int, times: Int) -> Int:
    """Return the sum of `amount` with ``when <= time``, for each of `times`."""
    by_time = np.argsort(when, kind="stable")
    total = np.concatenate([[0], np.cumsum(amount[by_time])])
    return total[np.searchsorted(when[by_time], times, side="right")]


def _reservoir(record: Reservoir, values: Float, tolerance: float) -> Iterator[str]:
    active = np.flatnonzero(_true(record.active, values))
    reservoir = record.owner[active]
    time = np.rint(values[record.time[active]]).astype(np.int64) + record.offset[active]
    in_order = np.lexsort((time, reservoir))
    reservoir, time, change = reservoir[in_order], time[in_order], record.change[active][in_order]
    total = np.concatenate([[0], np.cumsum(change)])
    begin = np.searchsorted(reservoir, reservoir)  # first event of the same reservoir
    level = total[1:] - total[begin]
    last = np.ones(len(time), dtype=bool)  # last event of a reservoir at one time
    last[:-1] = (reservoir[1:] != reservoir[:-1]) | (time[1:] != time[:-1])
    for i in np.flatnonzero(last & (level < 0)):
        yield f" row {reservoir[i]}: level {level[i]} at time {time[i]}"


def _all_different(record: AllDifferent, values: Float, tolerance: float) -> Iterator[str]:
    taken, count = np.unique(np.rint(values[record.variable]).astype(np.int64), return_counts=True)
    for i in np.flatnonzero(count > 1):
        yield f": value {taken[i]} is taken {count[i]} times"


def _no_overlap(record: NoOverlap, values: Float, tolerance: float) -> Iterator[str]:
    present, start, end = _intervals(record, values)
    for i in np.flatnonzero(start > end):
        yield f" interval {present[i]}: start {start[i]} is after end {end[i]}"
    group = record.owner[present]
    order = np.lexsort((end, start, group))
    present, start, end, group = (x[order] for x in (present, start, end, group))
    latest = -1  # of the group's intervals so far, that with the last end
    for this in range(len(present)):
        if latest >= 0 and group[latest] == group[this]:
            if start[this] < end[latest]:
                low, high = sorted((present[latest], present[this]))
                yield f": intervals {low} and {high} overlap"
            if end[this] < end[latest]:
                continue
        latest = this


def _no_overlap_of_rectangles(record: NoOverlap2D, values: Float, tolerance: float) -> Iterator[str]:
    some = np.flatnonzero(_true(record.presence, values) & (record.width > 0) & (record.height > 0))
    first, second = (np.rint(values[x[some]]).astype(np.int64) for x in (record.first, record.second))
    order = np.argsort(first, kind="stable")
    some, first, second = some[order], first[order], second[order]
    right, top = first + record.width[some], second + record.height[some]
    for i in range(len(some)):
        near = np.arange(i + 1, int(np.searchsorted(first, right[i])))  # those that start before this one ends
        for j in near[(second[near] < top[i]) & (top[near] > second[i])]:
            low, high = sorted((some[i], some[j]))
            yield f": rectangles {low} and {high} overlap"


_CHECKS: dict[type[Record], Callable[..., Iterator[str]]] = {
    AllDifferent: _all_different,
    Clauses: _clauses,
    Cumulative: _cumulative,
    Domain: _domain,
    Linear: _linear,
    NoOverlap: _no_overlap,
    NoOverlap2D: _no_overlap_of_rectangles,
    Reservoir: _reservoir,
}
