"""Times of transfers on the machine of a problem, and the tensors that can be moved."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from remat.problem.problem import Problem
from remat.runtime.arrays import Bool, Int


class TransferTimes(NamedTuple):
    """Times of transfers in cost units, by tensor; 0 without a link."""

    write: Int
    read: Int
    linked: Bool
    """Tensors with links in both directions; none without a machine."""
    movable: Bool
    """Those of them that formulations move: no graph inputs, accumulation buffers or empty tensors."""

    @classmethod
    def of(cls, problem: Problem) -> TransferTimes:
        """Return the times of a problem's tensors."""
        arrays, machine = problem.graph.arrays, problem.machine
        if machine is None:
            nothing, none = np.zeros_like(arrays.size), np.zeros_like(arrays.is_input)
            return cls(nothing, nothing, none, none)
        times = machine.transfer_times(problem.graph)
        linked = np.array([None not in pair for pair in zip(*times, strict=True)], dtype=np.bool_)
        movable = linked & (arrays.producers.counts == 1) & (arrays.size > 0)
        if machine.host is not None:
            movable &= arrays.size <= machine.host
        write, read = (np.array([time or 0 for time in some], dtype=np.int64) for some in times)
        return cls(write, read, linked, movable)
