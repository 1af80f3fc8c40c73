"""Graphs by budgets by methods, against another checkout of this project.

    git worktree add ../before COMMIT; (cd ../before && make setup)
    python benchmarks/bench_regression.py --before ../before/.venv/bin/python
        [--graphs gpt-medium,transformer-36,gpt@330,layered@3000] [--budgets 80,50,30,least]
        [--methods auto,hierarchical,block-checkpointing,rotor] [--seconds S] [--least-seconds S]
        [--seeds N] [--threads N] [--tolerance T] [--clock wall|processor]

Graphs are those of :func:`common.graph`; ``zoo`` stands for all training graphs of the zoo. This checkout makes them
and both read them, so the other need not have them. A budget is a share of the reference peak, or ``least``: 5 % above
the least peak that either checkout finds within the limit. Every run is a separate process, one at a time. On a busy
machine use ``--clock processor``: limits are processor time of the run, except those that solvers measure themselves.

Overheads in % are medians over the seeds; a dash means no schedule, or an inapplicable method. Seconds and memory are
maxima of a line. The exit code is 1 if the default is worse than before, or finds no schedule where it did before. The
tolerance is in percentage points of overhead, or 1 % of the overhead if that is more: searches are random and timed.
"""

from __future__ import annotations

import itertools
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

GRAPHS = "transformer,gpt-medium,resnet101-ops,layered@1000,vgg16,fcn8,mlp-mixer,regnet-32,fno-1d,fno-3d,uno"
METHODS = "auto,hierarchical,block-checkpointing,rotor"
NOTHING = float("inf")
BEFORE = "auto before"


def memory_peak() -> int:
    """Return the most MiB that this process has held; `ru_maxrss` would count its parent's, too."""
    return int(Path("/proc/self/status").read_text(encoding="utf-8").split("VmHWM:")[1].split()[0]) >> 10


def contestant(name: str) -> tuple[Any, Any]:
    """Return method and backend of a name.

    ``depth-N`` is H-ILP over groups of N levels, ``groups-FORMULATION/BACKEND`` a formulation over groups.
    """
    from remat.experiments.contestant import Contestant
    from remat.hierarchy.method import Hierarchical, HierarchicalOptions

    kind, _, depth = name.partition("-")
    if kind == "groups":
        formulation, _, backend = depth.partition("/")
        own = HierarchicalOptions(group_methods=("drops", formulation), top_methods=(formulation,), polish=False)
        return Hierarchical(own), backend
    if kind != "depth":
        made = Contestant.parse(name)
        return made.method, made.backend or "cp-sat"
    if depth == "1":  # single ops
        top = ("drops", "few-stages", "h-ilp")
        return Hierarchical(HierarchicalOptions(depth=1, top_methods=top, nodes=200, polish=False)), "highs"
    return Hierarchical(HierarchicalOptions(depth=int(depth), top_methods=("h-ilp",), polish=False)), "highs"


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """Return facts of one run in the checkout that this process imports; bounds for part of the schedules are 0."""
    if request["clock"] == "processor":  # before the first import of remat; its older checkouts know no other clock
        time.monotonic = time.process_time
    from remat import Problem, read_graph, solve
    from remat.errors import RematError
    from remat.runtime.solve_options import SolveOptions

    began = time.monotonic()
    try:
        problem = Problem(read_graph(request["graph"]), **request["problem"])
        method, backend = contestant(request["method"])
        options = SolveOptions(threads=request["threads"], seed=request["seed"])
        began = time.monotonic()
        result = solve(problem, method, backend, stop=request["seconds"], options=options)
    except RematError as error:
        return {"error": str(error)}
    part = "staged" in str(result.scope) or "groups" in str(result.scope)
    facts: dict[str, Any] = {
        "late": time.monotonic() - began - request["seconds"],
        "memory": memory_peak(),
        "first": next((point.time for point in result.incumbents if point.objective is not None), None),
        "bound": 0 if part else result.bound,
    }
    if result.certificate is not None:
        facts |= {"overhead": result.certificate.overhead, "peak": result.certificate.peak}
    return facts


