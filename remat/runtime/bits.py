"""Sets of small numbers as the bits of integers, and as the 64-bit words of kernels."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import reduce
from operator import or_

import numpy as np
from numpy.typing import NDArray

from remat.runtime.arrays import Int


def bits(numbers: Iterable[int]) -> int:
    """Return a set of numbers as bits.

    Examples
    --------
    >>> bits([0, 3]), list(numbers(9)), words([9]).tolist()
    (9, [0, 3], [[9, 0]])
    """
    return reduce(or_, (1 << number for number in numbers), 0)


def numbers(mask: int) -> Iterator[int]:
    """Yield the numbers of the bits of a set, ascending."""
    while mask:
        lowest = mask & -mask
        yield lowest.bit_length() - 1
        mask ^= lowest


def words(sets: Iterable[int]) -> NDArray[np.uint64]:
    """Return sets as pairs of 64-bit words, shape (sets, 2)."""
    return np.array([(one & (1 << 64) - 1, one >> 64) for one in sets], dtype=np.uint64).reshape(-1, 2)


def digits(sequence: np.uint64) -> Int:
    """Return the number of each bit of a word, by the six highest bits of its product with a de Bruijn sequence."""
    found = np.zeros(64, dtype=np.int64)
    for bit in range(64):
        found[(int(sequence) << bit & (1 << 64) - 1) >> 58] = bit
    return found
