"""Published instances: status, overhead, bound and time of both formulations, one after the other.

The random layered graphs are read from the data folder beside the checkout (REMAT_SHARED) where it is there.

    python benchmarks/bench_published.py [seconds per run, default 120]
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path

from remat import Problem, read_graph, solve
from remat.graphs.zoo import fcn8, resnet50, unet, vgg16

SHARED = Path(os.environ.get("REMAT_SHARED", Path(__file__).resolve().parents[2] / "shared")) / "data" / "graphs"


def runs():
    for budget in ("90%", "80%", "65%"):
        yield "fcn8", fcn8(), budget, "checkmate", "highs", None
        yield "fcn8", fcn8(), budget, "retention-intervals", "cp-sat", 2
    yield "vgg16", vgg16(), "90%", "checkmate", "highs", None
    yield "vgg16", vgg16(), "80%", "checkmate", "highs", None
    yield "unet", unet(), "80%", "retention-intervals", "cp-sat", 2
    yield "resnet50", resnet50(), "80%", "retention-intervals", "cp-sat", 2
    for name, budgets in (("rl_g1", ("90%", "80%")), ("rl_g2", ("90%", "80%"))):
        if (path := SHARED / f"{name}.json").exists():
            for budget in budgets:
                yield name, read_graph(path), budget, "retention-intervals", "cp-sat", 2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("seconds", nargs="?", type=float, default=120.0, help="per run")
    limit = parser.parse_args().seconds
    print(f"limit {limit:g} s, {os.cpu_count()} cores")
    row = "{:9} {:6} {:30} {:10} {:>10} {:>9} {:>7} {:>7}"
    print(row.format("graph", "budget", "method", "status", "overhead %", "bound %", "best s", "all s"))
    for name, graph, budget, method, backend, copies in runs():
        begun = time.monotonic()
        result = solve(Problem(graph, budget, max_computes=copies), method, backend, stop=limit)
        total = time.monotonic() - begun
        if result.certificate is None:
            overhead = bound = best = "-"
        else:
            overhead = f"{result.certificate.overhead:.4f}"
            bound = f"{100 * (result.bound / graph.base_cost - 1):.4f}"
            best = f"{next(p.time for p in result.incumbents if p.objective == result.objective):.1f}"
        way = f"{method}/{backend}"
        print(
            f"{name:9} {budget:6} {way:30} {result.status!s:10} {overhead:>10} {bound:>9} {best:>7} {total:7.1f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
