"""The first solve on a fresh install next to the second: walls, processor seconds and what came of both.

    python benchmarks/bench_first_run.py [--graph resnet50] [--budget 80%] [--time-limit 20] [--repeat 3]

Each pair has a cache folder of its own (``NUMBA_CACHE_DIR``); before the second run everything is compiled. Walls are
of whole processes. On a machine that is shared compare the two of one pair, and the processor seconds, which are those
of the solve itself and not of the process that compiles.
"""

from __future__ import annotations

import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile

import common


def remat(cache: str, *words: str) -> str:
    """Run the shell with a cache folder; return its output."""
    program = (sys.executable, "-c", "import sys, remat.cli; sys.exit(remat.cli.main())")
    environment = {**os.environ, "NUMBA_CACHE_DIR": cache}
    return subprocess.run([*program, *words], env=environment, capture_output=True, text=True, check=False).stdout


def processor_seconds() -> float:
    """Seconds that children have used so far."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> None:
    given = common.parse(str(__doc__), graph="resnet50", budget="80%", time_limit="20", repeat=3)
    words = ["solve", given.graph, "--budget", given.budget, "--time-limit", given.time_limit, "--json", "-q"]
    walls: dict[str, list[float]] = {"cold": [], "warm": []}
    for _ in range(given.repeat):
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as cache:
            for name, seconds in walls.items():
                if name == "warm":
                    remat(cache, "warm-up")
                before = processor_seconds()
                output, wall, _ = common.timed(lambda cache=cache: remat(cache, *words))
                found = json.loads(output)
                seconds.append(wall)
                print(f"{name}  wall {wall:5.1f} s  processor {processor_seconds() - before:5.1f} s  "
                      f"{found['status']}  cost {found['objective']}")  # fmt: skip
    print(*(f"{name} median {statistics.median(values):.1f} s" for name, values in walls.items()), sep=", ")


if __name__ == "__main__":
    main()
