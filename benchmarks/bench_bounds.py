"""Bounds on real and random graphs: overhead in % (peaks in % of the reference peak) and seconds.

    python benchmarks/bench_bounds.py [--seconds S for all bounds of one problem] [--graphs G,H] [--budgets 90,80,70]
        [--order fixed|free]

Default graphs: training graphs of the zoo, and random layered graphs.
"""

from __future__ import annotations

import common

from remat.bounds import Bound, bounds
from remat.graphs.zoo import TRAINING
from remat.problem import Problem

GRAPHS = ",".join([*TRAINING, "layered@100", "layered@250", "layered@500", "layered@1000"])


def shown(bound: Bound, peak: int) -> str:
    """Return value and seconds of a bound as text."""
    if bound.value is None:
        value = "none" if bound.infeasible else "?"
    else:
        value = f"{100 * bound.value / peak:.1f}" if bound.measure == "peak" else f"{bound.overhead:.4f}"
    return f"{bound.kind.removeprefix('the ')} {value} ({bound.seconds:.2f} s)"


def main() -> None:
    given = common.parse(str(__doc__), seconds=60.0, graphs=GRAPHS, budgets="90,80,70", order="fixed")
    table = common.Table("graph:-14", "budget:6", "bounds:-1")
    for name, graph in common.graphs(given.graphs):
        for budget in given.budgets.split(","):
            found = bounds(Problem(graph, f"{budget}%", given.order), given.seconds, threads=1)
            table.row(name, f"{budget} %", "  ".join(shown(bound, graph.reference_peak) for bound in found))


if __name__ == "__main__":
    main()
