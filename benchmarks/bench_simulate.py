"""Time to simulate a million computes with implied and explicit frees, and to validate them.

python benchmarks/bench_simulate.py [--computes N] [--pairs N]

"host copies" is the share of processor time that their checks take in a schedule without transfers: the fastest runs of
the simulator and of a copy without those lines, in turns.
"""

from __future__ import annotations

import inspect
import statistics
import time
from collections.abc import Callable
from functools import partial

import common
import numpy as np

from remat import ComputeGraph, layered
from remat.schedule import Schedule, simulate, validate, with_frees


def median_seconds(action: Callable[[], object]) -> float:
    """Return the median time of five calls."""
    return statistics.median(common.timed(action)[1] for _ in range(5))


def without_host_copies() -> Callable[..., object]:
    """Return the simulator without the lines that check for copies on the host."""
    source = inspect.getsource(simulate)
    for lines in (
        "        if tensor in leaving:\n            host.discard_after(tensor, step)\n",
        "            if leaving:\n                host.await_inputs(target, step)\n",
        "        elif kind != FREE:\n            live += host.move(kind, target, step, freed)\n"
        "            memory.append(live)\n",
    ):
        assert lines in source
        source = source.replace(lines, "")
    names = dict(vars(inspect.getmodule(simulate)))
    exec(source, names)
    found: Callable[..., object] = names["simulate"]
    return found


def share_of_host_copies(graph: ComputeGraph, steps: Schedule, pairs: int) -> float:
    """Return the share of processor time in % by which the simulator is slower than without host copies."""
    least = {simulate: float("inf"), without_host_copies(): float("inf")}
    for _ in range(pairs):
        for function, before in least.items():
            begin = time.process_time()
            function(graph, steps)
            least[function] = min(before, time.process_time() - begin)
    whole, without = least.values()
    return 100 * (whole / without - 1)


def main() -> None:
    given = common.parse(str(__doc__), computes=1_000_000, pairs=9)
    computes = given.computes
    graph = layered(1_000, 0.1, seed=1)
    rounds = -(-computes // len(graph.ops))
    schedule = Schedule.of_computes(graph, np.tile(graph.arrays.order, rounds)[:computes])
    explicit, seconds, _ = common.timed(lambda: with_frees(graph, schedule))
    print(f"first call, including the compiler or its cache: {seconds:.2f} s")
    for label, steps in (("frees implied", schedule), ("frees written out", explicit)):
        seconds = median_seconds(partial(simulate, graph, steps))
        print(f"simulate, {label}: {len(steps):,} steps in {seconds:.3f} s")
    for label, steps in (("frees implied", schedule), ("frees written out", explicit)):
        share = share_of_host_copies(graph, steps, given.pairs)
        print(f"host copies, {label}: {share:.1f} % of the simulator's processor time")
    print(f"validate, frees written out: {median_seconds(lambda: validate(graph, explicit)):.3f} s")


if __name__ == "__main__":
    main()
