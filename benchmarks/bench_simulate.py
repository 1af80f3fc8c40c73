"""Seconds to simulate a schedule of a million computes: implied frees, the same with frees written out, and validation.

Run: python benchmarks/bench_simulate.py [computes]
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import numpy as np

from remat.graphs import ComputeGraph, Op, Tensor
from remat.schedule import Schedule, simulate, validate, with_frees


def layered(layers: int, width: int, readers: int, seed: int) -> ComputeGraph:
    """Ops that read `readers` random tensors of the layer before."""
    random = np.random.default_rng(seed)
    tensors = [Tensor(f"t{k}", int(s)) for k, s in enumerate(random.integers(1, 1000, layers * width))]
    ops = []
    for k in range(layers * width):
        layer = k // width
        read = random.choice(width, readers, replace=False) + (layer - 1) * width if layer else ()
        ops.append(Op(f"o{k}", tuple(f"t{r}" for r in read), (f"t{k}",), cost=int(random.integers(1, 100))))
    return ComputeGraph("layered", tensors, ops)


def median_seconds(action: Callable[[], object], repeats: int = 5) -> float:
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        action()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("computes", nargs="?", type=int, default=1_000_000)
    computes = parser.parse_args().computes
    graph = layered(layers=50, width=20, readers=4, seed=1)
    rounds = -(-computes // len(graph.ops))
    schedule = Schedule.of_computes(graph, np.tile(graph.arrays.order, rounds)[:computes])
    start = time.perf_counter()
    explicit = with_frees(graph, schedule)
    print(f"first call, compiler or its cache included: {time.perf_counter() - start:.2f} s")
    for what, steps in (("frees implied", schedule), ("frees written out", explicit)):
        seconds = median_seconds(lambda steps=steps: simulate(graph, steps))
        print(f"simulate, {what}: {len(steps):,} steps in {seconds:.3f} s")
    print(f"validate, frees written out: {median_seconds(lambda: validate(graph, explicit)):.3f} s")


if __name__ == "__main__":
    main()
