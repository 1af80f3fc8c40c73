"""Order searches, without recomputation: peak, bound, gap, states and time.

    python benchmarks/bench_orders.py [--methods M,N] [--seconds S] [--seed N] [--graphs G,H]
        [--step-seconds T] [--memory-limit BYTES]

``--methods serenity-table`` repeats Table 2 of Serenity: its techniques one by one, with the paper's times, taken on
another machine. Graphs are those of :func:`common.graph`. Kernels are compiled before timing; ``cpu`` is the processor
time of this process.
"""

from __future__ import annotations

import itertools
import os
from dataclasses import replace
from functools import partial

import common

from remat import Problem
from remat.ordering.base import OrderSearch
from remat.ordering.instance import OrderInstance
from remat.ordering.serenity import Serenity, SerenityOptions
from remat.registry import load
from remat.runtime.deadline import Deadline

GRAPHS = (
    "swiftnet-cells-folded,swiftnet-rewritten,swiftnet,swiftnet-folded,darts-cell,randwire@0,randwire@1,randwire@2,"
    "randwire-small,randwire-regular,nasnet-a-mobile,nasnet-a-large,amoebanet-a-mobile,amoebanet-a,darts,"
    "nasnet-a-large-folded,amoebanet-a-folded,darts-folded,rl_g1,rl_g2,rl_g3,rl_g4,layered@5000,layered@20000"
)
#: Times in the paper by graph, divide and conquer, soft budgets.
PAPER = {
    ("swiftnet-cells-folded", True, False): "56.53 s", ("swiftnet-cells-folded", True, True): "37.9 s",
    ("swiftnet-cells-folded", False, False): "N/A", ("swiftnet-rewritten", True, False): "7.29 h",
    ("swiftnet-rewritten", True, True): "111.9 s", ("swiftnet-rewritten", False, False): "N/A",
}  # fmt: skip


def searches(methods: str, graph: str, options: SerenityOptions) -> list[tuple[str, OrderSearch, str]]:
    """Return label, search and the paper's time of each line."""
    found: list[tuple[str, OrderSearch, str]] = []
    for name in methods.split(","):
        if name != "serenity-table":
            found.append((name, load("methods", name)(), ""))
            continue
        for divide, budgets in itertools.product((False, True), repeat=2):
            label = "DP" + " + divide" * divide + " + soft budgets" * budgets
            search = Serenity(replace(options, divide=divide, soft_budgets=budgets))
            found.append((label, search, PAPER.get((graph, divide, budgets), "")))
    return found


def main() -> None:
    given = common.parse(
        str(__doc__), methods="order-portfolio", seconds=60.0, seed=0, graphs=GRAPHS, step_seconds=1.0,
        memory_limit=2 * 2**30,
    )  # fmt: skip
    options = SerenityOptions(step_seconds=given.step_seconds, memory_limit=given.memory_limit)
    print(f"{given.seconds:g} s, seed {given.seed}, one thread, {os.cpu_count()} cores")
    table = common.Table("graph:-22", "search:-26", "ops:6", "reference:15", "peak:15", "bound:15", "gap %:7",
                         "states:12", "s:7", "cpu s:7", "paper:8")  # fmt: skip
    for name, graph in common.graphs(given.graphs):
        instance = OrderInstance.of(Problem(graph, order="free", max_computes=1))
        for label, search, paper in searches(given.methods, name, options):
            search.prepared()
            found, seconds, used = common.timed(
                partial(search.search, instance, deadline=Deadline.after(given.seconds), seed=given.seed)
            )
            assert found.order is None or found.peak == instance.peak_of(found.order)
            gap = "-" if found.peak is None else f"{100 * (found.peak - found.bound) / max(1, found.bound):.2f}"
            table.row(name, label, instance.num_ops, f"{instance.peak_of(instance.reference):,}",
                      "-" if found.peak is None else f"{found.peak:,}", f"{found.bound:,}",
                      "proved" if found.proved else gap, found.states or 0, f"{seconds:.2f}", f"{used:.2f}",
                      paper)  # fmt: skip


if __name__ == "__main__":
    main()
