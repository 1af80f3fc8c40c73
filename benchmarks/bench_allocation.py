"""Addresses: seconds and arena of every allocator on tables, schedules and reference orders.

Allocators are those that are registered, and the baselines of ``omnimalloc_baselines.py``.

Run: python benchmarks/bench_allocation.py [seconds for each] [capacity: 1MiB, or -] [table.csv, graph or zoo name] ...

Without names: graphs of the zoo in their reference order. Each allocator is asked for the least arena, or, with a
capacity, for any addresses within it.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from omnimalloc_baselines import BASELINES, Baseline

from remat.allocation import AllocationProblem, allocate
from remat.errors import RematError
from remat.graphs.io import load_graph
from remat.io.sizes import memory_bytes
from remat.registry import allocators
from remat.schedule import Buffers, Memory, Schedule, check_addresses, schedule_buffers
from remat.schedule.buffer_tables import read_table

NAMES = ("swiftnet-folded", "darts", "resnet50", "unet", "nasnet-a-large")


def buffers_of(name: str) -> Buffers:
    """Of a table, or of the reference order of a graph."""
    if name.endswith(".csv"):
        return read_table(name)[0]
    graph = load_graph(name)
    return schedule_buffers(graph, Schedule.reference(graph))


def main(seconds: float, capacity: str, names: list[str]) -> None:
    """Print a table."""
    memory = Memory(capacity=None if capacity == "-" else memory_bytes(capacity))
    print(f"{'buffers of':28} {'count':>6} {'allocator':20} {'arena':>15} {'above peak':>10} {'proved':>6} {'s':>7}")
    for name in names:
        problem = AllocationProblem(buffers_of(name), (memory,))
        peak = problem.buffers.peak()
        for method in [*sorted(allocators()), *BASELINES]:
            began = time.monotonic()
            try:
                found = allocate(problem, Baseline(method) if method in BASELINES else method, time_limit=seconds)
            except RematError as error:
                print(f"{Path(name).name:28} {len(problem.buffers):>6} {method:20} {str(error)[:60]}")
                continue
            spent = time.monotonic() - began
            arena, above = "none", ""
            if found.addresses is not None:
                assert check_addresses(found.addresses, problem.buffers).accepted
                arena, above = f"{found.addresses.arena:,}", f"{100 * (found.addresses.arena / peak - 1):.2f} %"
            proved = "yes" if found.proved else "no"
            row = f"{Path(name).name:28} {len(problem.buffers):>6} {method:20} {arena:>15} {above:>10} {proved:>6}"
            print(f"{row} {spent:>7.2f}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("seconds", nargs="?", type=float, default=20.0, help="for each")
    parser.add_argument("capacity", nargs="?", default="-")
    parser.add_argument("names", nargs="*", default=list(NAMES))
    given = parser.parse_args()
    main(given.seconds, given.capacity, given.names)
