"""Graphs by budgets by methods, against another checkout of this project: is the default anywhere worse than before?

    git worktree add ../before COMMIT; (cd ../before && make setup)
    python benchmarks/bench_regression.py --before ../before/.venv/bin/python
        [--graphs gpt-medium,transformer-36,gpt@330,layered@3000] [--budgets 80,50,30,least]
        [--methods auto,hierarchical,block-checkpointing,rotor] [--seconds S] [--least-seconds S]
        [--seeds N] [--threads N] [--tolerance T]

A graph is one of the zoo, ``gpt@L`` (L small layers, 30 L + 15 ops) or ``layered@N``; ``zoo`` stands for all training
graphs of the zoo. Graphs are made here and read by both, so it does not matter whether they were there before. A budget
is a share of the reference peak, or ``least``: 5 % above the least peak that either checkout finds in the time. Every
run is a process of its own; the runs of one line follow each other, so on a busy machine compare within a line.
Overheads are medians over the seeds; a dash: no schedule, or the method does not apply. Ends with exit code 1 if the
default is worse than before by more than the tolerance (percentage points of overhead, or 1 % of the overhead if that
is more: searches draw random numbers and have a clock), or finds no schedule where it did before.
"""

from __future__ import annotations

import json
import resource
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


def contestant(name: str) -> tuple[Any, Any]:
    """Return method and backend of a name; ``depth-N`` is H-ILP over groups of N levels alone."""
    from remat.experiments.contestant import Contestant
    from remat.hierarchy.method import Hierarchical, HierarchicalOptions

    kind, _, depth = name.partition("-")
    if kind != "depth":
        made = Contestant.parse(name)
        return made.method, made.backend or "cp-sat"
    if depth == "1":  # the ops themselves
        top = ("drops", "few-stages", "h-ilp")
        return Hierarchical(HierarchicalOptions(depth=1, top_methods=top, nodes=200, polish=False)), "highs"
    return Hierarchical(HierarchicalOptions(depth=int(depth), top_methods=("h-ilp",), polish=False)), "highs"


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """Return facts of one run by the checkout that this process imports; bounds of part of the schedules are 0."""
    from remat import Problem, read_graph, solve
    from remat.backends.base import SolveOptions
    from remat.errors import RematError

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
        "memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
        "first": next((point.time for point in result.incumbents if point.objective is not None), None),
        "bound": 0 if part else result.bound,
    }
    if result.certificate is not None:
        facts |= {"overhead": result.certificate.overhead, "peak": result.certificate.peak}
    return facts


@dataclass
class Runner:
    """Runs of one checkout in processes of their own."""

    python: str
    seconds: float
    seeds: int
    threads: int = 1

    def ask(
        self, graph: Path, method: str, *, seed: int = 0, seconds: float | None = None, **problem: Any
    ) -> dict[str, Any]:
        """Return what :func:`answer` says there of a problem."""
        request = {
            "graph": str(graph), "problem": problem, "method": method, "seed": seed,
            "seconds": seconds or self.seconds, "threads": self.threads,
        }  # fmt: skip
        done = subprocess.run(
            [self.python, str(Path(__file__)), "--answer"], input=json.dumps(request), capture_output=True, text=True,
            check=False,
        )  # fmt: skip
        if done.returncode:
            return {"error": (done.stderr.strip().splitlines() or ["ended without a word"])[-1]}
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    def overhead(self, graph: Path, method: str, **problem: Any) -> tuple[float, list[dict[str, Any]]]:
        """Median over the seeds, infinite without a schedule; and all that was found."""
        found = [self.ask(graph, method, seed=seed, **problem) for seed in range(self.seeds)]
        return statistics.median(facts.get("overhead", NOTHING) for facts in found), found


def most(found: Iterable[dict[str, Any]], fact: str) -> Any:
    """Return the largest value of a fact."""
    return max((facts.get(fact) or 0 for facts in found), default=0)


def worse(now: float, before: float, tolerance: float) -> bool:
    """Whether an overhead in % is worse by more than `tolerance` points and 1 %; infinite ones are no schedules.

    >>> worse(5.0, 4.95, 0.1), worse(5.0, 4.0, 0.1), worse(NOTHING, 40.0, 0.1), worse(NOTHING, NOTHING, 0.1)
    (False, True, True, False)
    """
    return before < NOTHING and now > before + max(tolerance, before / 100)


def shown(overhead: float) -> str:
    return "-" if overhead == NOTHING else f"{overhead:.3f}"


def main() -> int:
    import common

    given = common.parse(
        str(__doc__), before="", graphs=GRAPHS, budgets="80,50,30,least", methods=METHODS, seconds=5.0,
        least_seconds=20.0, seeds=1, threads=1, tolerance=0.1,
    )  # fmt: skip
    from remat.graphs.io import write_graph
    from remat.graphs.zoo import TRAINING, TRAINING_STEPS
    from remat.registry import formulations, heuristics, methods

    known = {*methods(), *heuristics(), *formulations()}
    chosen = [method for method in given.methods.split(",") if method in known]
    now = Runner(sys.executable, given.seconds, given.seeds, given.threads)
    before = Runner(given.before, given.seconds, given.seeds, given.threads) if given.before else None
    losses, lines = [], 0
    with tempfile.TemporaryDirectory() as folder:
        for name in given.graphs.replace("zoo", ",".join([*TRAINING, *TRAINING_STEPS])).split(","):
            graph, path = common.graph(name), Path(folder) / "graph.json"
            write_graph(graph, path)
            print(f"{name}: {len(graph.ops):,} ops, peak {graph.reference_peak:,} bytes", flush=True)
            for share in given.budgets.split(","):
                if share == "least":
                    sides = [side for side in (before, now) if side]
                    runs = [
                        side.ask(path, "auto", seconds=given.least_seconds, objective="least-peak") for side in sides
                    ]
                    peaks = [int(run.get("peak", graph.reference_peak)) for run in runs]
                    budget = min(graph.reference_peak, 21 * min(peaks) // 20)
                    least = "  ".join(f"{100 * peak / graph.reference_peak:.2f} %" for peak in peaks)
                    print(f"  least peak ({'before, now' if before else 'now'}): {least}")
                else:
                    budget = int(float(share) / 100 * graph.reference_peak)
                overheads, notes = {}, []
                for label, side, method in [
                    *([("auto before", before, "auto")] if before else []),
                    *((method, now, method) for method in chosen),
                ]:
                    overheads[label], found = side.overhead(path, method, budget=budget)
                    first, late, memory = (most(found, fact) for fact in ("first", "late", "memory"))
                    notes.append(f"{label} first {first:.1f} s, late {late:.1f} s, {memory} MiB")
                    notes += [f"{label}: {facts['error']}" for facts in found if "error" in facts][:1]
                line = "  ".join(f"{label} {shown(overhead)}" for label, overhead in overheads.items())
                print(f"  {share} ({100 * budget / graph.reference_peak:.1f} %): {line}", flush=True)
                for note in notes:
                    print(f"      {note}")
                lines += 1
                auto = overheads.get("auto")
                if before and auto is not None and worse(auto, overheads["auto before"], given.tolerance):
                    losses.append(f"{name} at {share}")
                    print("      WORSE than before", flush=True)
    if before:
        print(f"worse than before on {len(losses)} of {lines} lines: {', '.join(losses) or 'none'}")
    return 1 if losses else 0


if __name__ == "__main__":
    if sys.argv[1:] == ["--answer"]:
        print(json.dumps(answer(json.loads(sys.stdin.read()))))
    else:
        sys.exit(main())
