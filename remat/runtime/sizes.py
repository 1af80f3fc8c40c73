"""Parsing and formatting of sizes, times and shares."""

from __future__ import annotations

import re
from fractions import Fraction

from remat.errors import ProblemError

#: Bytes of each unit, in lower case. A single letter is a power of 1024, as in `dd`, Docker, Java and Slurm.
UNITS = {"": 1, "b": 1}
for power, letter in enumerate("kmgtp", 1):
    UNITS |= {f"{letter}b": 1000**power} | dict.fromkeys((letter, f"{letter}i", f"{letter}ib"), 1024**power)
#: Seconds of each unit of time.
TIMES = {"ms": 0.001, "s": 1, "sec": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}
_SIZE = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)\s*", re.ASCII)


def memory_bytes(limit: int | str) -> int:
    """Return a limit of memory in bytes.

    Raise ProblemError if it is not a positive number of bytes.

    Examples
    --------
    >>> memory_bytes("4GiB"), memory_bytes(1000)
    (4294967296, 1000)
    """
    size = limit if isinstance(limit, int) and not isinstance(limit, bool) else None
    if isinstance(limit, str) and (match := _SIZE.fullmatch(limit[:60])) is not None and match[2].lower() in UNITS:
        size = int(Fraction(match[1]) * UNITS[match[2].lower()])
    if size is None:
        raise ProblemError(f"memory limit {str(limit)[:60]!r} is not a number of bytes (4GiB)", "bad-memory")
    if size <= 0:
        raise ProblemError(f"memory limit {str(limit)[:60]!r} is not a number of bytes above 0", "bad-memory")
    return size


def seconds(time: float | str) -> float:
    """Return a time in seconds.

    `time`: seconds, or a number with a unit (``"90s"``, ``"5m"``, ``"2h"``).

    Raise ValueError if it is neither.

    Examples
    --------
    >>> seconds("90"), seconds("5m"), seconds("1.5 h"), seconds(2)
    (90.0, 300.0, 5400.0, 2.0)
    """
    return _number(time, TIMES, "seconds (90), or a number with a unit (90s, 5m, 2h)")


def share(value: float | str) -> float:
    """Return a share, given as a number or in percent (``"5%"``).

    Raise ValueError if it is neither.

    Examples
    --------
    >>> share("5%"), share(0.05), share("1e-6")
    (0.05, 0.05, 1e-06)
    """
    return _number(value, {"%": 0.01}, "a number (0.05) or a percentage (5%)")


def _number(value: float | str, units: dict[str, float], wanted: str) -> float:
    text = str(value)[:60].strip().lower()
    unit = max((unit for unit in units if text.endswith(unit)), key=len, default="")
    try:
        return float(text.removesuffix(unit)) * units.get(unit, 1)
    except ValueError:
        raise ValueError(f"{wanted}, not {str(value)[:60]!r}") from None


def size_unit(largest: int) -> tuple[int, str]:
    """Return the largest binary unit in which `largest` is at least 1: its bytes and name."""
    power = min(max(largest.bit_length() - 1, 0) // 10, 5)
    return 1024**power, ("bytes", "KiB", "MiB", "GiB", "TiB", "PiB")[power]


def shown_size(size: int) -> str:
    """Return bytes in a binary unit if that needs few digits.

    Examples
    --------
    >>> shown_size(262144), shown_size(1536), shown_size(1000)
    ('256 KiB', '1.5 KiB', '1,000 bytes')
    """
    scale, unit = size_unit(size)
    return f"{size / scale:g} {unit}" if scale > 1 and size * 100 % scale == 0 else f"{size:,} bytes"


def size_text(size: int) -> str:
    """Format a number of bytes in its :func:`size_unit`, for a label."""
    scale, unit = size_unit(size)
    return f"{size} bytes" if scale == 1 else f"{size / scale:.2f} {unit}"
