"""First-fit arena for buffers without addresses: each buffer takes the lowest gap that is large enough."""

from __future__ import annotations

import bisect
from collections.abc import Iterable

import numpy as np

from remat.schedule.addresses import Addresses
from remat.schedule.buffers import Buffers


def first_fit(buffers: Buffers) -> Addresses:
    """Place buffers in order of their start, as a simple allocator would at run time.

    These addresses are for drawing; methods of :mod:`remat.allocation` find better ones.

    Examples
    --------
    >>> first_fit(Buffers.of(["a", "b", "c"], lower=[0, 1, 2], upper=[2, 3, 3], size=[4, 2, 1])).offset.tolist()
    [0, 4, 0]
    """
    size = buffers.size.tolist()
    offset = np.zeros(len(buffers), dtype=np.int64)
    moments = [(lower, 1, k) for k, lower in enumerate(buffers.lower.tolist())]
    moments += [(upper, 0, k) for k, upper in enumerate(buffers.upper.tolist())]
    held: list[tuple[int, int]] = []  # start and end of each buffer, ascending
    for _, begins, k in sorted(moments):
        if begins:
            offset[k] = lowest_gap(held, size[k])
        span = int(offset[k]), int(offset[k]) + size[k]
        if begins:
            bisect.insort(held, span)
        else:
            held.remove(span)
    return Addresses.in_one_memory(buffers, offset, source="first fit as they come")


def lowest_gap(spans: Iterable[tuple[int, int]], need: int, *, tightest: bool = False) -> int:
    """Return the start of the lowest or tightest gap of `need` bytes; the end of the last span if there is none.

    `spans` are start and end of each buffer, ascending by start; they may overlap.

    Examples
    --------
    >>> lowest_gap([(0, 4), (8, 9), (11, 12)], 2), lowest_gap([(0, 4), (8, 9), (11, 12)], 2, tightest=True)
    (4, 9)
    """
    end, best, width = 0, -1, 0
    for start, top in spans:
        if start - end >= need and (best < 0 or start - end < width):
            best, width = end, start - end
            if not tightest:
                break
        end = max(end, top)
    return end if best < 0 else best
