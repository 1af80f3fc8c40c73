"""Parsing and formatting of sizes, times and shares."""

from __future__ import annotations

import re
from fractions import Fraction

from remat.errors import ProblemError

#: Bytes of each unit, in lower case. A single letter is a power of 1024, as in `dd`, Docker, Java and Slurm.
UNITS = {"": 1, "b": 1}
for power, letter in enumerate("kmgtp", 1):
    UNITS |= {f"{letter}b": 1000**power} | dict.fromkeys((letter, f"{letter}i", f"{letter}ib"), 1024**power)
#: Nanoseconds of each unit of time in graphs, files and descriptions of machines.
NANOSECONDS = {"s": 10**9, "ms": 10**6, "us": 1000, "ns": 1}
#: Seconds of each unit of time as users write it.
TIMES = {
    unit: length
    for units, length in (
        ("ms", 0.001), ("s sec secs second seconds", 1), ("m min mins minute minutes", 60), ("h hr hour hours", 3600),
        ("d day days", 86400),
    )
    for unit in units.split()
}  # fmt: skip
_PART = re.compile(rf"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)\s*({'|'.join(sorted(TIMES, key=len, reverse=True))})", re.ASCII)
_TIME = re.compile(rf"(?:{_PART.pattern}\s*)+", re.ASCII)
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

    `time`: seconds, or numbers with a unit (``"90s"``, ``"5m"``, ``"1h30m"``).

    Raise ValueError if it is neither.

    Examples
    --------
    >>> seconds("90"), seconds("5m"), seconds("1.5 h"), seconds("1h30m"), seconds(2)
    (90.0, 300.0, 5400.0, 5400.0, 2.0)
    """
    text = str(time)[:60].strip().lower()
    if _TIME.fullmatch(text):
        return float(sum(float(number) * TIMES[unit] for number, unit in _PART.findall(text)))
    try:
        return float(time)
    except ValueError:
        raise ValueError(f"seconds (90), or a number with a unit (90s, 5m, 1h30m), not {str(time)[:60]!r}") from None


def share(value: float | str) -> float:
    """Return a share, given as a number or in percent (``"5%"``).

    Raise ValueError if it is neither.

    Examples
    --------
    >>> share("5%"), share(0.05), share("1e-6")
    (0.05, 0.05, 1e-06)
    """
    text = str(value)[:60].strip()
    try:
        return float(text.removesuffix("%")) * (0.01 if text.endswith("%") else 1)
    except ValueError:
        raise ValueError(f"a number (0.05) or a percentage (5%), not {str(value)[:60]!r}") from None


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
