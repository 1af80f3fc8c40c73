"""Models of formulations: size, relaxation, time to build, and what a solver makes of them.

    python benchmarks/bench_models.py [--problems chain,vgg16@90%,gpt@8@50%] [--backend highs] [--seconds 60]
        [--formulations checkmate,stages,limited,needed,h-ilp] [--options 4]

A problem is ``GRAPH@BUDGET``; ``chain`` is the ablation of Checkmate's appendix A: the 8-layer chain at budget 4, with
frontier-advancing stages and without. Solvers run on one thread and start from the schedule of `greedy`. `limited` is
`stages` that leaves out what costs more than that schedule, `needed` is that without recomputing ahead. `h-ilp` has
the blocks of the graph as composites, whose options save different sets of their tensors, from all down to none.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import common
import numpy as np

from remat import Problem, Schedule, validate
from remat.backends.highs import Highs
from remat.errors import ProblemError
from remat.formulations.base import Formulation
from remat.formulations.checkmate import Checkmate, CheckmateOptions
from remat.formulations.hierarchical import Composite, HIlp, HIlpOptions, Option
from remat.formulations.stages import Stages, StagesOptions
from remat.graphs.families import unit_chain
from remat.heuristics import HeuristicRun
from remat.heuristics.greedy import Greedy
from remat.hierarchy.partition.blocks import Blocks
from remat.hierarchy.tree import Group
from remat.registry import make_backend


def option(problem: Problem, group: Group, share: float) -> Option:
    """Save the tensors of the group that are cheapest to hold for what they cost, up to a share of all bytes."""
    arrays = problem.graph.arrays
    maker = {t: op for op in group.forward.tolist() for t in arrays.op_outputs[op].tolist()}
    read = {t for op in group.backward.tolist() for t in arrays.op_inputs[op].tolist() if t in maker}
    left, saved = share * arrays.size[list(read)].sum(), set()
    for t in sorted(read, key=lambda t: -arrays.cost[maker[t]] / max(1, arrays.size[t])):
        if arrays.size[t] <= left:
            saved.add(t)
            left -= arrays.size[t]
    steps: list[int] = []

    def compute(op: int) -> None:
        for t in arrays.op_inputs[op].tolist():
            if t in maker and t not in saved:
                compute(maker[t])
        steps.append(op)
        saved.update(arrays.op_outputs[op].tolist())

    for op in group.backward.tolist():
        compute(op)
    return Option(group.forward, steps)


def composites(problem: Problem, count: int) -> tuple[Composite, ...]:
    """The blocks of the graph, each with at most `count` options and that of its forward part alone."""
    found = []
    for group in Blocks().partition(problem).root.children:
        shares = np.linspace(1, 0, count if len(group.backward) else 0)
        options = {o.backward.tobytes(): o for o in (option(problem, group, share) for share in shares)}
        if len(group.forward) > 1:
            whole = [*options.values(), Option(group.forward)]
            found.append(Composite(group.name, group.forward, group.backward, whole))
    return tuple(found)


def measure(table: common.Table, name: tuple[str, str], formulation: Formulation, start: Schedule | None,
            solver: tuple[Any, float]) -> None:  # fmt: skip
    """Print one line."""
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
                "checkmate": lambda p=problem: Checkmate(p),
                "stages": lambda p=problem: Stages(p),
                "limited": lambda p=problem, c=limit: Stages(p, StagesOptions(c)),
                "needed": lambda p=problem, c=limit: Stages(p, StagesOptions(c, ahead=False)),
                "h-ilp": lambda p=problem: HIlp(p, HIlpOptions(composites(p, given.options))),
            }
            for each in given.formulations.split(","):
                measure(table, (f"{label}@{budget}", each), made[each](), start if limit else None, solver)


if __name__ == "__main__":
    main()
