"""Levels over time by the order encoding."""

from __future__ import annotations

import numpy as np

from remat.modeling.bridges.context import LoweringContext
from remat.modeling.bridges.literals import NEVER, literal_rows, ranges
from remat.modeling.records import Record, Reservoir


def reservoir_to_linear(record: Reservoir, context: LoweringContext) -> list[Record]:
    """State a row for every reservoir and time at which its level can fall.

    Reformulation
    -------------
    With ``y[x, t] = [x <= t]``
    (:class:`~remat.modeling.bridges.order_encoding.OrderEncoding`), an event has happened by time t if it is active and
    ``y[time, t - offset] = 1``. At every t: ``sum(change[e] * h[e, t]) >= 0``, where ``h[e, t]`` is the one of the two
    that is not fixed, if there is only one; otherwise a new variable between 0 and 1 with

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
