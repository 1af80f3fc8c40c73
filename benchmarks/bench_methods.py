"""Methods on graphs and budgets: overheads side by side, with bounds, times and what was published.

    python benchmarks/bench_methods.py auto|published|rotor|search|large|hierarchy
        [--graphs G,H] [--budgets 90,70] [--orders fixed,free] [--methods M,N] [--seconds S] [--seeds N] [--picture F]

Each set asks one question (:data:`SETS`); options replace its parts. Graphs are those of :func:`common.graph`. A method
is ``name`` or ``name/backend``; ``depth-N`` is H-ILP over groups of N levels alone. A line shows medians over the seeds
of overheads in % of schedules that are certified within the budget, the best bound that holds for every schedule, the
first schedule and the lateness of the first method, and published figures. Runs have one thread and follow each other:
on a busy machine compare within a line only.
"""

from __future__ import annotations

import os
import resource
import statistics
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import common

from remat import Problem, solve
from remat.errors import RematError
from remat.experiments.contestant import Contestant
from remat.hierarchy.method import Hierarchical, HierarchicalOptions
from remat.solving.result import Result

NONE = float("inf")


@dataclass(frozen=True)
class Matrix:
    """Graphs by orders by budgets by methods, and what was published: by graph and order, one figure per budget."""

    graphs: str
    budgets: str
    methods: str
    orders: str = "fixed"
    seconds: float = 20.0
    seeds: int = 1
    copies: int | None = None
    published: dict[tuple[str, str], str] = field(default_factory=dict)


SETS = {
    # The default next to its steps, each given the whole time.
    "auto": Matrix("layered@100,layered@1000,layered@3000", "90,70", "auto,drops,annealing,lns", "fixed,free", 5.0),
    # Instances of Checkmate and Moccasin by the formulations of these papers.
    "published": Matrix(
        "fcn8,vgg16,unet,resnet50,rl_g1,rl_g2", "90,80,65", "checkmate/highs,retention-intervals/cp-sat",
        seconds=120.0, copies=2,
    ),
    # Overheads of Rotor in Rockmate 2.0.0 with slots of 64 KiB; a star: over the budget.
    "rotor": Matrix(
        "gpt2l__rotor64k,resnet_gn__rotor64k,unet_train", "70,50,40,35,20", "rotor,drops,annealing", seconds=60.0,
        published={
            ("gpt2l__rotor64k", "fixed"): "15.2 23.8 37.8", ("resnet_gn__rotor64k", "fixed"): "13.2 19.8 - 42.4*",
        },
    ),
    # Search alone; FastSA (free order; four peaks miss the budget) and Moccasin (fixed order).
    "search": Matrix(
        "rl_g1,rl_g2,rl_g3,rl_g4", "90,80,70", "annealing", "free,fixed", 30.0,
        published={
            ("rl_g1", "free"): "0.0 0.3 2.2*", ("rl_g2", "free"): "0.0 0.0 2.6", ("rl_g3", "free"): "0.03 2.3 4.8*",
            ("rl_g4", "free"): "0.4 2.5 7.4", ("rl_g1", "fixed"): "0.8 2.3 -", ("rl_g2", "fixed"): "0.9 4.9 -",
            ("rl_g3", "fixed"): "0.7 3.4 -", ("rl_g4", "fixed"): "0.7 3.4 -",
        },
    ),
    "large": Matrix("layered@1000,layered@10000,layered@100000", "80", "drops", seconds=300.0),
    # Table 2 and Fig. 6 of HiRemate: groups against ops; its overheads in Rockmate 2.0.0 (a star: over the budget).
    "hierarchy": Matrix(
        "gpt2l__rotor64k,resnet_gn__rotor64k,unet_train,gpt@12", "70,50,35",
        "auto,depth-1,depth-2,depth-3,depth-4,hierarchical",
        published={("gpt2l__rotor64k", "fixed"): "29.4 32.0*", ("resnet_gn__rotor64k", "fixed"): "126 138"},
    ),
}  # fmt: skip


