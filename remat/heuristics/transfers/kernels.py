"""Compiled kernels of the searches with a host."""

from __future__ import annotations

import numpy as np

from remat.graphs.families import unit_chain
from remat.problem import Problem
from remat.runtime.compiled import KernelSet
from remat.runtime.deadline import Deadline


def _example() -> None:
    from remat.heuristics.transfers import search_kernel
    from remat.heuristics.transfers.state import State
    from remat.heuristics.transfers.walks import Annealer

    state = State(Problem(unit_chain(4), 4))
    state.descend(1.0, 1.0, Deadline())
    search_kernel.undo_changes(state.net, state.choices, state.prices)
    state.take_back(Deadline())
    Annealer(state, 0).batch(np.array([1.0, 1.0, 0.5, 0.0]), 4)


#: Kernels of all searches with a host.
KERNELS = KernelSet("transfers", __name__, _example)
