"""Processes with all that descends from them: who they are, and what they hold."""

from __future__ import annotations

import psutil

#: Seconds between two looks at the memory of a family: each costs milliseconds.
LOOK = 0.1
MIB = 2**20


def family(pid: int) -> list[int]:
    """The process and all its descendants."""
    return [process.pid for process in _family(pid)]


def memory_of(pid: int) -> int:
    """Bytes of memory that a process and its descendants hold."""
    return sum(map(_held, _family(pid)))


def too_large(limit: int) -> str:
    """What is said of a family that was killed for its memory."""
    return f"it needs more memory than its limit of {limit / MIB:,.0f} MiB"


def cap(pid: int, limit: int) -> None:
    """Have the kernel refuse more private memory than `limit` bytes to a process and to those that it will start."""
    try:
        psutil.Process(pid).rlimit(psutil.RLIMIT_DATA, (limit, limit))
    except (psutil.Error, AttributeError, OSError, ValueError):  # it has ended, or the system has no such thing
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
