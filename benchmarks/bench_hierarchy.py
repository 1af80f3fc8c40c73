"""Groups against ops: `hierarchical` with one to four levels beside the default, on the same graphs and budgets.

A table as the HiRemate paper's Table 2 and Fig. 6: for each graph and budget the overhead in % that the default finds
(with the best bound of all runs), that H-ILP over groups with options finds alone at each depth (depth 1 is H-ILP on
the ops, where they are few enough), and that the method `hierarchical` finds with everything it has. Every schedule is
certified within its budget. H-ILP begins from what `drops` finds for the same groups, or ops. Overheads of the same
graphs that others have published or that were measured with Rockmate 2.0.0 stand beside.

    python benchmarks/bench_hierarchy.py [--graphs NAMES] [--budgets 70,50,35] [--depths 1,2,3,4] [--seconds S]
                                         [--backend highs] [--picture FILE.png]

Graphs are `gpt2l`, `resnet_gn` and `unet` (read from the data folder beside the checkout, REMAT_SHARED), and those of
the zoo: `gpt-LAYERS`, `transformer-LAYERS` (as many encoders as decoders).
"""

from __future__ import annotations

import argparse
import os
import time
from dataclasses import dataclass, field
from pathlib import Path

from remat import Problem, read_graph, solve
from remat.errors import RematError
from remat.graphs.graph import ComputeGraph
from remat.graphs.zoo import gpt, transformer
from remat.hierarchy.method import Hierarchical, HierarchicalOptions
from remat.solving.result import Result

SHARED = Path(os.environ.get("REMAT_SHARED", Path(__file__).resolve().parents[2] / "shared")) / "data" / "graphs"
FILES = {"gpt2l": "gpt2l__rotor64k", "resnet_gn": "resnet_gn__rotor64k", "unet": "unet_train"}
#: Overheads in % of Rotor and of HiRemate (time limits of 40 to 60 s), measured with Rockmate 2.0.0 on the same graphs;
#: with a star where the schedule was over its budget.
KNOWN = {
    ("gpt2l", "70"): "15.2 / 29.4", ("gpt2l", "50"): "23.8 / 32.0*", ("gpt2l", "40"): "37.8 / 49.3",
    ("resnet_gn", "70"): "13.2 / 126", ("resnet_gn", "50"): "19.8 / 138", ("resnet_gn", "35"): "42.4* / -",
}  # fmt: skip
#: Ops up to which H-ILP is asked about the ops themselves.
FLAT_OPS = 200


@dataclass
class Row:
    """What the methods found at one budget: overheads in %, None where nothing was found."""

    graph: str
    budget: str
    found: dict[str, float | None] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    bound: int = 0

    def take(self, name: str, result: Result, seconds: float) -> None:
        """Remember a result; the bound is the best one that holds for every schedule."""
        self.found[name], self.seconds[name] = result.overhead, seconds
        if "staged" not in str(result.scope) and "groups" not in str(result.scope):
            self.bound = max(self.bound, result.bound)


def graph_of(name: str) -> ComputeGraph | None:
    """A graph by its name; None where its file is not there."""
    kind, _, size = name.partition("-")
    if kind == "gpt" and size:
        return gpt(layers=int(size))
    if kind == "transformer" and size:
        return transformer(layers=int(size))
    path = SHARED / f"{FILES.get(name, name)}.json"
    return read_graph(path) if path.exists() else None


def methods(depths: list[int], num_ops: int) -> dict[str, tuple[object, object]]:
    """Method and its options by column."""
    found: dict[str, tuple[object, object]] = {"flat": ("auto", None)}
    for depth in depths:
        if depth == 1:
            if num_ops <= FLAT_OPS:
                options = HierarchicalOptions(
                    depth=1, top_methods=("drops", "few-stages", "h-ilp"), nodes=FLAT_OPS, polish=False
                )
                found["1"] = (Hierarchical(options), None)
            continue
        options = HierarchicalOptions(depth=depth, top_methods=("h-ilp",), polish=False)
        found[str(depth)] = (Hierarchical(options), None)
    found["all"] = ("hierarchical", None)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--graphs", default="gpt2l,resnet_gn,unet,gpt-12")
    parser.add_argument("--budgets", default="70,50,35")
    parser.add_argument("--depths", default="1,2,3,4")
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--backend", default="highs")
    parser.add_argument("--picture", type=Path)
    given = parser.parse_args()
    depths = [int(depth) for depth in given.depths.split(",")]
    columns = ["flat", *map(str, depths), "all"]
    print(f"{given.seconds:g} s each, backend {given.backend}, {os.cpu_count()} cores; overheads in %, (seconds)")
    titles = ["flat auto", *(f"H-ILP depth {depth}" for depth in depths), "hierarchical"]
    print(" ".join([f"{'graph':14}{'budget':>7}", *(f"{title:>17}" for title in titles), "    bound  Rockmate"]))
    rows = []
    for name in given.graphs.split(","):
        graph = graph_of(name)
        if graph is None:
            print(f"{name}: no file in {SHARED}")
            continue
        for budget in given.budgets.split(","):
            row = Row(name, budget)
            for column, (method, options) in methods(depths, len(graph.ops)).items():
                begun = time.monotonic()
                try:
                    result = solve(
                        Problem(graph, f"{budget}%"), method, given.backend, stop=given.seconds, method_options=options
                    )  # type: ignore[arg-type]
                except RematError as error:
                    print(f"{name} {budget} % {column}: {error}")
                    continue
                row.take(column, result, time.monotonic() - begun)
            rows.append(row)
            print(line(row, columns, graph.base_cost), flush=True)
    if given.picture is not None:
        draw(rows, columns, titles, given.picture)


def line(row: Row, columns: list[str], base: int) -> str:
    """A row of the table."""
    cells = []
    for column in columns:
        overhead = row.found.get(column)
        text = "-" if overhead is None else f"{overhead:.2f}"
        cells.append(f"{text + f' ({row.seconds.get(column, 0.0):.0f})':>17}")
    least = 100 * (row.bound / base - 1) if row.bound else 0.0
    known = KNOWN.get((row.graph, row.budget), "")
    return " ".join([f"{row.graph:14}{row.budget + ' %':>7}", *cells, f"{least:>9.2f}", known])


def draw(rows: list[Row], columns: list[str], titles: list[str], path: Path) -> None:
    """Overhead against budget, a panel for each graph."""
    from matplotlib.figure import Figure

    names = list(dict.fromkeys(row.graph for row in rows))
    figure = Figure(figsize=(4 * len(names), 3.5), layout="constrained")
    for place, name in enumerate(names):
        axes = figure.add_subplot(1, len(names), place + 1)
        some = [row for row in rows if row.graph == name]
        for column, title in zip(columns, titles, strict=True):
            points = [(float(row.budget), row.found[column]) for row in some if row.found.get(column) is not None]
            if points:
                axes.plot(*zip(*points, strict=True), marker="o", label=title)
        axes.set(title=name, xlabel="budget, % of the reference peak", ylabel="overhead, %")
    figure.axes[0].legend(fontsize="small")
    figure.savefig(path)


if __name__ == "__main__":
    main()
