"""Orders that GNU's C++ library leaves to its implementation: of hash sets, and of equal elements after ``std::sort``.

Addresses in LiteRT depend on them. Source: libstdc++ of GCC 13, ``bits/hashtable.h`` and ``bits/stl_algo.h``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

Row = TypeVar("Row")

#: Numbers of buckets of a hash set as it grows.
_BUCKETS = (13, 29, 59, 127, 257, 541, 1109, 2357, 5087, 10273)
#: ``std::sort`` leaves parts of at most this number of elements to insertion sort.
_SMALL = 16


def set_order(numbers: Iterable[int]) -> list[int]:
    """Return the order in which ``std::unordered_set<int>`` iterates over numbers inserted one after the other.

    Examples
    --------
    >>> set_order([4, 5, 17, 6])  # 4 and 17 share a bucket of 13
    [6, 5, 17, 4]
    """
    found: list[int] = []
    size = 0
    for number in dict.fromkeys(numbers):
        if len(found) + 1 > size:
            size = next(each for each in _BUCKETS if each > len(found))
            old, found = found, []
            for each in old:
                _insert(found, each, size)
        _insert(found, number, size)
    return found


def _insert(order: list[int], number: int, buckets: int) -> None:
    """Insert a number in front of those in its bucket, or of all if there is none."""
    bucket = number % buckets
    order.insert(next((k for k, each in enumerate(order) if each % buckets == bucket), 0), number)


def sorted_order(rows: list[Row], key: Callable[[Row], Any]) -> list[Row]:
    """Return the order of rows after ``std::sort``, which is not stable for more than 16 rows.

    Quicksort around the median of three leaves parts of at most 16 rows, which insertion sort finishes. Heapsort, to
    which the library resorts after ``2 log2(n)`` partitions in a row, is not reproduced.

    Examples
    --------
    >>> sorted_order([(k % 3, k) for k in range(18)], key=lambda row: row[0])[:6]
    [(0, 0), (0, 3), (0, 15), (0, 6), (0, 12), (0, 9)]
    """
    keyed = [(key(row), row) for row in rows]
    if len(keyed) > _SMALL and len({rank for rank, _ in keyed}) < len(keyed):
        waiting = [(0, len(keyed))]
        while waiting:
            first, end = waiting.pop()
            if end - first > _SMALL:
                cut = _partition(keyed, first, end)
                waiting += [(first, cut), (cut, end)]
    return [row for _, row in sorted(keyed, key=lambda each: each[0])]


def _partition(rows: list[tuple[Any, Any]], first: int, end: int) -> int:
    """Partition a part around its median of three, which moves to the front; return where the upper part begins."""
    a, b, c = first + 1, first + (end - first) // 2, end - 1
    ranked = rows[a][0] < rows[b][0]
    low, high = (a, b) if ranked else (b, a)
    if rows[high][0] < rows[c][0]:
        median = high
    else:
        median = c if rows[low][0] < rows[c][0] else low
    rows[first], rows[median] = rows[median], rows[first]
    pivot, low, high = rows[first][0], first + 1, end
    while True:
        while rows[low][0] < pivot:
            low += 1
        high -= 1
        while pivot < rows[high][0]:
            high -= 1
        if low >= high:
            return low
        rows[low], rows[high] = rows[high], rows[low]
        low += 1
