"""Times of the transfers of tensors, and the tensors that can be moved."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from remat.problem import Problem
from remat.runtime.arrays import Bool, Int
from remat.schedule import Machine


class TransferTimes(NamedTuple):
    """Times of transfers in cost units, by tensor; 0 without a link."""

    write: Int
    read: Int
    movable: Bool
    """Tensors that can be moved: no graph inputs, accumulation buffers or empty tensors."""

    @classmethod
    def of(cls, problem: Problem, machine: Machine) -> TransferTimes:
        """Return the times of a problem's tensors."""
        arrays, times = problem.graph.arrays, machine.transfer_times(problem.graph)
        linked = np.array([None not in pair for pair in zip(*times, strict=True)], dtype=np.bool_)
        movable = linked & (arrays.producers.counts == 1) & (arrays.size > 0)
        if machine.host is not None:
            movable &= arrays.size <= machine.host
        write, read = (np.array([time or 0 for time in some], dtype=np.int64) for some in times)
        return cls(write, read, movable)
