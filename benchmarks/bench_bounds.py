"""Bounds on real and random graphs: overhead in % (peaks in % of the reference peak) and seconds, each.

Run: python benchmarks/bench_bounds.py [seconds for all bounds of one problem]
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

from remat.bounds import Bound, bounds
from remat.graphs import ComputeGraph, layered
from remat.graphs.zoo import ZOO
from remat.problem import Problem


def graphs() -> Iterator[tuple[str, ComputeGraph]]:
    """Training graphs, and the random layered graphs of the tests."""
    yield from ((name, make()) for name, make in ZOO.items())
    for n, width, seed in [(100, 0.27, 446), (250, 0.43, 1789), (500, 0.36, 1263), (1000, 0.31, 2085)]:
        yield f"layered {n}", layered(n, width, seed)


def shown(bound: Bound, peak: int) -> str:
    """Value and seconds of a bound."""
    if bound.value is None:
        value = "none" if bound.infeasible else "?"
    else:
        value = f"{100 * bound.value / peak:.1f}" if bound.measure == "peak" else f"{bound.overhead:.4f}"
    return f"{value:>9} {bound.seconds:>6.2f}"


def main(seconds: float) -> None:
    """Print a table."""
    names = ["structural", "cut", "interval", "with requests", "joint"]
    print(f"{'graph':13} {'budget':>6} " + " ".join(f"{name:>16}" for name in names))
    for name, graph in graphs():
        for budget in ("90%", "80%", "70%"):
            found = bounds(Problem(graph, budget), seconds, threads=1)
            print(f"{name:13} {budget:>6} " + " ".join(shown(bound, graph.reference_peak) for bound in found))


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 60)
