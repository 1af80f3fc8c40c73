"""Rotor on training graphs, beside drops, published figures and the flat default.

``python benchmarks/bench_rotor.py [--auto SECONDS] [--anneal SECONDS] [GRAPH ...]``; a graph is the name of one of the
zoo's training steps, or a file. Without any, those of ``shared/data/graphs`` are taken that have published figures.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from remat import Problem, solve
from remat.backends.base import SolveOptions
from remat.deadline import Deadline
from remat.graphs import ComputeGraph, read_graph
from remat.graphs.zoo import TRAINING_STEPS
from remat.heuristics.annealing import Annealing
from remat.heuristics.base import Heuristic, HeuristicRun
from remat.heuristics.drops import Drops
from remat.hierarchy.rotor import Rotor, RotorOptions
from remat.schedule import Schedule, Verdict, validate

SHARED = Path(__file__).resolve().parents[2] / "shared" / "data" / "graphs"
BUDGETS = ("70%", "60%", "50%", "40%", "35%", "30%", "25%", "20%", "15%", "10%")
#: Overheads in % of Rotor in Rockmate 2.0.0 with slots of 64 KiB, some of them over the budget.
PUBLISHED = {
    "gpt2l__rotor64k": {"70%": 15.2, "50%": 23.8, "40%": 37.8},
    "resnet_gn__rotor64k": {"70%": 13.2, "50%": 19.8, "35%": 42.4},
    "unet_train": {},
}


def graph_of(name: str) -> ComputeGraph:
    if name in TRAINING_STEPS:
        return TRAINING_STEPS[name]()
    return read_graph(SHARED / f"{name}.json" if name in PUBLISHED else name)


def run(heuristic: Heuristic, problem: Problem, seconds: float, start: Schedule | None = None) -> tuple[str, Schedule]:
    heuristic.prepared()
    began = time.monotonic()
    schedule = heuristic.run(problem, HeuristicRun(SolveOptions(Deadline.after(seconds), threads=1), start=start))
    if schedule is None:
        return "none", Schedule.reference(problem.graph)
    return said(problem, schedule, time.monotonic() - began), schedule


def said(problem: Problem, schedule: Schedule, seconds: float) -> str:
    certificate = validate(problem.graph, schedule, problem.rules)
    assert certificate.verdict is not Verdict.INVALID
    if certificate.verdict is Verdict.OVER_BUDGET:
        return f"over, {100 * certificate.peak / problem.reference_peak:.1f} % {seconds:5.1f} s"
    return f"{certificate.overhead:.2f} % {seconds:5.1f} s"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("graphs", nargs="*")
    parser.add_argument("--auto", type=float, default=0.0, help="seconds of the default method")
    parser.add_argument("--anneal", type=float, default=0.0, help="seconds of annealing from Rotor's schedule")
    parser.add_argument("--limit", type=float, default=60.0, help="seconds of each heuristic")
    given = parser.parse_args()
    print("graph, ops, budget | published | plain rotor | rotor | rotor, annealing | drops | auto")
    for name in given.graphs or PUBLISHED:
        graph = graph_of(name)
        for budget in BUDGETS:
            problem = Problem(graph, budget)
            if problem.budget_bytes is None or problem.budget_bytes < problem.structural_peak:
                continue
            plain, _ = run(Rotor(RotorOptions(polish=False)), problem, given.limit)
            rotor, found = run(Rotor(), problem, given.limit)
            annealed = run(Annealing(), problem, given.anneal, found)[0] if given.anneal else "-"
            drops, _ = run(Drops(), problem, given.limit)
            auto = "-"
            if given.auto:
                began = time.monotonic()
                result = solve(problem, stop=given.auto)
                auto = "none"
                if result.schedule is not None:
                    auto = said(problem, result.schedule, time.monotonic() - began)
            published = PUBLISHED.get(name, {}).get(budget, "-")
            shown = " | ".join(map(str, (published, plain, rotor, annealed, drops, auto)))
            print(f"{name}, {len(graph.ops):,}, {budget} | {shown}", flush=True)


if __name__ == "__main__":
    main()
