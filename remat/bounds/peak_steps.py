"""Memory peaks along a fixed order, as candidate events of a stage relaxation."""

from __future__ import annotations

import numpy as np

from remat.runtime.arrays import Int

#: Largest number of peaks considered; the highest are.
MOST_PEAKS = 500


def prominent_peaks(memory: Int, above: int) -> list[int]:
    """Return the positions of local maxima of `memory` above a value, the most prominent first.

    The prominence of a peak is the least drop of memory between it and a higher peak (or an end).

    Examples
    --------
    >>> prominent_peaks(np.array([3, 7, 5, 9, 2, 6, 1]), 5)
    [3, 5, 1]
    """
    padded = np.concatenate([[-1], memory, [-1]])
    step = np.flatnonzero(np.diff(padded)) + 1  # first of each run of equal values
    heights = padded[step]
    top = (heights > padded[step - 1]) & (np.append(heights[1:], 0) < heights) & (heights > above)
    found: list[tuple[int, int]] = []
    highest = step[top][np.argsort(-heights[top], kind="stable")][:MOST_PEAKS]
    for k in highest.tolist():
        higher = np.flatnonzero(padded > padded[k])
        place = int(np.searchsorted(higher, k))
        left = int(higher[place - 1]) if place else 0
        right = int(higher[place]) if place < len(higher) else len(padded) - 1
        valley = max(int(padded[left : k + 1].min()), int(padded[k : right + 1].min()))
        found.append((valley - int(padded[k]), k - 1))
    return [k for _, k in sorted(found)]
