"""Models of formulations: size, relaxation, build time, and results of a solver.

    python benchmarks/bench_models.py [--problems chain,vgg16@90%,gpt@8@50%] [--backend highs] [--seconds 60]
        [--formulations checkmate,stages,limited,needed,h-ilp] [--options 4]

A problem is ``GRAPH@BUDGET``; ``chain`` is the ablation of Checkmate's appendix A: the 8-layer chain at budget 4, with
frontier-advancing stages and without. Solvers run on one thread and start from the schedule of `greedy`. `limited` is
`stages` without schedules that cost more than this start, `needed` is `limited` without recomputing ahead. `h-ilp` has
the blocks of the graph as composites, with options of the method `hierarchical` for `--options` budgets.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import common

from remat import Problem, Schedule, validate
from remat.backends.highs import Highs
from remat.errors import ProblemError
from remat.formulations.base import Formulation
from remat.formulations.checkmate import Checkmate, CheckmateOptions
from remat.formulations.composites import Composite
from remat.formulations.h_ilp import HIlp, HIlpOptions
from remat.formulations.stages import Stages, StagesOptions
from remat.graphs.families import unit_chain
from remat.heuristics import HeuristicRun
from remat.heuristics.greedy import Greedy
from remat.hierarchy.effort import Effort
from remat.hierarchy.group_options import Budgets, options_of
from remat.hierarchy.partition.blocks import Blocks
from remat.hierarchy.subproblem import SubProblem, translated
from remat.registry import make_backend
from remat.runtime.deadline import Deadline


def h_ilp(problem: Problem, count: int) -> HIlp:
    """Return H-ILP over the blocks of the graph, with eviction's options for `count` budgets and the plain ones."""
    found = []
    for group in Blocks().partition(problem).root.children:
        part = SubProblem.of(problem, group)
        made = options_of(part, Budgets(count, count), Effort(("eviction",)), Deadline.after(10))
        options = [translated(one.option, part.ops) for one in made]
        found.append(Composite(group.name, group.forward, group.backward, options))
    return HIlp(problem, HIlpOptions(tuple(found)))


def measure(table: common.Table, name: tuple[str, str], formulation: Formulation, start: Schedule | None,
            solver: tuple[Any, float]) -> None:  # fmt: skip
    """Solve a model and print one line."""
    backend, seconds = solver
    problem, base = formulation.problem, formulation.problem.graph.base_cost
    model, built, _ = common.timed(formulation.build)
    relaxed = Highs().relax(model, common.one_thread(seconds))
    try:
        hint = None if start is None else formulation.encode(start)
    except ProblemError:
        hint = None
    raw = backend.solve(model, common.one_thread(seconds), hint)
    linear = relaxed.bound if relaxed.objective is not None else None
    ratio = "-" if raw.objective is None or linear is None else f"{raw.objective / linear:.4f}"
    cost = None
    if raw.values is not None:
        certificate = validate(problem.graph, formulation.decode(raw.values), problem.rules)
        assert certificate.accepted, certificate.first
        cost = certificate.cost
    table.row(*name, f"{model.num_vars:,}", f"{model.num_constraints:,}", f"{built:.2f}", common.percent(linear, base),
              f"{relaxed.solve_seconds:.1f}", common.percent(raw.objective, base), common.percent(cost, base),
              common.percent(raw.bound, base), ratio, f"{raw.solve_seconds:.1f}")  # fmt: skip


def main() -> None:
    given = common.parse(
        str(__doc__), problems="chain,vgg16@90%,fcn8@90%,unet@90%", backend="highs", seconds=60.0,
        formulations="checkmate,stages,limited,needed", options=4,
    )  # fmt: skip
    solver = make_backend(given.backend), given.seconds
    table = common.Table("problem:-26", "formulation:-12", "variables:9", "rows:9", "build:6", "LP:10", "LP s:6",
                         "found:10", "schedule:10", "bound:10", "ratio:7", "s:6")  # fmt: skip
    for text in given.problems.split(","):
        if text == "chain":
            graph = unit_chain(8)
            measure(table, ("chain 8@4", "advancing"), Checkmate(Problem(graph, 4)), None, solver)
            free = Checkmate(Problem(graph, 4, "free"), CheckmateOptions(frontier=False))
            measure(table, ("chain 8@4", "free"), free, None, solver)
            measure(table, ("chain 8@4", "stages"), Stages(Problem(graph, 4)), None, solver)
            continue
        name, _, budget = text.rpartition("@")
        for label, graph in common.graphs(name):
            problem = Problem(graph, budget)
            start = Greedy().run(problem, HeuristicRun(common.one_thread(10)))
            found = None if start is None else validate(graph, start, problem.rules)
            limit = found.cost if found and found.accepted else None
            made: dict[str, Callable[[], Formulation]] = {
                "checkmate": partial(Checkmate, problem),
                "stages": partial(Stages, problem),
                "limited": partial(Stages, problem, StagesOptions(limit)),
                "needed": partial(Stages, problem, StagesOptions(limit, ahead=False)),
                "h-ilp": partial(h_ilp, problem, given.options),
            }
            for each in given.formulations.split(","):
                measure(table, (f"{label}@{budget}", each), made[each](), start if limit else None, solver)


if __name__ == "__main__":
    main()
