"""Processors and memory available to this process."""

from __future__ import annotations

import math
import os
import platform
from collections.abc import Iterator
from functools import cache
from pathlib import Path

_GROUPS = Path("/sys/fs/cgroup")
_PROC = Path("/proc")


def available_cpus() -> int:
    """Return the number of processors this process may use, at least 1: by affinity and quota of control groups.

    A quota of one and a half processors counts as one.

    Examples
    --------
    >>> 1 <= available_cpus() <= (os.cpu_count() or 1)
    True
    """
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    for folder in _folders("cpu"):
        words = _words(folder / "cpu.max") or [
            *_words(folder / "cpu.cfs_quota_us"),
            *_words(folder / "cpu.cfs_period_us"),
        ]
        if len(words) == 2 and all(word.isdigit() for word in words) and int(words[1]):  # "max" and -1: no quota
            cpus = min(cpus, int(words[0]) // int(words[1]))
    return max(1, cpus)


@cache
def processor_name() -> str:
    """Return the name of the processor, as the system reports it."""
    for line in _lines(_PROC / "cpuinfo"):
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def available_memory(limit: int | None = None) -> float:
    """Return the bytes that this process can still allocate; infinite if unknown.

    The result is the least of the free memory of the machine, the rest of its control groups' limits, the rest of its
    limit of address space, and `limit`.

    Examples
    --------
    >>> available_memory(1000) <= 1000
    True
    """
    left = math.inf if limit is None else float(limit)
    for line in _lines(_PROC / "meminfo"):
        if line.startswith("MemAvailable:"):
            left = min(left, 1024 * int(line.split()[1]))
    for folder in _folders("memory"):
        for most, used in (("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes")):
            bound = (_words(folder / most) or [""])[0]
            now = (_words(folder / used) or [""])[0] if bound.isdigit() else ""
            if now.isdigit() and int(bound) - int(now) < left:
                left = min(left, int(bound) - int(now) + _reclaimable(folder))
    return max(0.0, min(left, _address_space()))


def used_memory() -> int | None:
    """Return the bytes of physical memory that this process uses; None if unknown.

    Examples
    --------
    >>> (used_memory() or 2**30) > 2**20
    True
    """
    pages = _words(_PROC / "self" / "statm")
    return int(pages[1]) * os.sysconf("SC_PAGE_SIZE") if len(pages) > 1 and pages[1].isdigit() else None


def _address_space() -> float:
    """Return the bytes left under the limit of address space (``ulimit -v``)."""
    try:
        import resource
    except ImportError:  # not on Windows
        return math.inf
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    if soft == resource.RLIM_INFINITY:
        return math.inf
    words = _words(_PROC / "self" / "statm")
    return soft - (int(words[0]) * resource.getpagesize() if words else 0)


def _reclaimable(folder: Path) -> int:
    """Return the bytes of page cache in a control group that the kernel reclaims on demand."""
    fields = dict(line.split()[:2] for line in _lines(folder / "memory.stat") if len(line.split()) >= 2)
    return int(fields.get("inactive_file", fields.get("total_inactive_file", 0)))


def _folders(controller: str) -> Iterator[Path]:
    """Yield the folder of this process's control group and those of its ancestors, in either version."""
    for line in _lines(_PROC / "self" / "cgroup"):
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number != "0" and controller not in controllers.split(","):
            continue
        root = _GROUPS if number == "0" else _GROUPS / controller
        folder = root / path.lstrip("/")
        yield from (f for f in (folder, *folder.parents) if f == root or root in f.parents)


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return []


def _words(path: Path) -> list[str]:
    return " ".join(_lines(path)).split()
