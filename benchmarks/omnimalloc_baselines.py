"""Allocators of the library `omnimalloc` (F. Peddinghaus, Apache-2.0), as baselines of ``bench_allocation.py``.

They support neither capacities nor several memories. Install the library with ``pip install 'omnimalloc>=1.0,<2'``.
"""

from __future__ import annotations

import importlib.util
from typing import Any

import numpy as np

from remat.allocation import Allocation, AllocationProblem, Allocator
from remat.allocation.base import OnAddresses
from remat.runtime.resources import available_cpus
from remat.runtime.solve_options import DEFAULT_OPTIONS, SolveOptions
from remat.schedule import Addresses

#: `minimalloc` also needs Google's package of that name, which no registry has.
BASELINES = ("minimalloc", "omnimalloc-best-fit", "omnimalloc-greedy", "supermalloc", "telamalloc")
#: Time limit in seconds of a run without a deadline.
LONGEST = 3600.0


class Baseline(Allocator):
    """One of :data:`BASELINES`; the validator checks its answer like any other."""

    def __init__(self, name: str) -> None:
        super().__init__(None)
        self.name = name  # type: ignore[misc]

    def unavailable(self) -> str:  # type: ignore[override]
        packages = ["omnimalloc"] + ["minimalloc"] * (self.name == "minimalloc")
        missing = [package for package in packages if importlib.util.find_spec(package) is None]
        return f"{' and '.join(missing)} not installed" if missing else ""

    def allocate(
        self, problem: AllocationProblem, options: SolveOptions = DEFAULT_OPTIONS, start: Addresses | None = None,
        on_addresses: OnAddresses | None = None,
    ) -> Allocation:  # fmt: skip
        import omnimalloc
        from omnimalloc import allocators

        self.one_memory(problem)
        seconds, threads = min(options.deadline.remaining, LONGEST), options.threads or available_cpus()
        omnimalloc.set_max_threads(threads)
        allocator: Any = {
            "minimalloc": lambda: allocators.MinimallocAllocator(timeout=seconds),
            "omnimalloc-best-fit": allocators.BestFitAllocator,
            "omnimalloc-greedy": lambda: allocators.GreedyByAllAllocator(num_threads=threads),
            "supermalloc": lambda: allocators.SupermallocAllocator(timeout=seconds, num_threads=threads),
            "telamalloc": lambda: allocators.TelamallocAllocator(
                options.seed, max_backtracks=2**31 - 1, timeout=seconds
            ),
        }[self.name]()
        held = np.flatnonzero(problem.sizes > 0)
        columns = (held, problem.compressed.size[held], problem.buffers.lower[held], problem.buffers.upper[held])
        placed = allocator.allocate(tuple(
            omnimalloc.Allocation(id=k, size=size, start=lower, end=upper)
            for k, size, lower, upper in zip(*(column.tolist() for column in columns), strict=True)
        ))  # fmt: skip
        offset = np.zeros(len(problem.buffers), dtype=np.int64)
        for found in placed:
            offset[found.id] = found.offset * problem.compressed.unit
        return self.found(problem, problem.addresses(offset, source=self.name))
