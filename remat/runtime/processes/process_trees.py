"""Process trees: their members and memory."""

from __future__ import annotations

import psutil

#: Seconds between two measurements of a tree's memory, each of which costs milliseconds.
INTERVAL = 0.1
MIB = 2**20


def family(pid: int) -> list[int]:
    """Return the process ids of a process and all its descendants."""
    return [process.pid for process in _family(pid)]


def memory_of(pid: int) -> int:
    """Return the bytes of memory that a process and its descendants hold."""
    return sum(map(_held, _family(pid)))


def too_large(limit: int) -> str:
    """Return the message for a process tree that exceeds its memory limit."""
    return f"it needs more memory than its limit of {limit / MIB:,.0f} MiB"


def cap(pid: int, limit: int | None) -> None:
    """Limit the private memory of a process and of its future children to `limit` bytes each, by the kernel.

    None ends an earlier limit.
    """
    try:
        process = psutil.Process(pid)
        most = process.rlimit(psutil.RLIMIT_DATA)[1]
        process.rlimit(psutil.RLIMIT_DATA, (most if limit is None else limit, most))
    except (psutil.Error, AttributeError, OSError, ValueError):  # it has ended, or the system has no such limit
        return


def _family(pid: int) -> list[psutil.Process]:
    try:
        process = psutil.Process(pid)
        return [process, *process.children(recursive=True)]
    except psutil.Error:
        return []


def _held(process: psutil.Process) -> int:
    try:
        return int(process.memory_info().rss)
    except psutil.Error:
        return 0
