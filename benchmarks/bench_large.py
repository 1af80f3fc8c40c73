"""Time, memory and overhead of drops on random layered graphs: ``python benchmarks/bench_large.py 1000 10000 100000``.

The width shrinks with the number of ops, so that ops have some eight inputs each.
"""

from __future__ import annotations

import argparse
import resource
import time

from remat import Problem
from remat.backends.base import SolveOptions
from remat.deadline import Deadline
from remat.graphs.layered import layered
from remat.heuristics.base import HeuristicRun
from remat.heuristics.drops import Drops
from remat.schedule.validate import validate

WIDTHS = {1_000: 0.31, 10_000: 0.05, 100_000: 0.01}


def main(sizes: list[int]) -> None:
    """One line for each size."""
    drops = Drops()
    drops.prepared(Deadline())
    for n in sizes:
        problem = Problem(layered(n, WIDTHS.get(n, min(0.3, 1000 / n)), seed=1), "80%")
        began = time.process_time()
        schedule = drops.run(problem, HeuristicRun(SolveOptions(Deadline.after(300), threads=1)))
        seconds = time.process_time() - began
        assert schedule is not None
        certificate = validate(problem.graph, schedule, problem.rules)
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(
            f"{n:8,} ops {problem.graph.num_edges:9,} edges: {certificate.verdict}, "
            f"overhead {certificate.overhead:.2f} %, "
            f"{seconds:.1f} s of one core, {memory:,.0f} MiB"
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sizes", nargs="*", type=int, default=[1_000, 10_000], help="numbers of ops")
    main(parser.parse_args().sizes)
