"""Where memory peaks along a fixed order: the steps at which a relaxation had best look at it."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

Int = NDArray[np.int64]
#: Peaks looked at, the highest ones.
MOST_PEAKS = 500


def prominent_peaks(memory: Int, above: int) -> list[int]:
    """Local maxima of `memory` above a value, the most prominent first.

    The prominence of a peak is how far memory falls between it and any higher one (or the ends).

    Examples
    --------
    >>> prominent_peaks(np.array([3, 7, 5, 9, 2, 6, 1]), 5)
    [3, 5, 1]
    """
    padded = np.concatenate([[-1], memory, [-1]])
    step = np.flatnonzero(np.diff(padded)) + 1  # where it changes; of equal steps in a row the first counts
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


def refinements(memory: Int, above: int) -> Iterator[list[int]]:
    """Sets of steps, each finer than the one before: more and more peaks, what is between them, at last all above.

    With a peak come the first step after it that fits (a recomputation between the two has little room), and the
    lowest one before the next peak of the set.

    Examples
    --------
    >>> list(refinements(np.array([3, 7, 6, 9, 2, 6, 1]), 5))
    [[3, 4], [3, 4, 5, 6], [1, 2, 3, 4, 5, 6]]
    """
    peaks = prominent_peaks(memory, above)
    over = memory > above
    fits = np.flatnonzero(~over)
    after = np.append(fits, -1)[np.searchsorted(fits, np.arange(len(memory)))]
    count, last = 1, list[int]()
    while count < 2 * len(peaks):
        chosen = sorted(peaks[:count])
        low = [a + int(np.argmin(memory[a : b + 1])) for a, b in pairwise(chosen)]
        new = sorted({*chosen, *low, *(int(after[k]) for k in chosen if after[k] >= 0)})
        if new != last:
            yield new
        count, last = 2 * count, new
    every = sorted({*np.flatnonzero(over).tolist(), *last})
    if every != last:
        yield every
