"""Training graphs by budgets: what the default method proves within a limit of processor time, on one thread.

    python benchmarks/bench_proofs.py [--graphs NAMES] [--budgets 80,70,50,35,25] [--seconds 10] [--csv FILE]

Default graphs: all training graphs of the zoo and of the data folder, the smallest first, in their reference order.
Names are those of :func:`common.graph`. Every run has a process of its own. Its seconds include imports, measured once,
and the reading of the graph. With ``--csv`` rows are added to a file, and those that it has already are not run again.

A summary by budget follows. A run is *proved* if it ends with the optimum within the default gap, or with a proof that
there is no schedule. `soon` counts those within :data:`SOON` seconds, `near` those within a gap of :data:`NEAR`.
"""

from __future__ import annotations

import itertools
import time
from pathlib import Path
from typing import Any

import common

from remat import ComputeGraph, Problem, read_graph, solve
from remat.graphs.zoo import TRAINING, TRAINING_STEPS
from remat.runtime.deadline import deadlines_by
from remat.runtime.solve_options import DEFAULT_GAP, SolveOptions

#: Seconds of processor time for imports.
START = time.process_time()
FIELDS = ("graph", "ops", "budget", "status", "found", "bound", "gap", "seconds", "source", "steps")
#: Seconds and gap of the summary.
SOON, NEAR = 3.0, 1e-4


def answer(path: Path, budget: str, seconds: float) -> dict[str, Any]:
    """Return facts of one run in this process; overheads in %."""
    with deadlines_by("processor"):
        problem = Problem(read_graph(path), f"{budget}%")
        left = seconds - START - time.process_time()
        result = solve(problem, stop=left, options=SolveOptions(threads=1))
    facts: dict[str, Any] = {"status": result.status.value, "source": result.source}
    base, cost, bound = problem.graph.base_cost, result.cost, result.bound
    facts |= {name: common.percent(value, base) for name, value in (("found", cost), ("bound", bound))}
    facts["gap"] = "" if cost is None or bound is None else f"{(cost - bound) / cost:.1e}"
    facts["steps"] = " ".join(f"{step.name}:{step.seconds:.2f}" for step in result.steps)
    return {**facts, "seconds": round(START + time.process_time(), 2)}


def training_graphs(names: str) -> list[tuple[str, ComputeGraph]]:
    """Return graphs by name; without names, all training graphs of the zoo and the data folder, the smallest first."""
    if names:
        return common.graphs(names)
    files = sorted(path.stem for path in common.SHARED.glob("*.json"))
    found = common.graphs(",".join([*files, *TRAINING, *TRAINING_STEPS]))
    training = [(name, graph) for name, graph in found if any(op.phase == "backward" for op in graph.ops)]
    return sorted(training, key=lambda pair: len(pair[1].ops))


def proved(row: dict[str, Any]) -> bool:
    """Return True if a run ended with a proof."""
    return row["status"] in ("optimal", "infeasible") or bool(row["gap"] and float(row["gap"]) <= DEFAULT_GAP)


def summarize(rows: list[dict[str, Any]]) -> None:
    """Print counts by budget."""
    table = common.Table("budget:6", "runs:5", "proved:6", "soon:5", "near:5", "no schedule:11", "largest gap:11")
    for budget in dict.fromkeys(row["budget"] for row in rows):
        some = [row for row in rows if row["budget"] == budget]
        done = [row for row in some if proved(row)]
        gaps = [float(row["gap"]) for row in some if row["gap"]]
        soon = sum(float(row["seconds"]) <= SOON for row in done)
        near = len(done) + sum(not proved(row) and bool(row["gap"]) and float(row["gap"]) <= NEAR for row in some)
        open_ones = sum(not row["gap"] for row in some) - sum(row["status"] == "infeasible" for row in done)
        table.row(budget, len(some), len(done), soon, near, open_ones, f"{max(gaps, default=0):.1e}")


def main() -> None:
    given = common.parse(str(__doc__), graphs="", budgets="80,70,50,35,25", seconds=10.0, csv="")
    rows = common.Rows(FIELDS, given.csv)
    table = common.Table("graph:-34", "ops:5", "budget:6", "status:-11", "found:11", "bound:11", "gap:9", "seconds:7")
    for (name, graph), budget in itertools.product(training_graphs(given.graphs), given.budgets.split(",")):
        if rows.known(graph=name, budget=budget):
            continue
        facts = common.answer_alone(answer, graph, budget, given.seconds)
        rows.add({"graph": name, "ops": len(graph.ops), "budget": budget, **facts})
        table.row(*(rows.rows[-1][field] for field in FIELDS[:8]))
    summarize(rows.rows)


if __name__ == "__main__":
    main()