@dataclass
class Runner:
    """Runs of one checkout in separate processes."""

    python: str
    seconds: float
    seeds: int
    threads: int = 1
    clock: str = "wall"

    def run(
        self, graph: Path, method: str, *, seed: int = 0, seconds: float | None = None, **problem: Any
    ) -> dict[str, Any]:
        """Return the result of :func:`answer` in that checkout."""
        request = {
            "graph": str(graph), "problem": problem, "method": method, "seed": seed,
            "seconds": seconds or self.seconds, "threads": self.threads, "clock": self.clock,
        }  # fmt: skip
        done = subprocess.run(
            [self.python, str(Path(__file__)), "--answer"], input=json.dumps(request), capture_output=True, text=True,
            check=False,
        )  # fmt: skip
        if done.returncode:
            return {"error": (done.stderr.strip().splitlines() or ["ended without output"])[-1]}
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    def overhead(self, graph: Path, method: str, **problem: Any) -> tuple[float, list[dict[str, Any]]]:
        """Return the median over the seeds, infinite without a schedule, and all results."""
        found = [self.run(graph, method, seed=seed, **problem) for seed in range(self.seeds)]
        return statistics.median(facts.get("overhead", NOTHING) for facts in found), found


def most(found: Iterable[dict[str, Any]], fact: str) -> Any:
    """Return the largest value of a fact."""
    return max((facts.get(fact) or 0 for facts in found), default=0)


def worse(now: float, before: float, tolerance: float) -> bool:
    """Return True if an overhead in % is worse by more than `tolerance` points and 1 %; infinite: no schedule."""
    return before < NOTHING and now > before + max(tolerance, before / 100)


def shown(overhead: float) -> str:
    return "-" if overhead == NOTHING else f"{overhead:.3f}"


def main() -> int:
    import common

    given = common.parse(
        str(__doc__), before="", graphs=GRAPHS, budgets="80,50,30,least", methods=METHODS, seconds=5.0,
        least_seconds=20.0, seeds=1, threads=1, tolerance=0.1, clock="wall",
    )  # fmt: skip
    from remat.graphs.io import write_graph
    from remat.graphs.zoo import TRAINING, TRAINING_STEPS
    from remat.registry import formulations, heuristics, methods

    known = {*methods(), *heuristics(), *formulations()}
    limits = given.seconds, given.seeds, given.threads, given.clock
    now = Runner(sys.executable, *limits)
    columns = {method: (now, method) for method in given.methods.split(",") if method in known}
    if given.before:
        columns = {BEFORE: (Runner(given.before, *limits), "auto"), **columns}
    table = common.Table("graph:-16", "budget:6", "of peak:9", *(f"{label}:{max(11, len(label))}" for label in columns),
                         "first s:7", "late s:6", "MiB:6")  # fmt: skip
    losses, lines = [], 0
    names = given.graphs.replace("zoo", ",".join([*TRAINING, *TRAINING_STEPS]))
    for (name, graph), share in itertools.product(common.graphs(names), given.budgets.split(",")):
        with tempfile.TemporaryDirectory() as folder:
            path, peak = Path(folder) / "graph.json", graph.reference_peak
            write_graph(graph, path)
            budget = int(float(share) / 100 * peak) if share != "least" else peak
            if share == "least":
                sides = {side.python: side for side, _ in columns.values()}.values()
                runs = [side.run(path, "auto", seconds=given.least_seconds, objective="least-peak") for side in sides]
                budget = min(peak, 21 * min(int(run.get("peak", peak)) for run in runs) // 20)
            found = {label: side.overhead(path, method, budget=budget) for label, (side, method) in columns.items()}
        overheads = {label: overhead for label, (overhead, _) in found.items()}
        every = [facts for _, runs in found.values() for facts in runs]
        first, late, memory = (most(every, fact) for fact in ("first", "late", "memory"))
        table.row(name, share, f"{100 * budget / peak:.2f} %", *map(shown, overheads.values()), f"{first:.1f}",
                  f"{late:.1f}", memory)  # fmt: skip
        for error in dict.fromkeys(facts["error"] for facts in every if "error" in facts):
            print(f"      {error}")
        lines += 1
        if {BEFORE, "auto"} <= overheads.keys() and worse(overheads["auto"], overheads[BEFORE], given.tolerance):
            losses.append(f"{name} at {share}")
            print("      WORSE than before", flush=True)
    if given.before:
        print(f"worse than before on {len(losses)} of {lines} lines: {', '.join(losses) or 'none'}")
    return 1 if losses else 0


if __name__ == "__main__":
    if sys.argv[1:] == ["--answer"]:
        print(json.dumps(answer(json.loads(sys.stdin.read()))))
    else:
        sys.exit(main())
