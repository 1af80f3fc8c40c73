"""Sizes of memory as people write them."""

from __future__ import annotations

import re
from fractions import Fraction

from remat.errors import ProblemError

#: Bytes of each unit.
UNITS = {"": 1, "B": 1, "kB": 1000}
UNITS |= {f"{p}B": 1000**k for k, p in enumerate("KMGTP", 1)} | {f"{p}iB": 1024**k for k, p in enumerate("KMGTP", 1)}
_SIZE = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)\s*", re.ASCII)


def memory_bytes(limit: int | str) -> int:
    """A limit of memory in bytes.

    Raises
    ------
    ProblemError
        If it is no positive number of bytes.

    Examples
    --------
    >>> memory_bytes("4GiB"), memory_bytes(1000)
    (4294967296, 1000)
    """
    size = limit if isinstance(limit, int) and not isinstance(limit, bool) else None
    if isinstance(limit, str) and (match := _SIZE.fullmatch(limit[:60])) is not None and match[2] in UNITS:
        size = int(Fraction(match[1]) * UNITS[match[2]])
    if size is None:
        raise ProblemError(f"memory limit {str(limit)[:60]!r} is not a number of bytes (4GiB)", "bad-memory")
    if size <= 0:
        raise ProblemError(f"memory limit {str(limit)[:60]!r} is not a number of bytes above 0", "bad-memory")
    return size


def size_unit(largest: int) -> tuple[int, str]:
    """The largest binary unit in which `largest` is at least 1: bytes in it, and its name."""
    power = min(max(largest.bit_length() - 1, 0) // 10, 5)
    return 1024**power, ("bytes", "KiB", "MiB", "GiB", "TiB", "PiB")[power]


def size_text(size: int) -> str:
    """A number of bytes in its :func:`size_unit`, for a label."""
    scale, unit = size_unit(size)
    return f"{size} bytes" if scale == 1 else f"{size / scale:.2f} {unit}"
