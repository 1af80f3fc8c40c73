"""Cost of a study beyond its solves: time per cell, memory of the runner, size of the store.

``python benchmarks/bench_studies.py --cells 10000 --slots 2`` solves chains of 4 to 23 ops by greedy.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from pathlib import Path

import psutil

from remat import Study
from remat.studies.executors import Processes
from remat.studies.running import Event


def main() -> None:
    """Run the study and print the figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cells", type=int, default=300)
    parser.add_argument("--slots", type=int, default=1)
    options = parser.parse_args()
    mapping = {
        "name": "tiny",
        "instances": {"generate": [{"generator": "unit-chain", "n": list(range(4, 24))}]},
        "problem": {"budget": "80%"},
        "methods": [{"method": "greedy"}],
        "solve": {"time_limit": 60, "seed": list(range(options.cells // 20))},
    }
    here, family = psutil.Process(), dict[int, float]()
    times: list[float] = []
    memory: list[int] = []

    def on_event(event: Event) -> None:
        times.append(event.outcome.row["total_seconds"] or 0.0)
        if event.done in (options.cells // 10, options.cells):
            memory.append(here.memory_info().rss)
        if event.done % 100 == 0:
            for child in here.children(recursive=True):
                used = child.cpu_times()
                family[child.pid] = used.user + used.system

    with tempfile.TemporaryDirectory() as folder:
        added = time.monotonic()
        study = Study.from_mapping(mapping, f"sqlite:///{folder}/study.db")
        added = time.monotonic() - added
        with Processes(options.slots) as executor:
            wall, processor = time.monotonic(), time.process_time()
            study.run(executor, on_event=on_event)
            wall, processor = time.monotonic() - wall, time.process_time() - processor
        study.close()
        files = [path for path in Path(folder).rglob("*") if path.is_file()]
        print(json.dumps({
            "cells": len(times),
            "slots": options.slots,
            "add_seconds": round(added, 2),
            "wall_ms_per_cell_beyond_solve": round(1000 * (wall * options.slots - sum(times)) / len(times), 2),
            "processor_ms_per_cell_runner": round(1000 * processor / len(times), 2),
            "processor_ms_per_cell_children_with_solve": round(1000 * sum(family.values()) / len(times), 2),
            "solve_ms_per_cell": round(1000 * sum(times) / len(times), 2),
            "runner_growth_mib": round((memory[-1] - memory[0]) / 2**20, 1),
            "database_bytes_per_cell": round(sum(p.stat().st_size for p in files if "study.db" in p.name
                                                 and ".files" not in str(p)) / len(times)),
            "files": len(files),
            "load": os.getloadavg(),
        }, indent=1))  # fmt: skip


if __name__ == "__main__":
    main()
