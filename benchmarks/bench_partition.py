"""CPU seconds of partitions: ``python benchmarks/bench_partition.py 1000 10000 100000``.

Chains of transformer layers (training graphs) and random layered graphs with about three inputs per op, in the fixed
and the free order. Reading the graph into arrays is not counted.
"""

from __future__ import annotations

from functools import partial

import common

from remat import Problem
from remat.errors import RematError
from remat.graphs.layered import layered
from remat.graphs.zoo.transformers import gpt
from remat.hierarchy import identical_groups
from remat.registry import make, partitioners


def main() -> None:
    table = common.Table("graph:-22", "ops:8", "order:-5", "partitioner:-12", "cpu s:7", "depth:5", "groups:8",
                         "kinds:6", "cpu s:6")  # fmt: skip
    for size in common.parse(str(__doc__), sizes=(1_000, 10_000)).sizes:
        for graph in (gpt(layers=max(1, size // 30)), layered(size, min(0.3, 100 / size), seed=1)):
            for order in ("fixed", "free"):
                problem = Problem(graph, order=order)
                assert problem.graph.num_edges
                for name in sorted(partitioners()):
                    partitioner = make("partitioners", name, None)
                    try:
                        hierarchy, _, used = common.timed(partial(partitioner.partition, problem))
                    except RematError as error:
                        print(f"{graph.name} {order} {name}: {error}")
                        continue
                    kinds, _, alike = common.timed(partial(identical_groups, hierarchy))
                    table.row(graph.name, f"{len(graph.ops):,}", order, name, f"{used:.1f}", hierarchy.depth,
                              sum(1 for _ in hierarchy.groups()), len(kinds), f"{alike:.1f}")  # fmt: skip


if __name__ == "__main__":
    main()
