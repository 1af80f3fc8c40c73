"""The first solve on a fresh install beside the second: walls, processor seconds and what came of both.

    python benchmarks/bench_first_run.py [--graph resnet50] [--budget 80%] [--time-limit 20] [--repeat 3]

Each pair has a cache folder of its own (``NUMBA_CACHE_DIR``); before the second run everything is compiled. Walls are
of whole processes. On a machine that is shared compare the two of one pair, and the processor seconds, which are those
of the solve itself and not of the process that compiles.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time

REMAT = (sys.executable, "-c", "import sys, remat.cli; sys.exit(remat.cli.main())")


def run(words: list[str], cache: str) -> tuple[float, float, dict[str, object]]:
    """Wall and processor seconds of one solve, and its answer."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    done = subprocess.run(
        [*REMAT, "solve", *words, "--json", "-q"],
        env={**os.environ, "NUMBA_CACHE_DIR": cache}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    wall, after = time.monotonic() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    processor = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return wall, processor, json.loads(done.stdout)


def main() -> None:
    """Run pairs and print them, and the medians."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--graph", default="resnet50")
    parser.add_argument("--budget", default="80%")
    parser.add_argument("--time-limit", default="20")
    parser.add_argument("--repeat", type=int, default=3)
    options = parser.parse_args()
    words = [options.graph, "--budget", options.budget, "--time-limit", options.time_limit]
    walls: dict[str, list[float]] = {"cold": [], "warm": []}
    for _ in range(options.repeat):
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as cache:
            for name, seconds in walls.items():
                if name == "warm":
                    subprocess.run(
                        [*REMAT, "warm-up"],
                        env={**os.environ, "NUMBA_CACHE_DIR": cache},
                        capture_output=True,
                        check=True,
                    )
                wall, processor, found = run(words, cache)
                seconds.append(wall)
                what = f"{found['status']}  cost {found['objective']}"
                print(f"{name}  wall {wall:5.1f} s  processor {processor:5.1f} s  {what}")
    print(*(f"{name} median {statistics.median(values):.1f} s" for name, values in walls.items()), sep=", ")


if __name__ == "__main__":
    main()
