"""Graphs of the zoo: least peaks with recomputation, their bounds and gaps, in limited processor time, one thread.

    python benchmarks/bench_least_peak.py [--graphs NAMES] [--order fixed|free] [--seconds 30] [--csv FILE]

Default graphs: the whole zoo, the smallest first. Every run has a process of its own; its seconds begin with the
reading of the graph, and it ends when the peak is proved least. With ``--csv`` rows are added to a file, and those that
it has already are not run again.

Peaks and bounds are in percent of the reference peak. `last` is when the least peak was found; `cost` says how many
times each op once the schedule costs.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import common

from remat import ComputeGraph, Problem, minimize, read_graph
from remat.graphs.zoo import ZOO
from remat.runtime.deadline import deadlines_by
from remat.runtime.solve_options import SolveOptions
from remat.solving.progress import Progress
from remat.solving.stop import AnyOf, Gap

#: Columns printed, with their widths, and those of the file.
SHOWN = {
    "graph": -26, "ops": 6, "peak": 8, "bound": 8, "gap": 8, "last": 6, "seconds": 7, "cost": 7, "source": -20,
}  # fmt: skip
FIELDS = (*SHOWN, "order", "bound by", "timings")
#: Gaps of the summary.
LIMITS = 1e-3, 1e-2


def answer(path: Path, order: str, seconds: float) -> dict[str, Any]:
    """Return facts of one run in this process."""
    began = time.process_time()
    found_at: dict[int, float] = {}

    def on_progress(progress: Progress) -> None:
        if progress.peak is not None:
            found_at.setdefault(progress.peak, time.process_time() - began)

    with deadlines_by("processor"):
        problem = Problem(read_graph(path), order=order)
        stop = AnyOf(seconds - (time.process_time() - began), Gap(0))
        found = minimize(problem, stop=stop, options=SolveOptions(threads=1), on_progress=on_progress)
    reference, peak, bound, cost = problem.graph.reference_peak, found.peak, found.bound, found.cost
    assert peak is not None and bound is not None and cost is not None  # the reference order is a schedule
    return {
        "peak": f"{100 * peak / reference:.3f}",
        "bound": f"{100 * bound / reference:.3f}",
        "gap": f"{(peak - bound) / peak:.1e}",
        "last": f"{found_at.get(peak, seconds):.1f}",
        "seconds": f"{time.process_time() - began:.1f}",
        "cost": f"{cost / problem.graph.base_cost:.2f}",
        "source": found.source,
        "bound by": found.bound_kind,
        "timings": " ".join(f"{phase}:{spent:.1f}" for phase, spent in found.timings.items()),
    }


def zoo_graphs(names: str) -> list[tuple[str, ComputeGraph]]:
    """Return graphs by name; without names, those of the zoo, the smallest first."""
    found = common.graphs(names or ",".join(ZOO))
    return found if names else sorted(found, key=lambda pair: len(pair[1].ops))


def main() -> None:
    given = common.parse(str(__doc__), graphs="", order="fixed", seconds=30.0, csv="")
    rows = common.Rows(FIELDS, given.csv)
    table = common.Table(*(f"{field}:{width}" for field, width in SHOWN.items()))
    for name, graph in zoo_graphs(given.graphs):
        if rows.known(graph=name, order=given.order):
            continue
        facts = common.answer_alone(answer, graph, given.order, given.seconds)
        rows.add({"graph": name, "ops": len(graph.ops), "order": given.order, **facts})
        table.row(*(rows.rows[-1][field] for field in SHOWN))
    gaps = [float(row["gap"]) for row in rows.rows if row["order"] == given.order]
    within = [f"{sum(gap <= limit for gap in gaps)} within {100 * limit:g} %" for limit in LIMITS]
    print(f"{len(gaps)} graphs: {', '.join(within)}, the largest gap {100 * max(gaps):.2f} %")


if __name__ == "__main__":
    main()
