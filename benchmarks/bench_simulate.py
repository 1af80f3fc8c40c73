"""Time to simulate a million computes with implied and explicit frees, and to validate them.

python benchmarks/bench_simulate.py [--computes N]
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from functools import partial

import common
import numpy as np

from remat import layered
from remat.schedule import Schedule, simulate, validate, with_frees


def median_seconds(action: Callable[[], object]) -> float:
    """Return the median time of five calls."""
    return statistics.median(common.timed(action)[1] for _ in range(5))


def main() -> None:
    computes = common.parse(str(__doc__), computes=1_000_000).computes
    graph = layered(1_000, 0.1, seed=1)
    rounds = -(-computes // len(graph.ops))
    schedule = Schedule.of_computes(graph, np.tile(graph.arrays.order, rounds)[:computes])
    explicit, seconds, _ = common.timed(lambda: with_frees(graph, schedule))
    print(f"first call, including the compiler or its cache: {seconds:.2f} s")
    for label, steps in (("frees implied", schedule), ("frees written out", explicit)):
        seconds = median_seconds(partial(simulate, graph, steps))
        print(f"simulate, {label}: {len(steps):,} steps in {seconds:.3f} s")
    print(f"validate, frees written out: {median_seconds(lambda: validate(graph, explicit)):.3f} s")


if __name__ == "__main__":
    main()
