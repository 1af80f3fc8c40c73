"""Checkmate's program and the stage formulation: size, relaxation, integrality gap, and time to the optimum.

Run: python benchmarks/bench_checkmate.py [--backend highs] [--seconds 60] [--formulations checkmate,stages,...]
         [chain | GRAPH@BUDGET ...]

GRAPH is a name of the zoo or a file. ``chain`` is the ablation of Checkmate's appendix A: the 8-layer chain at budget
4, with frontier-advancing stages and without. Solvers run on one thread and start from the schedule of `greedy`;
`limited` is `stages` that leaves out what costs more than that schedule, `needed` is that without recomputing ahead.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

from remat import read_graph
from remat.backends.base import SolveOptions
from remat.backends.highs import Highs
from remat.deadline import Deadline
from remat.errors import ProblemError
from remat.formulations.base import Formulation
from remat.formulations.checkmate import Checkmate, CheckmateOptions
from remat.formulations.stages import Stages, StagesOptions
from remat.graphs.families import unit_chain
from remat.graphs.zoo import ZOO
from remat.heuristics import HeuristicRun
from remat.heuristics.greedy import Greedy
from remat.problem import Problem
from remat.registry import make_backend
from remat.schedule import Schedule, validate

HEAD = (
    f"{'problem':>26} {'formulation':>11} {'variables':>9} {'rows':>9} {'build':>6} {'LP':>10} {'LP s':>6} "
    f"{'found':>10} {'bound':>10} {'ratio':>7} {'s':>6}"
)


def share(cost: float | None, base: int) -> str:
    """Overhead in %."""
    return "-" if cost is None else f"{100 * (cost / base - 1):.4f}"


def measure(
    label: str, name: str, formulation: Formulation, *, start: Schedule | None, backend: Any, seconds: float
) -> None:
    """One line."""
    base = formulation.problem.graph.base_cost
    begun = time.monotonic()
    model = formulation.build()
    built = time.monotonic() - begun
    relaxed = Highs().relax(model, SolveOptions(Deadline.after(seconds), threads=1))
    try:
        hint = None if start is None else formulation.encode(start)
    except ProblemError:
        hint = None
    raw = backend.solve(model, SolveOptions(Deadline.after(seconds), threads=1), hint)
    lp = relaxed.bound if relaxed.objective is not None else None
    ratio = "-" if raw.objective is None or lp is None else f"{raw.objective / lp:.4f}"
    print(
        f"{label:>26} {name:>11} {model.num_vars:>9,} {model.num_constraints:>9,} {built:>6.2f} {share(lp, base):>10} "
        f"{relaxed.solve_seconds:>6.1f} {share(raw.objective, base):>10} {share(raw.bound, base):>10} {ratio:>7} "
        f"{raw.solve_seconds:>6.1f}",
        flush=True,
    )


def chain(backend: Any, seconds: float) -> None:
    """Appendix A."""
    graph = unit_chain(8)
    for name, formulation in (
        ("advancing", Checkmate(Problem(graph, 4))),
        ("free", Checkmate(Problem(graph, 4, "free"), CheckmateOptions(frontier=False))),
        ("stages", Stages(Problem(graph, 4))),
    ):
        measure("chain 8@4", name, formulation, start=None, backend=backend, seconds=seconds)


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "problems", nargs="*", default=["chain", *(f"{name}@90%" for name in ("vgg16", "fcn8", "unet"))]
    )
    parser.add_argument("--backend", default="highs")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--formulations", default="checkmate,stages,limited,needed")
    given = parser.parse_args()
    backend = make_backend(given.backend)
    print(HEAD)
    for text in given.problems:
        if text == "chain":
            chain(backend, given.seconds)
            continue
        name, _, budget = text.rpartition("@")
        graph = ZOO[name]() if name in ZOO else read_graph(name)
        problem = Problem(graph, budget)
        start = Greedy().run(problem, HeuristicRun(SolveOptions(Deadline.after(10), threads=1)))
        found = validate(graph, start, problem.rules)
        limit = found.cost if found.accepted else None
        made = {
            "checkmate": lambda p=problem: Checkmate(p),
            "stages": lambda p=problem: Stages(p),
            "limited": lambda p=problem, c=limit: Stages(p, StagesOptions(c)),
            "needed": lambda p=problem, c=limit: Stages(p, StagesOptions(c, ahead=False)),
        }
        label = f"{graph.name[-20:]}@{budget}"
        for formulation in given.formulations.split(","):
            given_start = start if limit else None
            measure(label, formulation, made[formulation](), start=given_start, backend=backend, seconds=given.seconds)


if __name__ == "__main__":
    main()
