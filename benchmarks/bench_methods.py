"""Methods on graphs and budgets: overheads side by side, with bounds, times and published figures.

    python benchmarks/bench_methods.py auto|published|rotor|search|large|hierarchy
        [--graphs G,H] [--budgets 90,70] [--orders fixed,free] [--methods M,N] [--seconds S] [--seeds N]

:data:`SETS` lists the sets; options replace their parts. Graphs are those of :func:`common.graph`. A method is ``name``
or ``name/backend``; ``depth-N`` and ``groups-FORMULATION/BACKEND`` solve over groups only
(:func:`bench_regression.contestant`). A line shows the median overheads in % over the seeds, of schedules certified
within the budget. The best bound that holds for every schedule follows, then time to the first schedule and lateness of
the first method, and published figures. Each run is a separate process with one thread, one run at a time. On a busy
machine compare only within a line.
"""

from __future__ import annotations

import itertools
import os
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import common
from bench_regression import Runner, most

from remat.experiments.library.published import published
from remat.graphs.io import write_graph


@dataclass(frozen=True)
class Matrix:
    """Graphs by orders by budgets by methods; `published` has figures by graph and budget that the library lacks."""

    graphs: str
    budgets: str
    methods: str
    orders: str = "fixed"
    seconds: float = 20.0
    seeds: int = 1
    copies: int | None = None
    published: Mapping[tuple[str, str], str] = field(default_factory=dict)


SETS = {
    # The default and its steps, each with the whole time.
    "auto": Matrix("layered@100,layered@1000,layered@3000", "90,70", "auto,drops,annealing,lns", "fixed,free", 5.0),
    # Instances of Checkmate and Moccasin, solved by their formulations.
    "published": Matrix(
        "fcn8,vgg16,unet,resnet50,rl_g1,rl_g2", "90,80,65", "checkmate/highs,retention-intervals/cp-sat",
        seconds=120.0, copies=2,
    ),
    # Overheads of Rotor in Rockmate 2.0.0 with slots of 64 KiB (*: over the budget).
    "rotor": Matrix(
        "gpt2l__rotor64k,resnet_gn__rotor64k,unet_train", "70,50,40,35,20", "rotor,drops,annealing", seconds=60.0,
        published={
            ("gpt2l__rotor64k", "70"): "15.2", ("gpt2l__rotor64k", "50"): "23.8", ("gpt2l__rotor64k", "40"): "37.8",
            ("resnet_gn__rotor64k", "70"): "13.2", ("resnet_gn__rotor64k", "50"): "19.8",
            ("resnet_gn__rotor64k", "35"): "42.4*",
        },
    ),
    # Search only. FastSA: free order, four peaks miss the budget; Moccasin: fixed order.
    "search": Matrix("rl_g1,rl_g2,rl_g3,rl_g4", "90,80,70", "annealing", "free,fixed", 30.0),
    "large": Matrix("layered@1000,layered@10000,layered@100000", "80", "drops", seconds=300.0),
    # Table 2 and Fig. 6 of HiRemate: groups against ops; its overheads in Rockmate 2.0.0 (*: over the budget).
    "hierarchy": Matrix(
        "gpt2l__rotor64k,resnet_gn__rotor64k,unet_train,gpt@12", "70,50,35",
        "auto,depth-1,depth-2,depth-3,depth-4,hierarchical",
        published={
            ("gpt2l__rotor64k", "70"): "29.4", ("gpt2l__rotor64k", "50"): "32.0*",
            ("resnet_gn__rotor64k", "70"): "126", ("resnet_gn__rotor64k", "50"): "138",
        },
    ),
}  # fmt: skip


def main() -> None:
    chosen = sys.argv.pop(1) if sys.argv[1:] and sys.argv[1] in SETS else "auto"
    matrix = SETS[chosen]
    given = common.parse(
        str(__doc__), graphs=matrix.graphs, budgets=matrix.budgets, methods=matrix.methods, orders=matrix.orders,
        seconds=matrix.seconds, seeds=matrix.seeds,
    )  # fmt: skip
    methods = given.methods.split(",")
    print(f"{chosen}: {given.seconds:g} s, {given.seeds} seeds, one thread, {os.cpu_count()} cores; overheads in %")
    table = common.Table("graph:-22", "order:-5", "budget:6", *(f"{name}:{max(11, len(name))}" for name in methods),
                         "bound:9", "first s:7", "late s:6", "MiB:6", "published:9")  # fmt: skip
    runner = Runner(sys.executable, given.seconds, given.seeds)
    for name, graph in common.graphs(given.graphs):
        for order, budget in itertools.product(given.orders.split(","), given.budgets.split(",")):
            problem = {"budget": f"{budget}%", "order": order, "max_computes": matrix.copies}
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder) / "graph.json"
                write_graph(graph, path)
                runs = {method: runner.overhead(path, method, **problem) for method in methods}
            every = [facts for _, found in runs.values() for facts in found]
            first, late = (most(runs[methods[0]][1], fact) for fact in ("first", "late"))
            figures = matrix.published.get((name, budget)) or ", ".join(map(str, published(name, order, int(budget))))
            table.row(name, order, f"{budget} %", *(f"{median:.4g}" for median, _ in runs.values()),
                      common.percent(most(every, "bound") or None, graph.base_cost), f"{first:.1f}", f"{late:.1f}",
                      most(every, "memory"), figures)  # fmt: skip
            for line in dict.fromkeys(facts["error"] for facts in every if "error" in facts):
                print(f"  {line}")


if __name__ == "__main__":
    main()
