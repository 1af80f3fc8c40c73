"""``remat compare``: several methods at several budgets, one after another."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from remat.cli.budgets import Budgets, read_budgets
from remat.cli.common import class_or_name
from remat.cli.options import FILE, LIMITS, RULES, TABLES, Given, Methods, OptionalGraph, Tables, shared, words
from remat.cli.saving import Outputs, write_plot_or_page
from remat.cli.screen import memory
from remat.cli.signals import writing
from remat.cli.stored import StoreUrl, print_stored, stored_runs
from remat.cli.terminal import INTERRUPTED, NO, OK
from remat.io.files import check_outputs
from remat.io.page import SUFFIXES as PAGE_SUFFIXES
from remat.problem.objective import Objective
from remat.runtime.interruption import interrupts

if TYPE_CHECKING:
    from remat.config import Config
    from remat.experiments.compare import Comparison
    from remat.experiments.contestant import Contestant
    from remat.experiments.runs import Run
    from remat.solving.result import Result


@shared(
    *FILE,
    "budgets",
    "methods",
    *RULES,
    "machine",
    "objective",
    *LIMITS,
    "store",
    "tables",
    "plot",
    "peaks",
    "json",
    "quiet",
)
def command(
    graph: OptionalGraph = None,
    schedules: Annotated[
        list[Path] | None,
        typer.Argument(metavar="SCHEDULE", help="Schedule files of other tools to compare with the methods."),
    ] = None,
    *,
    budgets: Budgets = None,
    methods: Methods = None,
    store: StoreUrl = None,
    tables: Tables = None,
    plot: Path | None = typer.Option(
        None, metavar="FILE", help="Draw overhead or peak against time (.png, .svg, .pdf, or .html: interactive)."
    ),
    peaks: Path | None = typer.Option(
        None, "--trade-off", metavar="FILE", help="Draw overhead against peak of files and methods (.png, .svg, .pdf)."
    ),
    given: Given,
) -> None:  # fmt: skip
    """Compare methods on GRAPH: every method at every budget, one after another, with equal limits.

    SCHEDULE files are certified on GRAPH. They are listed with the methods in a table of peak and overhead, and drawn
    by --trade-off. Without budgets and methods, only the files are compared.

    Limits and rules apply to each run. With --config they come from that file, as do options of formulations and
    solvers, and the method and budget if none is given here.

    A failure is recorded in the method's line, and the other methods continue. Files are written after every run;
    Ctrl-C keeps finished runs. With --store the same command solves only what is missing, and `remat study` reports
    and exports the runs.

    Exit code 0: some method found a schedule, or a file has a valid one; 1: none; 2: an error in the input; 130:
    Ctrl-C.

    Examples
    --------
    remat compare unet -b 90%,80% -m greedy,checkmate/highs -t 1m
    remat compare unet mine.json theirs.json --trade-off both.png
    """
    from remat.cli.reporter import Reporter
    from remat.cli.trade_off import print_trade_off, read_points, with_points
    from remat.experiments.compare import Comparison, compare
    from remat.experiments.trade_off import trade_off
    from remat.io.figures import SUFFIXES

    run = given.run(graph)
    files = schedules or []
    outs = (*((path, TABLES) for path in tables or ()), (plot, (*SUFFIXES, *PAGE_SUFFIXES)), (peaks, SUFFIXES))
    check_outputs(*outs, inputs=(run.problem.graph, given.config, *files))
    only_files = bool(files) and not budgets and not methods and given.config is None

    outputs = Outputs()

    def text_of(path: Path, comparison: Comparison) -> str:
        if path.suffix.lower() == ".json":
            return with_points(comparison, points)
        return trade_off(comparison, points).to_csv() if only_files else comparison.to_csv()

    def write(comparison: Comparison) -> None:
        for path in tables or ():
            outputs.attempt_text(path, text_of(path, comparison))
        if plot is not None:
            outputs.attempt(plot, lambda where: write_plot_or_page(where, comparison))

    problem = run.make_problem()
    points = read_points(files, problem)
    with interrupts(), stored_runs(store, "compare", problem.graph.name) as runs:
        if only_files:
            done = Comparison(problem, (), {})
        else:
            done = compare(
                problem, _budgets(budgets, run), methods_of(methods, run),
                stop=run.solve.time_limit, options=run.solve_options(problem.graph),
                store=runs, watch=lambda label: Reporter(run.output.quiet, label=label), on_run=write,
            )  # fmt: skip
        writing()
        for path in tables or ():
            outputs.save_text(path, text_of(path, done))
        if given.json:
            print(with_points(done, points), end="")
        elif done.runs:
            print_comparison(done)
        if points and not given.json:
            print_trade_off(trade_off(done, points))
        if plot is not None:
            outputs.plot_or_page(plot, done)
        if peaks is not None:
            outputs.plot(peaks, trade_off(done, points).plot)
        print_stored(runs, outputs, quiet=given.json)
    found = any(one.result is not None and one.result.schedule is not None for one in done.runs)
    found = found or any(point.certified for point in points)
    outputs.leave(INTERRUPTED if done.interrupted else OK if found else NO)


def _budgets(given: list[str] | None, run: Config) -> list[str | int | float | None]:
    budgets: list[str | int | float | None] = [*read_budgets(given)]
    asked = run.problem.objective
    if not budgets and run.problem.budget is None and not (asked is not None and Objective(asked).is_memory):
        raise typer.BadParameter("Missing option '--budgets'.")
    return budgets or [run.problem.budget]


def methods_of(given: list[str] | None, run: Config) -> list[Contestant]:
    """Return the methods of the given names, with their options from the configuration."""
    from dataclasses import replace

    from remat.experiments.contestant import Contestant

    named = words(given)
    backend = run.named(run.solve.backend, "backends")
    if named:
        methods = [Contestant.parse(word, backend, class_or_name) for word in named]
    else:
        methods = [Contestant.of(run.named(run.solve.method, "methods"), default=backend)]
    return [
        replace(method, options=run.options_of(method.name), solver_options=run.solver_options_of(method.backend_name))
        for method in methods
    ]


def print_comparison(comparison: Comparison) -> None:
    """Print a table for each budget, followed by scopes and notes."""
    from remat.cli.closing import closing_comparison
    from remat.cli.console import DETAIL, NUMBER, TEXT, console, print_columns, print_notes, say

    out = console()
    details = dict.fromkeys(("best at", "build", "phase 1", "variables", "constraints"), DETAIL)
    transfers = () if comparison.problem.machine is None else ("waits", "moved", "host peak")
    times = ("best at", "build", "phase 1", "total", "variables", "constraints")
    numbers = ("overhead", "bound", "gap", "peak", *transfers, *times)
    columns = [
        ("method", TEXT), ("status", {**TEXT, "max_width": 50}),
        *((heading, details.get(heading, NUMBER)) for heading in numbers), ("schedule by", TEXT),
    ]  # fmt: skip
    versions: dict[str, str] = {}
    for runs in comparison.by_budget():
        problem, budget = runs[0].problem, runs[0].budget
        size = "no budget" if problem.budget_bytes is None else f"budget {budget}: {problem.budget_bytes:,} bytes"
        print_columns(out, f"{problem.graph.name}, {size}", columns, map(_cells, runs))
        done = [(run.method.label, run.result) for run in runs if run.result is not None]
        for _, result in done:
            versions.update(result.versions)
        print_notes(
            out, ((label, "; ".join(filter(None, (f"{result.scope}", result.message)))) for label, result in done)
        )
        say(out, closing_comparison(runs))
        out.print()
    seconds = {"time_limit": " s"}
    limits = [
        f"{name.replace('_', ' ')} " + (f"{value:g}{seconds.get(name, '')}" if type(value) is float else str(value))
        for name, value in comparison.limits.items()
        if value is not None and value is not False
    ]
    say(out, f"limits of each run: {', '.join(limits)}")
    say(out, f"versions: {', '.join(f'{name} {version}' for name, version in versions.items())}")
    if comparison.interrupted:
        out.print("interrupted: the matrix is not complete")


def _cells(run: Run) -> list[str]:
    from remat.schedule.certificate import overhead_text

    answer = run.result
    if answer is None:
        return [run.method.label, f"failed: {run.error}"]

    def shown(number: float | None, form: str = "{:,}") -> str:
        return "-" if number is None else form.format(number)

    base = run.problem.objective.base(run.problem.graph)
    times = (run.seconds_to_best, *(answer.timings.get(part) for part in ("build", "preliminary", "total")))
    stop = "" if answer.stop in ("finished", "other") else f" ({answer.stop})"
    return [
        run.method.label,
        f"{answer.status}{stop}",
        shown(answer.cost) if answer.overhead is None else f"{answer.overhead:.4g} %",
        "-" if answer.status == "infeasible" else overhead_text(answer.bound, base),
        "-" if answer.gap is None else f"{100 * answer.gap:.3g} %",
        "-" if answer.peak is None else memory(answer.peak),
        *_transfers(answer),
        *(shown(time, "{:.2f} s") for time in times),
        *map(shown, (answer.variables, answer.constraints)),
        answer.source or "-",
    ]


def _transfers(answer: Result) -> list[str]:
    """Return waits, bytes moved both ways and the host's peak; none if the problem has no machine."""
    if answer.problem.machine is None:
        return []
    moved = None if answer.certificate is None else answer.certificate.transfers
    if moved is None:
        return ["-", "-", "-"]
    share = 100 * moved.stall / moved.time if moved.time and moved.stall is not None else 0
    return [f"{share:.3g} %", memory(moved.bytes_written + moved.bytes_read), memory(moved.host_peak)]
