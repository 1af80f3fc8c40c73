"""A plain arena for buffers that have no addresses: each goes into the lowest gap that is large enough."""

from __future__ import annotations

import bisect

import numpy as np

from remat.schedule.addresses import Addresses
from remat.schedule.buffers import Buffers


def first_fit(buffers: Buffers) -> Addresses:
    """Addresses of buffers placed as they come, as a simple allocator would do it at run time.

    Methods of :mod:`remat.allocation` find better ones; this one is here for what only has to be drawn.

    Examples
    --------
    >>> first_fit(Buffers.of(["a", "b", "c"], lower=[0, 1, 2], upper=[2, 3, 3], size=[4, 2, 1])).offset.tolist()
    [0, 4, 0]
    """
    size = buffers.size.tolist()
    offset = np.zeros(len(buffers), dtype=np.int64)
    moments = [(lower, 1, k) for k, lower in enumerate(buffers.lower.tolist())]
    moments += [(upper, 0, k) for k, upper in enumerate(buffers.upper.tolist())]
    held: list[tuple[int, int]] = []  # where each begins and ends, ascending
    for _, begins, k in sorted(moments):
        if not begins:
            held.pop(bisect.bisect_left(held, (int(offset[k]), 0)))
            continue
        place = at = 0
        for at, (start, end) in enumerate([*held, (0, 0)]):
            if at == len(held) or start - place >= size[k]:
                break
            place = end
        held.insert(at, (place, place + size[k]))
        offset[k] = place
    return Addresses.in_one_memory(buffers, offset, source="first fit as they come")
