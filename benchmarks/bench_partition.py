"""CPU seconds of partitions: ``python benchmarks/bench_partition.py 1000 10000 100000``.

Chains of transformer layers (training graphs) and random layered graphs, whose width shrinks so that ops have some
three inputs each, with the fixed and the free order. Reading the graph into arrays is not counted.
"""

from __future__ import annotations

import argparse
import time

from remat import Problem
from remat.errors import RematError
from remat.graphs.graph import ComputeGraph
from remat.graphs.layered import layered
from remat.graphs.zoo.gpt import gpt
from remat.hierarchy import identical_groups
from remat.registry import make, partitioners

WIDTHS = {1_000: 0.09, 10_000: 0.01, 100_000: 0.001}


def graphs(size: int) -> list[ComputeGraph]:
    """One of each family with about so many ops."""
    return [gpt(layers=max(1, size // 30)), layered(size, WIDTHS.get(size, 100 / size), seed=1)]


def main(sizes: list[int]) -> None:
    """One line for each graph, order and partitioner."""
    for size in sizes:
        for graph in graphs(size):
            for order in ("fixed", "free"):
                problem = Problem(graph, order=order)
                edges = problem.graph.num_edges
                for name in sorted(partitioners()):
                    began = time.process_time()
                    try:
                        hierarchy = make("partitioners", name, None).partition(problem)
                    except RematError as error:
                        print(f"{graph.name} {order} {name}: {error}", flush=True)
                        continue
                    seconds = time.process_time() - began
                    began = time.process_time()
                    classes = len(identical_groups(hierarchy))
                    alike = time.process_time() - began
                    groups = sum(1 for _ in hierarchy.groups())
                    print(
                        f"{len(graph.ops):8,} ops {edges:9,} edges {order:5} {name:12} {seconds:6.1f} s, "
                        f"depth {hierarchy.depth}, {groups:6,} groups of {classes:6,} kinds "
                        f"({alike:.1f} s), {graph.name}",
                        flush=True,
                    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sizes", nargs="*", type=int, default=[1_000, 10_000], help="numbers of ops")
    main(parser.parse_args().sizes)
