"""The least peak of whole networks, each op computed once: peak, bound, gap, states and time of a search for orders.

    python benchmarks/bench_ordering.py [--method M] [--seconds S] [--seed N] [--graphs G,H]

Graphs are names of the zoo, files (of the data folder beside the checkout, REMAT_SHARED, too), ``swiftnet-cells`` with
concatenations folded or, as ``swiftnet-rewritten``, with convolutions of three parts or more as sums of partial ones,
``randwire:SEED`` (one stage of 32 nodes for CIFAR-10) and ``layered:OPS`` (random layered graphs). Compiled code is
ready before the clock starts; ``cpu`` is what this process has used of the processor.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path

from remat import ComputeGraph, Problem, read_graph
from remat.deadline import Deadline
from remat.graphs import layered
from remat.graphs.io import load_graph
from remat.graphs.rewriting import RewriteOptions, rewrite_graph
from remat.graphs.zoo import randwire, swiftnet_cells
from remat.ordering.base import OrderSearch
from remat.ordering.instance import OrderInstance
from remat.registry import load

SHARED = Path(os.environ.get("REMAT_SHARED", Path(__file__).resolve().parents[2] / "shared")) / "data" / "graphs"
GRAPHS = (
    "swiftnet-cells-folded,swiftnet-rewritten,swiftnet,swiftnet-folded,darts-cell,randwire:0,randwire:1,randwire:2,"
    "randwire-small,randwire-regular,nasnet-a-mobile,nasnet-a-large,amoebanet-a-mobile,amoebanet-a,darts,"
    "nasnet-a-large-folded,amoebanet-a-folded,darts-folded,rl_g1,rl_g2,rl_g3,rl_g4,layered:5000,layered:20000"
)


def named_graph(name: str) -> ComputeGraph | None:
    kind, _, number = name.partition(":")
    if kind == "layered":
        return layered(int(number), 0.3, 1)
    if kind == "randwire" and number:
        return randwire(regime="cifar10", seed=int(number))
    if name == "swiftnet-rewritten":
        return rewrite_graph(swiftnet_cells(), RewriteOptions(min_parts=3)).graph
    if (path := SHARED / f"{name}.json").exists():
        return read_graph(path)
    return None if name.startswith("rl_") else load_graph(name)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--method", default="order-portfolio")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--graphs", default=GRAPHS)
    given = parser.parse_args()
    search: OrderSearch = load("methods", given.method)()
    search.prepared()
    print(f"{given.method}, {given.seconds:g} s, seed {given.seed}, one thread, {os.cpu_count()} cores")
    heads = (
        ("ops", 6),
        ("reference", 16),
        ("peak", 16),
        ("bound", 16),
        ("gap %", 8),
        ("states", 12),
        ("s", 8),
        ("cpu s", 8),
    )
    print(f"{'graph':<24}" + "".join(f"{head:>{width}}" for head, width in heads))
    for name in given.graphs.split(","):
        graph = named_graph(name)
        if graph is None:
            print(f"{name:<24} is not there")
            continue
        instance = OrderInstance.of(Problem(graph, order="free", max_computes=1))
        begun, used = time.monotonic(), time.process_time()
        found = search.search(instance, deadline=Deadline.after(given.seconds), seed=given.seed)
        seconds, used = time.monotonic() - begun, time.process_time() - used
        assert found.order is not None
        assert found.peak == instance.peak_of(found.order)
        reference, gap = instance.peak_of(instance.reference), 100 * (found.peak - found.bound) / max(1, found.bound)
        print(
            f"{name:<24}{instance.num_ops:>6}{reference:>16,}{found.peak:>16,}{found.bound:>16,}"
            f"{'proved' if found.proved else f'{gap:.2f}':>8}{found.states or 0:>12,}{seconds:>8.2f}{used:>8.2f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
