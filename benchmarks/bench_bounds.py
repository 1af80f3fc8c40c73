"""Bounds on real and random graphs: overhead in % (peaks in % of the reference peak) and seconds, each.

Run: python benchmarks/bench_bounds.py [seconds for all bounds of one problem] [graph file or zoo name] ...

Without graphs: training graphs of the zoo, and the random layered graphs of the tests.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from remat.bounds import Bound, bounds
from remat.graphs import ComputeGraph, layered, read_graph
from remat.graphs.zoo import TRAINING, ZOO
from remat.problem import Problem

#: Columns, and the bound that each shows.
COLUMNS = {
    "structural": "the structural bound",
    "cut": "the cut bound",
    "joint": "the joint bound",
    "IR": "the interval relaxation",
    "IR+": "the interval relaxation with requests",
    "stages": "the stage bound",
}


def graphs(names: list[str]) -> Iterator[tuple[str, ComputeGraph]]:
    """The graphs to be bounded, with short names."""
    if names:
        yield from ((name.rpartition("/")[2], ZOO[name]() if name in ZOO else read_graph(name)) for name in names)
        return
    yield from ((name, make()) for name, make in TRAINING.items())
    for n, width, seed in [(100, 0.27, 446), (250, 0.43, 1789), (500, 0.36, 1263), (1000, 0.31, 2085)]:
        yield f"layered {n}", layered(n, width, seed)


def shown(bound: Bound | None, peak: int) -> str:
    """Value and seconds of a bound."""
    if bound is None:
        return f"{'':16}"
    if bound.value is None:
        value = "none" if bound.infeasible else "?"
    else:
        value = f"{100 * bound.value / peak:.1f}" if bound.measure == "peak" else f"{bound.overhead:.4f}"
    return f"{value:>9} {bound.seconds:>6.2f}"


def main(seconds: float, names: list[str]) -> None:
    """Print a table."""
    print(f"{'graph':13} {'budget':>6} " + " ".join(f"{name:>16}" for name in COLUMNS))
    for name, graph in graphs(names):
        for budget in ("90%", "80%", "70%"):
            found = {bound.kind: bound for bound in bounds(Problem(graph, budget), seconds, threads=1)}
            row = [shown(found.get(kind), graph.reference_peak) for kind in COLUMNS.values()]
            print(f"{name:13} {budget:>6} " + " ".join(row), flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("seconds", nargs="?", type=float, default=60.0, help="for all bounds of one problem")
    parser.add_argument("names", nargs="*", metavar="graph", help="graph files or zoo names")
    given = parser.parse_args()
    main(given.seconds, given.names)
