"""``remat frontier``: overhead against budget for several methods."""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from remat.cli.budgets import Budgets, read_budgets
from remat.cli.compare import methods_of
from remat.cli.options import FILE, LIMITS, RULES, TABLES, Given, Methods, OptionalGraph, Tables, shared
from remat.cli.saving import Outputs
from remat.cli.screen import memory
from remat.cli.signals import writing
from remat.cli.stored import StoreUrl, print_stored, stored_runs
from remat.cli.terminal import INTERRUPTED, NO, OK
from remat.io.files import check_outputs
from remat.io.page import SUFFIXES as PAGE_SUFFIXES
from remat.runtime.interruption import interrupts

if TYPE_CHECKING:
    from remat.experiments.frontier_cell import Cell
    from remat.experiments.frontier_result import Frontier


#: Budgets that a command without any chooses.
POINTS = 12


@shared(
    *FILE, "budgets", "points", "methods", *RULES, "machine", *LIMITS, "workers", "store", "tables", "plot", "quiet"
)
def command(
    graph: OptionalGraph = None,
    *,
    budgets: Budgets = None,
    points: int | None = typer.Option(
        None, min=1, metavar="N", help=f"Budgets to choose for each method if --budgets is absent; default {POINTS}."
    ),
    methods: Methods = None,
    workers: int = typer.Option(1, min=1, metavar="N", help="Methods to run in parallel processes."),
    store: StoreUrl = None,
    tables: Tables = None,
    plot: Path | None = typer.Option(None, metavar="FILE", help="Draw overhead by budget (.png, .svg, .pdf, .html)."),
    given: Given,
) -> None:  # fmt: skip
    """Compute overhead against budget for GRAPH, one line per method.

    Each method proceeds from the smallest budget upward and starts from its schedule for the next smaller one. Limits
    and rules apply to each run; with --config they come from that file. --workers share the threads.

    Without --budgets, the curve extends from the least peak to the reference peak. Each of the --points budgets is one
    at which a solve can determine most of it.

    Tables are written after every run, the picture at the end. Ctrl-C keeps finished runs. With --store the same
    command continues after Ctrl-C or a crash, and `remat study` reports and exports the runs.

    Exit code 0: some method found a schedule; 1: none did; 2: an error; 130: Ctrl-C.

    Examples
    --------
    remat frontier unet -b 50%:95%:5% -m greedy,auto -t 10s
    remat frontier unet -b 80%,90% -o curve.csv --plot curve.png
    remat frontier unet --points 20 -t 10s --plot curve.html
    """
    from remat.cli.reporter import Reporter
    from remat.experiments.frontier import frontier
    from remat.io.figures import SUFFIXES
    from remat.runtime.processes.workers import WorkerPool
    from remat.runtime.resources import available_cpus

    run = given.run(graph)
    files = [*((table, TABLES) for table in tables or ()), (plot, (*SUFFIXES, *PAGE_SUFFIXES))]
    check_outputs(*files, inputs=(run.problem.graph, given.config))
    asked = read_budgets(budgets)
    if asked and points is not None:
        raise typer.BadParameter("--points chooses the budgets; leave out --budgets.")
    count = len(asked) or points or POINTS

    problem = run.make_problem()
    options = run.solve_options(problem.graph)
    if workers > 1 and options.threads is None:
        options = replace(options, threads=max(1, available_cpus() // workers))
    outputs = Outputs()

    def text_of(found: Frontier, path: Path) -> str:
        return found.to_json() if path.suffix.lower() == ".json" else found.to_csv()

    def on_cell(found: Frontier, cell: Cell) -> None:
        for path in tables or ():
            outputs.attempt_text(path, text_of(found, path))
        if together is not None:
            place = f"[{len(found.cells)}/{len(found.methods) * count}]"
            line = f"{place} {cell.method}, {cell.budget:,} bytes: {shown(cell, found.proved(cell))}"
            together.news(line, place, line.removeprefix(f"{place} "))

    with interrupts(), stored_runs(store, "frontier", problem.graph.name) as runs:
        with ExitStack() as stack:
            pool = stack.enter_context(WorkerPool(workers)) if workers > 1 else None
            together = None if pool is None else stack.enter_context(Reporter(run.output.quiet))
            found = frontier(
                problem, asked or count, methods_of(methods, run),
                stop=run.solve.time_limit, options=options, store=runs, executor=pool,
                watch=lambda label: Reporter(run.output.quiet, label=label), on_cell=on_cell,
            )  # fmt: skip
            if pool is not None and found.interrupted:
                pool.stop(0.1)  # the results are here; a process that does not exit soon is terminated
        writing()
        for path in tables or ():
            outputs.save_text(path, text_of(found, path))
        print_frontier(found)
        if plot is not None:
            outputs.plot_or_page(plot, found)
        print_stored(runs, outputs)
    some = any(cell.schedule is not None for cell in found.cells.values())
    outputs.leave(INTERRUPTED if found.interrupted else OK if some else NO)


def shown(cell: Cell, proved: bool) -> str:
    """Describe a cell: its overhead, or why it has none."""
    if cell.status == "failed":
        return "failed"
    if cell.value is None:
        return "infeasible" if cell.status == "infeasible" else f"none found ({cell.row['stop']})"
    overhead = cell.row["overhead_percent"]
    text = f"{cell.value:,}" if overhead is None else f"{overhead:.4g} %"
    return text + (" *" if proved else "")


def schedules_by(found: Frontier) -> list[str]:
    """Return a line for each method with the sources of its schedules, unless it found all of them itself."""
    from remat.experiments.runs import REFERENCE_ORDER

    lines = []
    for method in found.methods:
        sources = Counter(cell.source for cell in found.of(method) if cell.schedule is not None)
        if set(sources) - {method.source, REFERENCE_ORDER}:
            shown_sources = ", ".join(f"{source} ({count})" for source, count in sources.most_common())
            lines.append(f"{method.label}: schedules by {shown_sources}")
    return lines


def print_frontier(found: Frontier) -> None:
    """Print a table with a line per budget, largest first, followed by scopes and failures."""
    from remat.cli.closing import closing_frontier
    from remat.cli.console import NUMBER, console, print_columns, print_notes, say
    from remat.schedule.certificate import overhead_text

    out = console()
    problem, base = found.problem, found.problem.objective.base(found.problem.graph)
    columns = [("budget", NUMBER), ("bytes", NUMBER)]
    for method in found.methods:
        columns += [(method.label, {"justify": "right", "overflow": "fold"}), ("bound", NUMBER)]

    def cells(budget: int) -> list[str]:
        share = f"{100 * budget / problem.reference_peak:.4g} %" if problem.reference_peak else "-"
        words = [share, memory(budget)]
        for method in found.methods:
            cell = found.cells.get((method.label, budget))
            bound = None if cell is None else found.bound(cell)
            words.append("-" if cell is None else shown(cell, found.proved(cell)))
            words.append("-" if bound is None else overhead_text(bound, base))
        return words

    rows = map(cells, reversed(found.budgets))
    print_columns(out, f"{problem.graph.name}, overhead at each budget", columns, rows, stacked=2)
    if found.least is not None and found.least.result is not None:
        least = found.least.result
        word = f"at least {least.bound:,} bytes ({100 * least.gap:.3g} % less)" if least.gap else "proved"
        say(out, f"least peak: {least.objective:,} bytes, {word}, by {least.source}")
    say(out, "* proved optimal in the scope of the method; bounds hold in that scope, also for smaller budgets")
    cells_of = ((method.label, cell) for method in found.methods for cell in found.of(method))
    print_notes(out, (
        (label, cell.row["message"] if cell.status == "failed" else f"scope {cell.row['scope']}")
        for label, cell in cells_of
    ))  # fmt: skip
    for line in schedules_by(found):
        say(out, line)
    say(out, closing_frontier(found))
    if found.interrupted:
        out.print("interrupted: the table is not complete")
