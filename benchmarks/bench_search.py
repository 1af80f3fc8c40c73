"""The search engine on the published random layered graphs: median certified overhead over seeds, beside what is known.

The graphs are read from the data folder beside the checkout (REMAT_SHARED); without it there is nothing to do.

    python benchmarks/bench_search.py [--order free|fixed] [--seconds S] [--seeds N] [--threads T] [--graphs g1,g2]
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from pathlib import Path

from remat import Problem, read_graph, validate
from remat.backends.base import SolveOptions
from remat.deadline import Deadline
from remat.heuristics.annealing import Annealing
from remat.heuristics.base import HeuristicRun

SHARED = Path(os.environ.get("REMAT_SHARED", Path(__file__).resolve().parents[2] / "shared")) / "data" / "graphs"
#: Overheads in %: FastSA (free order; peaks of four rows miss the budget) and Moccasin (fixed order).
PUBLISHED = {
    "free": {"g1": "0.0 0.3 2.2*", "g2": "0.0 0.0 2.6", "g3": "0.03 2.3 4.8*", "g4": "0.4 2.5 7.4"},
    "fixed": {"g1": "0.8 2.3 -", "g2": "0.9 4.9 -", "g3": "0.7 3.4 -", "g4": "0.7 3.4 -"},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--order", choices=["free", "fixed"], default="free")
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--graphs", default="g1,g2,g3,g4")
    parser.add_argument("--budgets", default="90,80,70")
    given = parser.parse_args()
    annealing = Annealing()
    annealing.prepared(Deadline())
    print(f"{given.order} order, {given.seconds:g} s, {given.threads} threads, {os.cpu_count()} cores")
    for name in given.graphs.split(","):
        if not (path := SHARED / f"rl_{name}.json").exists():
            print(f"{path} is not there")
            continue
        graph = read_graph(path)
        for budget in given.budgets.split(","):
            problem = Problem(graph, f"{budget}%", given.order)
            found, seconds = [], []
            for seed in range(1, given.seeds + 1):
                begun = time.monotonic()
                clock = Deadline.after(given.seconds)
                schedule = annealing.run(problem, HeuristicRun(SolveOptions(clock, seed=seed, threads=given.threads)))
                seconds.append(time.monotonic() - begun)
                certificate = None if schedule is None else validate(graph, schedule, problem.rules)
                fits = certificate is not None and certificate.accepted
                found.append(certificate.overhead if fits else float("inf"))
            shown = " ".join(f"{overhead:.4g}" for overhead in found)
            known = dict(zip(("90", "80", "70"), PUBLISHED[given.order][name].split(), strict=True)).get(budget, "-")
            print(
                f"{name} {budget} %  median {statistics.median(found):.4g}  ({shown})  "
                f"median time {statistics.median(seconds):.1f} s  published {known}",
                flush=True,
            )


if __name__ == "__main__":
    main()
