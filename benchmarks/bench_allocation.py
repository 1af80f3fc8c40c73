"""Addresses: time and arena of every allocator on tables, schedules and reference orders.

    python benchmarks/bench_allocation.py [--seconds S] [--capacity 1MiB] [table.csv, graph, dense:SEED:COUNT] ...

Allocators are the registered ones and the baselines of ``omnimalloc_baselines.py``. Default names: graphs of the zoo in
their reference order. ``dense:5:300`` is 300 buffers that fill 1,024 bytes at every step
(`remat.testing.allocator_checks.dense_buffers`). Each allocator searches for the least arena, or, with a capacity, for
any addresses within it. The last column is processor time.
"""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path

import common
from omnimalloc_baselines import BASELINES, Baseline

from remat.allocation import AllocationProblem, allocate
from remat.errors import RematError
from remat.graphs.io import load_graph
from remat.registry import allocators
from remat.runtime.sizes import memory_bytes
from remat.schedule import Buffers, Memory, Schedule, check_addresses, schedule_buffers
from remat.schedule.buffer_tables import read_table
from remat.testing.allocator_checks import dense_buffers

NAMES = ("swiftnet-folded", "darts", "resnet50", "unet", "nasnet-a-large")


def buffers_of(name: str) -> Buffers:
    """Return the buffers of a table, of a dense packing, or of the reference order of a graph."""
    if name.startswith("dense:"):
        return dense_buffers(*map(int, name.split(":")[1:]))
    if name.endswith(".csv"):
        return read_table(name)[0]
    graph = load_graph(name)
    return schedule_buffers(graph, Schedule.reference(graph))


def main() -> None:
    given = common.parse(str(__doc__), names=NAMES, seconds=20.0, capacity="")
    memory = Memory(capacity=memory_bytes(given.capacity) if given.capacity else None)
    table = common.Table(
        "buffers of:-28", "count:6", "allocator:-20", "arena:15", "above peak:10", "proved:6", "s:7", "cpu s:7"
    )
    for name in given.names:
        problem = AllocationProblem(buffers_of(name), (memory,))
        line, peak = (Path(name).name, len(problem.buffers)), problem.buffers.peak()
        for method in [*sorted(allocators()), *BASELINES]:
            chosen = Baseline(method) if method in BASELINES else method
            began = time.process_time()
            try:
                found, spent, _ = common.timed(partial(allocate, problem, chosen, time_limit=given.seconds))
            except RematError as error:
                table.row(*line, method, str(error)[:60], "", "", "", "")
                continue
            arena, above = "none", ""
            if found.addresses is not None:
                assert check_addresses(found.addresses, problem.buffers).accepted
                arena, above = f"{found.addresses.arena:,}", f"{100 * (found.addresses.arena / peak - 1):.2f} %"
            times = f"{spent:.2f}", f"{time.process_time() - began:.2f}"
            table.row(*line, method, arena, above, "yes" if found.proved else "no", *times)


if __name__ == "__main__":
    main()
