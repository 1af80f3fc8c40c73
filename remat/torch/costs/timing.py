"""Timing of calls."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

#: Calls before the timed ones: they select kernels and fill caches.
WARM_UP = 2


def times(
    call: Callable[[], object], kind: str, seconds: float, *, fewest: int = 1, most: int = 1_000_000
) -> list[float]:
    """Return the nanoseconds of calls, each timed alone.

    Parameters
    ----------
    kind : str
        ``"cpu"`` or ``"cuda"``.
    seconds : float
        Limit for all timed calls together, after which no further call starts.
    fewest, most : int
        Least and largest number of timed calls.
    """
    clock = _gpu_clock if kind == "cuda" else _cpu_clock
    for _ in range(WARM_UP):
        call()
    taken: list[float] = []
    total = 0.0
    while len(taken) < fewest or (total < seconds * 1e9 and len(taken) < most):
        taken.append(clock(call))
        total += taken[-1]
    return taken


def _cpu_clock(call: Callable[[], object]) -> float:
    begin = time.perf_counter_ns()
    out = call()
    taken = time.perf_counter_ns() - begin
    del out  # deallocation is not part of the op's time
    return taken


def _gpu_clock(call: Callable[[], object]) -> float:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    call()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) * 1e6