def contestant(name: str) -> tuple[Any, Any]:
    """Method and backend of a name."""
    kind, _, depth = name.partition("-")
    if kind != "depth":
        made = Contestant.parse(name)
        return made.method, made.backend
    if depth == "1":  # the ops themselves
        top = ("drops", "few-stages", "h-ilp")
        return Hierarchical(HierarchicalOptions(depth=1, top_methods=top, nodes=200, polish=False)), "highs"
    return Hierarchical(HierarchicalOptions(depth=int(depth), top_methods=("h-ilp",), polish=False)), "highs"


@dataclass
class Cell:
    """Results of one method over the seeds; overheads in %, infinite without a schedule."""

    overheads: list[float] = field(default_factory=list)
    first: float = NONE
    late: float = 0.0
    bound: int = 0

    def take(self, result: Result, seconds: float, limit: float) -> None:
        self.overheads.append(NONE if result.certificate is None else result.certificate.overhead)
        points = [point.time for point in result.incumbents if point.objective is not None]
        self.first = min([self.first, *points])
        self.late = max(self.late, seconds - limit)
        if "staged" not in str(result.scope) and "groups" not in str(result.scope):
            self.bound = max(self.bound, result.bound or 0)

    @property
    def median(self) -> float:
        return statistics.median(self.overheads) if self.overheads else NONE


def run(problem: Problem, name: str, seconds: float, seeds: int) -> Cell:
    cell = Cell()
    try:
        method, backend = contestant(name)
        for seed in range(seeds):
            options = common.one_thread(seed=seed)
            result, spent, _ = common.timed(
                lambda options=options: solve(problem, method, backend, stop=seconds, options=options)
            )
            cell.take(result, spent, seconds)
    except RematError as error:
        print(f"  {name}: {error}")
    return cell


def draw(rows: list[tuple[str, str, dict[str, Cell]]], path: Path) -> None:
    """Draw overhead against budget, a panel for each graph and order."""
    from matplotlib.figure import Figure

    names = list(dict.fromkeys(name for name, _, _ in rows))
    figure = Figure(figsize=(4 * len(names), 3.5), layout="constrained")
    for place, name in enumerate(names):
        axes = figure.add_subplot(1, len(names), place + 1)
        some = [(float(budget), cells) for graph, budget, cells in rows if graph == name]
        for method in some[0][1]:
            points = [(budget, cells[method].median) for budget, cells in some if cells[method].median < NONE]
            if points:
                axes.plot(*zip(*points, strict=True), marker="o", label=method)
        axes.set(title=name, xlabel="budget, % of the reference peak", ylabel="overhead, %")
    figure.axes[0].legend(fontsize="small")
    figure.savefig(path)


def main() -> None:
    chosen = sys.argv.pop(1) if sys.argv[1:] and sys.argv[1] in SETS else "auto"
    matrix = SETS[chosen]
    given = common.parse(
        str(__doc__), graphs=matrix.graphs, budgets=matrix.budgets, methods=matrix.methods, orders=matrix.orders,
        seconds=matrix.seconds, seeds=matrix.seeds, picture="",
    )  # fmt: skip
    methods, budgets = given.methods.split(","), given.budgets.split(",")
    print(f"{chosen}: {given.seconds:g} s, {given.seeds} seeds, one thread, {os.cpu_count()} cores; overheads in %")
    table = common.Table("graph:-22", "order:-5", "budget:6", *(f"{name}:{max(11, len(name))}" for name in methods),
                         "bound:9", "first s:7", "late s:6", "MiB:6", "published:9")  # fmt: skip
    rows = []
    for name, graph in common.graphs(given.graphs):
        for order in given.orders.split(","):
            figures = dict(
                zip(matrix.budgets.split(","), matrix.published.get((name, order), "").split(), strict=False)
            )
            for budget in budgets:
                problem = Problem(graph, f"{budget}%", order, max_computes=matrix.copies)
                cells = {method: run(problem, method, given.seconds, given.seeds) for method in methods}
                rows.append((f"{name} {order}", budget, cells))
                head, bound = cells[methods[0]], max(cell.bound for cell in cells.values())
                memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
                table.row(name, order, f"{budget} %", *(f"{cell.median:.4g}" for cell in cells.values()),
                          common.percent(bound or None, graph.base_cost), f"{head.first:.1f}", f"{head.late:.1f}",
                          memory, figures.get(budget, ""))  # fmt: skip
    if given.picture:
        draw(rows, Path(given.picture))


if __name__ == "__main__":
    main()
