"""The default method beside its steps, each given the whole time: overheads, and how far it is behind the best of them.

    python benchmarks/bench_auto.py [--seconds S] [--seeds N] [--sizes 100,1000,3000,10000,20000] [--budgets 90,80,70]
                                    [--orders fixed,free] [--steps drops,annealing,lns]

One line for each size, order and budget, with medians over the seeds, of random layered graphs and of training graphs
of the zoo (``--zoo resnet50,unet``; others are read as files). The ratio is (overhead of auto) / (least overhead of a
step); 1.1 is the most that is wanted. With ``--windows blocks,min-cut`` it is large neighbourhood search alone, from
the schedule of drops, without and with the groups of these partitioners as neighbourhoods. Runs have one thread and
follow each other in one process: on a busy machine compare within a line only.
"""

from __future__ import annotations

import argparse
import statistics
import time

from remat import Problem, layered, read_graph, solve
from remat.backends.base import SolveOptions
from remat.graphs import ComputeGraph
from remat.graphs.zoo import ZOO
from remat.heuristics.lns import LnsOptions


def measure(problem: Problem, method: str, seconds: float, seed: int) -> tuple[float, float, float]:
    """Overhead in % (infinite without a schedule), seconds to the first schedule, and seconds beyond the limit."""
    began = time.monotonic()
    result = solve(problem, method, stop=seconds, options=SolveOptions(threads=1, seed=seed))
    late = time.monotonic() - began - seconds
    first = next((point.time for point in result.incumbents if point.objective is not None), float("inf"))
    return (float("inf") if result.certificate is None else result.certificate.overhead), first, late


def compare_windows(problem: Problem, partitioners: tuple[str, ...], seconds: float, seeds: int) -> str:
    """Overheads in % of large neighbourhood search from the schedule of drops, without and with windows."""
    start = solve(problem, "drops", stop=seconds, options=SolveOptions(threads=1))
    if start.certificate is None:
        return "drops have no schedule"
    shown = [f"drops {start.certificate.overhead:.4g}"]
    for names in ((), partitioners):
        found = []
        for seed in range(seeds):
            call = SolveOptions(threads=1, seed=seed)
            result = solve(
                problem, "lns", method_options=LnsOptions(partitioners=names), warm_start=start.schedule,
                stop=seconds, options=call,
            )  # fmt: skip
            found.append(float("inf") if result.certificate is None else result.certificate.overhead)
        each = " ".join(f"{overhead:.4g}" for overhead in found)
        shown.append(f"{'+'.join(names) or 'lns'} {statistics.median(found):.4g} ({each})")
    return "  ".join(shown)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--sizes", default="100,1000,3000")
    parser.add_argument("--zoo", default="")
    parser.add_argument("--budgets", default="90,70")
    parser.add_argument("--orders", default="fixed,free")
    parser.add_argument("--steps", default="drops,annealing,lns")
    parser.add_argument("--windows", default="")
    given = parser.parse_args()
    graphs: list[tuple[str, ComputeGraph]] = [
        (f"layered {size}", layered(size, min(0.3, 500 / size), seed=1))
        for size in map(int, filter(None, given.sizes.split(",")))
    ]
    graphs += [(name, ZOO[name]() if name in ZOO else read_graph(name)) for name in filter(None, given.zoo.split(","))]
    ratios = []
    for name, graph in graphs:
        for order in given.orders.split(","):
            for budget in given.budgets.split(","):
                problem = Problem(graph, f"{budget}%", order)
                if given.windows:
                    found = compare_windows(problem, tuple(given.windows.split(",")), given.seconds, given.seeds)
                    print(f"{name} {order} {budget} %: {found}", flush=True)
                    continue
                medians = {}
                for method in ["auto", *filter(None, given.steps.split(","))]:
                    runs = [measure(problem, method, given.seconds, seed) for seed in range(given.seeds)]
                    medians[method] = statistics.median(run[0] for run in runs)
                    if method == "auto":
                        first, late = (max(run[i] for run in runs) for i in (1, 2))
                least = min((medians[method] for method in medians if method != "auto"), default=float("inf"))
                ratio = medians["auto"] / least if 0 < least < float("inf") else float(medians["auto"] > least)
                ratios.append(ratio)
                shown = "  ".join(f"{method} {overhead:.4g}" for method, overhead in medians.items())
                print(
                    f"{name} {order} {budget} %: {shown}  ratio {ratio:.3f}  first {first:.1f} s  late {late:.1f} s",
                    flush=True,
                )
    if ratios:
        print(f"median ratio {statistics.median(ratios):.3f}, worst {max(ratios):.3f}")


if __name__ == "__main__":
    main()
