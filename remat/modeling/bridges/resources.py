"""Resource use over time and reservoirs by the order encoding."""

from __future__ import annotations

import numpy as np

from remat.modeling.bridges.context import LoweringContext
from remat.modeling.bridges.literals import NEVER, literal_rows, ranges
from remat.modeling.records import ALWAYS, Clauses, Cumulative, Linear, Record, Reservoir
from remat.modeling.rows import difference_rows


def cumulative_to_linear(record: Cumulative, context: LoweringContext) -> list[Record]:
    """State a time-indexed row for every time at which an interval can start.

    Reformulation
    -------------
    With ``y[x, t] = [x <= t]``
    (:class:`~remat.modeling.bridges.order_encoding.OrderEncoding`), interval i covers time t when it is present,
    ``y[start, t] = 1`` and ``y[end, t] = 0``. At every t: ``sum(demand[i] * c[i, t]) <= capacity``, where

    * ``c[i, t] = y[start, t] - y[end, t] >= 0`` for an interval that is always present;
    * ``c[i, t]`` is the only one of the three conditions that is not fixed, if there is only one;
    * otherwise ``c[i, t] >= presence + y[start, t] - y[end, t] - 1``, a new variable between 0 and 1.

    The use grows only where an interval starts, so no other times need rows; nor do times at which all possible
    intervals fit together. ``start <= end`` is an enforced row of its own.

    Source
    ------
    :class:`Cumulative`

    Target
    ------
    :class:`Linear`, :class:`Clauses`.
    """
    context.domains.require_encodable(np.concatenate([record.start, record.end]))
    presence = context.fold(record.presence)
    possible = np.flatnonzero(presence != NEVER)
    using = possible[record.demand[possible] > 0]
    order_of_ends = difference_rows(
        f"{record.name} start before end", record.end[possible], record.start[possible], 0, record.presence[possible]
    )
    result: list[Record] = [order_of_ends, _capacity_sign(record, context)]
    if not len(using):
        return result
    start, end, demand, presence = record.start[using], record.end[using], record.demand[using], presence[using]
    order = context.order
    result += order.encode(np.concatenate([start, end]))
    times = np.unique(order.values(start)[1])
    first, last = np.searchsorted(times, order.least(start)), np.searchsorted(times, order.greatest(end))
    interval, time = ranges(first, last)
    started = context.fold(order.at_most(start[interval], times[time]))
    running = ~context.fold(order.at_most(end[interval], times[time]))
    # Rows that cannot be violated need no variables.
    load = np.bincount(time, demand[interval] * (running != NEVER), minlength=len(times))
    least = record.capacity if record.capacity_variable is None else context.model.lower[record.capacity_variable]
    keep = (load > least)[time] & (running != NEVER)
    interval, time, started, running = interval[keep], time[keep], started[keep], running[keep]
    rows, time = np.unique(time, return_inverse=True)
    # An interval that is always present is [started] - [ended], which needs no new variable.
    plain = (presence[interval] == ALWAYS) & (started != ALWAYS) & (running != ALWAYS)
    result.append(Clauses.pairs(f"{record.name} order", started[plain], running[plain]))
    factors = np.stack([presence[interval], started, running], axis=1)[~plain]
    covers, more = context.conjunction(f"{record.name} covers", factors, at_least=True)
    result += more
    weight = demand[interval].astype(np.float64)
    row = np.concatenate([time[plain], time[plain], time[~plain]])
    literal = np.concatenate([started[plain], ~running[plain], covers])
    weights = np.concatenate([weight[plain], -weight[plain], weight[~plain]])
    if record.capacity_variable is None:
        upper = np.full(len(rows), float(record.capacity))
    else:
        # The literal of a variable has the variable's value, so the capacity enters as a term.
        upper = np.zeros(len(rows))
        row = np.concatenate([row, np.arange(len(rows))])
        literal = np.concatenate([literal, np.full(len(rows), record.capacity_variable)])
        weights = np.concatenate([weights, np.full(len(rows), -1.0)])
    result.append(literal_rows(record.name, row, literal, weights, upper=upper))
    return result


def _capacity_sign(record: Cumulative, context: LoweringContext) -> Record:
    """Require a non-negative capacity, even at times without intervals."""
    if record.capacity_variable is None:
        return literal_rows(record.name, [], [], [], upper=np.array([float(record.capacity)]))
    low = context.model.lower[record.capacity_variable]
    rows = np.zeros(int(low < 0), dtype=np.int64)
    return Linear.rows(record.name, rows, rows + record.capacity_variable, 1, lower=rows)


def reservoir_to_linear(record: Reservoir, context: LoweringContext) -> list[Record]:
    """State a row for every reservoir and time at which its level can fall.

    Reformulation
    -------------
    With ``y[x, t] = [x <= t]``
    (:class:`~remat.modeling.bridges.order_encoding.OrderEncoding`), an event has happened by time t if it is active and
    ``y[time, t - offset] = 1``. At every t: ``sum(change[e] * h[e, t]) >= 0``, where ``h[e, t]`` is the one of the two
    conditions that is not fixed, if there is only one; otherwise a new variable between 0 and 1 with

    * ``h[e, t] >= active[e] + y[time[e], t - offset[e]] - 1`` for an event with a negative change,
    * ``h[e, t] <= active[e]`` and ``h[e, t] <= y[time[e], t - offset[e]]`` for one with a positive change.

    The level falls only at events with a negative change, so no other times need rows.

    Source
    ------
    :class:`Reservoir`

    Target
    ------
    :class:`Linear`, without literals.
    """
    context.domains.require_encodable(record.time)
    active = context.fold(record.active)
    events = np.flatnonzero((active != NEVER) & (record.change != 0))
    if not len(events):
        return []
    reservoir = record.owner[events]
    variable, offset, change = record.time[events], record.offset[events], record.change[events]
    active = active[events]
    order = context.order
    result = order.encode(variable)
    takers = np.flatnonzero(change < 0)
    owner, value = order.values(variable[takers])
    if not len(owner):
        return result
    time = value + offset[takers][owner]
    # Rows are (reservoir, time) pairs, sorted by one integer key.
    low, high = int(time.min()), int(time.max())
    span = high - low + 2
    keys = np.unique(reservoir[takers][owner] * span + (time - low))
    begin = np.clip(order.least(variable) + offset - low, 0, span - 1)
    event, row = ranges(np.searchsorted(keys, reservoir * span + begin), np.searchsorted(keys, (reservoir + 1) * span))
    happened = context.fold(order.at_most(variable[event], keys[row] % span + low - offset[event]))
    factors = np.stack([active[event], happened], axis=1)
    takes = change[event] < 0
    literal = np.empty(len(event), dtype=np.int64)
    for side, word in ((takes, "taken"), (~takes, "given")):
        literal[side], more = context.conjunction(
            f"{record.name} {word}", factors[side], at_least=bool(word == "taken")
        )
        result += more
    result.append(literal_rows(record.name, row, literal, change[event].astype(np.float64), lower=np.zeros(len(keys))))
    return result
