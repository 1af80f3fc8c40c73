"""Non-overlapping intervals and rectangles, by a choice of relative position for each pair."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from remat.modeling.bridges.base import InapplicableError
from remat.modeling.bridges.context import LoweringContext
from remat.modeling.bridges.literals import NEVER
from remat.modeling.model import Kind
from remat.modeling.records import ALWAYS, Clauses, NoOverlap, NoOverlap2D, Record
from remat.modeling.rows import difference_rows
from remat.runtime.arrays import Float, Int

#: Maximum number of pairs.
MAX_PAIRS = 2_000_000


def no_overlap_to_linear(record: NoOverlap, context: LoweringContext) -> list[Record]:
    """State that of two intervals of a group, one ends before the other starts.

    Reformulation
    -------------
    As :func:`rectangles_to_linear`, with two ways for each pair: ``end[i] <= start[j]`` or ``end[j] <= start[i]``.

    Source
    ------
    :class:`NoOverlap`

    Target
    ------
    :class:`Linear` with literals, :class:`Clauses`.
    """
    presence = context.fold(record.presence)
    low, high = context.model.lower, context.model.upper
    there = presence != NEVER
    found = [np.zeros((0, 2), dtype=np.int64)]
    for first, last in zip(record.indptr[:-1].tolist(), record.indptr[1:].tolist(), strict=True):
        some = first + np.flatnonzero(there[first:last])
        some = some[np.argsort(low[record.start[some]], kind="stable")]
        left, right = low[record.start[some]], high[record.end[some]]
        for k, end in enumerate(np.searchsorted(left, right).tolist()):
            near = some[k + 1 : max(end, k + 1)]
            found.append(np.stack([np.full(len(near), some[k]), near], axis=1))
    pairs = np.concatenate(found)
    if len(pairs) > MAX_PAIRS:
        raise InapplicableError(f"at most {MAX_PAIRS:,} pairs of intervals that can overlap")
    i, j = pairs.T
    ways = _Ways(
        np.stack([record.end[i], record.end[j]], axis=1), np.stack([record.start[j], record.start[i]], axis=1),
        np.zeros((len(i), 2)),
    )  # fmt: skip
    proper = difference_rows(f"{record.name} length", record.end[there], record.start[there], 0, presence[there])
    return [proper, *_one_way(record.name, (presence[i], presence[j]), ways, context)]


def rectangles_to_linear(record: NoOverlap2D, context: LoweringContext) -> list[Record]:
    """State that one of two rectangles lies left of, right of, below or above the other.

    Reformulation
    -------------
    The bounds of positions separate some pairs already, and rule out some of the four ways to separate the others. Each
    remaining pair i < j gets a Boolean for each remaining way, which enforces the row ``first[i] + width[i] <=
    first[j]`` (and so on). A clause states that one of the Booleans is true, or one of the rectangles is absent. If two
    ways remain and both rectangles are always present, one Boolean and its negation suffice. If the first coordinates
    are fixed, as the steps of buffers are, that holds for all pairs.

    Source
    ------
    :class:`NoOverlap2D`

    Target
    ------
    :class:`Linear` with literals, :class:`Clauses`.
    """
    presence = context.fold(record.presence)
    i, j = _pairs(record, context)
    # for each way: lower rectangle, upper one, their positions in that coordinate, and the length of the lower one
    each = [
        (place[a], place[b], size[a])
        for place, size in ((record.first, record.width), (record.second, record.height))
        for a, b in ((i, j), (j, i))
    ]
    ways = _Ways(*(np.stack([way[k] for way in each], axis=1) for k in range(3)))
    return _one_way(record.name, (presence[i], presence[j]), ways, context)


@dataclass(frozen=True)
class _Ways:
    """Ways to separate each pair: ``before + length <= after``; arrays of shape (pairs, ways)."""

    before: Int
    after: Int
    length: Float | Int


def _one_way(name: str, presence: tuple[Int, Int], ways: _Ways, context: LoweringContext) -> list[Record]:
    """Return records by which one of the ways separates each pair of which both are present."""
    low, high = context.model.lower, context.model.upper
    before, after, length = ways.before, ways.after, ways.length
    possible = low[before] + length <= high[after]
    always = (presence[0] == ALWAYS) & (presence[1] == ALWAYS)
    pair_of_two = always & (possible.sum(axis=1) == 2)
    number = np.cumsum(possible, axis=1) - 1  # of each way among those of its pair
    owned = possible & ~(pair_of_two[:, None] & (number == 1))
    own = np.nonzero(owned)
    sooner, later, distance = before[own], after[own], length[own]

    def complete(values: Float) -> Float:
        x, y = values[sooner], values[later]
        return np.where(np.isnan(x) | np.isnan(y), np.nan, (x + distance <= y + 0.5).astype(np.float64))

    literal = np.full(possible.shape, NEVER, dtype=np.int64)
    literal[own] = context.add_vars(f"{name} apart", len(sooner), Kind.BOOLEAN, (0, 1), complete)
    second = pair_of_two[:, None] & possible & (number == 1)
    literal[second] = ~literal[pair_of_two[:, None] & possible & (number == 0)]

    row, column = np.nonzero(possible)
    way = row, column
    rows = difference_rows(f"{name} order", after[way], before[way], length[way], literal[way])
    open_pairs = np.flatnonzero(~pair_of_two)
    place = np.full(len(possible), -1)
    place[open_pairs] = np.arange(len(open_pairs))
    mine = place[row] >= 0
    groups, literals = [place[row[mine]]], [literal[row, column][mine]]
    for who in presence:
        absent = who[open_pairs] != ALWAYS
        groups.append(np.flatnonzero(absent))
        literals.append(~who[open_pairs][absent])
    return [rows, Clauses.grouped(f"{name} one way", np.concatenate(groups), np.concatenate(literals), len(open_pairs))]


def _pairs(record: NoOverlap2D, context: LoweringContext) -> tuple[Int, Int]:
    """Return pairs i < j of rectangles that can be present and can overlap, by the bounds of their positions."""
    presence = context.fold(record.presence)
    some = np.flatnonzero((record.width > 0) & (record.height > 0) & (presence != NEVER))
    low, high = context.model.lower, context.model.upper
    left, right = low[record.first[some]], high[record.first[some]] + record.width[some]
    bottom, top = low[record.second[some]], high[record.second[some]] + record.height[some]
    order = np.argsort(left, kind="stable")
    some = some[order]
    left, right, bottom, top = (x[order] for x in (left, right, bottom, top))
    found = [np.zeros((0, 2), dtype=np.int64)]
    count = 0
    for k, end in enumerate(np.searchsorted(left, right).tolist()):
        near = np.arange(k + 1, end)
        near = near[(bottom[near] < top[k]) & (top[near] > bottom[k])]
        found.append(np.stack([np.full(len(near), some[k]), some[near]], axis=1))
        count += len(near)
        if count > MAX_PAIRS:
            raise InapplicableError(f"at most {MAX_PAIRS:,} pairs of rectangles that can overlap")
    pairs = np.concatenate(found)
    return pairs.min(axis=1, initial=2**62), pairs.max(axis=1, initial=-1)
