"""``remat order``: order of least peak without recomputation."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from remat.cli.common import class_or_name, end_of_solve, option_values, search_backend
from remat.cli.completion import complete_method
from remat.cli.options import Given, Graph, MethodOptions, SearchBackend, SearchSeed, SearchTime, shared

if TYPE_CHECKING:
    from remat.solving.result import Result

#: Most seconds for the sample of orders.
SAMPLE_SECONDS = 20.0


@shared("method", "option", "budget", "keep", "count_constant_memory", "backend", "time_limit", "gap", "threads",
        "seed", "schedule", "plot", "sample", "plot_samples", "json", "quiet")  # fmt: skip
def command(
    graph: Graph,
    *,
    method: str = typer.Option(
        "auto", "--method", "-m", metavar="METHOD", autocompletion=complete_method,
        help="auto, serenity, kahn or another method for the least peak (`remat backends` lists them), "
        "or MODULE:CLASS.",
    ),
    option: MethodOptions = None,
    backend: SearchBackend = "cp-sat",
    time_limit: SearchTime = None,
    seed: SearchSeed = 0,
    plot: Path | None = typer.Option(None, metavar="FILE", help="Draw the memory before and after (.png, .svg, .pdf)."),
    sample: int = typer.Option(10_000, min=1, metavar="N", help="Random orders for --plot-samples."),
    plot_samples: Path | None = typer.Option(
        None, metavar="FILE", help="Draw the distribution of the peaks of random orders to this file."
    ),
    given: Given,
) -> None:  # fmt: skip
    """Find the order of GRAPH with the least peak, without recomputation.

    The output has the peak of the reference order, that of the order found, and a bound for any order; `proved least`
    if the last two are equal. If GRAPH is an ONNX or TensorFlow Lite model and --output has its suffix, the model is
    written in that order.

    Exit code 0: done, also after Ctrl-C; 1: no order within the budget exists or was found; 2: an error;
    130: Ctrl-C before there was an order.

    Examples
    --------
    remat order swiftnet-c -t 10s -o order.json
    """
    from remat.cli.clock import from_start
    from remat.cli.reporter import Reporter
    from remat.cli.saving import Keeper
    from remat.config import make_options
    from remat.graphs.io import model_suffixes
    from remat.io.figures import SUFFIXES
    from remat.io.files import check_outputs
    from remat.runtime.interruption import interrupts
    from remat.schedule.io import SUFFIXES as SCHEDULES
    from remat.solving.order import order
    from remat.solving.stop import stopping

    output, options, values = given.output(), given.solve_options(seed=seed), option_values(option)
    clock = from_start(stopping(time_limit, options)[0].deadline)  # includes reading
    wanted = (*SCHEDULES, *model_suffixes(graph))
    check_outputs((output.schedule, wanted), (plot, SUFFIXES), (plot_samples, SUFFIXES), inputs=(graph,))
    problem = given.problem(graph, order="free", max_computes=1, objective="least-peak")
    with interrupts():
        with Reporter(output.quiet) as reporter, Keeper(output.schedule, reporter) as keeper:
            result = order(
                problem, class_or_name(method, "methods"), search_backend(backend), stop=clock, options=options,
                method_options=make_options(method, values) if values else None, on_progress=keeper,
            )  # fmt: skip
        pictures: list[tuple[str, Callable[[Path], object]]] = []
        if plot is not None and result.schedule is not None:
            pictures.append((str(plot), lambda path: _draw(result, path)))
        if plot_samples is not None:
            pictures.append((str(plot_samples), lambda path: _draw_samples(result, path, sample)))
        end_of_solve(result, output, _report(result), pictures=pictures, source=graph)


def _report(result: Result) -> list[tuple[str, str]]:
    """Describe peak before and after, and the proof; the result itself if no order keeps the budget."""
    before, after = result.problem.reference_peak, result.peak
    if after is None:
        return result.rows()
    saved = f" ({100 * (1 - after / before):.4g} % less)" if before else ""
    by = result.bound_kind or result.method + (f" by {result.backend}" if result.backend else "")
    gap = f"least known, gap {100 * (result.gap or 0.0):.4g} % (stopped: {result.stop})"
    states = f", {result.states:,} states explored" if result.states else ""
    found = "the reference order stays" if after == before else f"order by {result.source}"
    spent = ", ".join(f"{name} {seconds:.2f} s" for name, seconds in result.timings.items() if name != "total")
    rows = [
        ("graph", f"{result.problem.graph.name}: {len(result.problem.graph.ops):,} ops"),
        ("before", f"{before:,} bytes (reference order{_excess(before, after, result.bound)})"),
        ("after", f"{after:,} bytes{saved}"),
        ("bound", f"{result.bound:,} bytes, {by}"),
        ("status", f"proved least by {by}" if result.proved else gap),
        ("method", f"{result.method}{states} ({found})"),
        ("time", f"{result.timings.get('total', 0.0):.2f} s" + (f" ({spent})" if spent else "")),
    ]
    return rows + ([("note", result.message)] if result.message else [])


def _excess(before: int, after: int, bound: int | None) -> str:
    """Describe how far the reference order is from the least peak."""
    if before == bound:
        return ", already least"
    low, high = (f"{100 * (before / base - 1):.4g}" if base else "?" for base in (after, bound))
    return f", {low} % above the least" if low == high else f", between {low} and {high} % above the least"


def _draw(result: Result, path: Path) -> None:
    """Draw the memory before and after to a file."""
    from remat.io.figures import write_figure
    from remat.schedule import Schedule
    from remat.schedule.plots import plot_footprints

    schedule, problem = result.schedule, result.problem
    assert schedule is not None
    both = {"reference order": Schedule.reference(problem.graph), f"order by {result.source}": schedule}

    keep, counted = problem.keep, problem.count_constant_memory
    write_figure(path, lambda: plot_footprints(problem.graph, both, keep=keep, count_constant_memory=counted))


def _draw_samples(result: Result, path: Path, number: int) -> None:
    """Draw the distribution of peaks to a file, with marks for the reference, Kahn's and the best order."""
    from remat.cli.terminal import say
    from remat.io.figures import write_figure
    from remat.ordering.instance import OrderInstance
    from remat.ordering.rules import kahn_order
    from remat.ordering.sampling import sample_peaks
    from remat.runtime.deadline import Deadline
    from remat.schedule.plots import plot_peak_distribution

    problem = result.problem
    instance = OrderInstance.of(problem, least=False)
    sample = sample_peaks(instance, number, seed=result.seed, deadline=Deadline.after(SAMPLE_SECONDS))
    if len(sample.peaks) < number:
        say("remark", f"{path} shows {len(sample.peaks):,} of {number:,} random orders: {SAMPLE_SECONDS:g} s are over")
    marks = {"reference order": problem.reference_peak, "Kahn's order": instance.peak_of(kahn_order(instance))}
    if result.peak is not None:
        marks["least peak" if result.proved else "least peak known"] = result.peak
    how = "every order equally likely" if sample.uniform else "each ready op equally likely"
    counted = "" if sample.orders is None else f" of {sample.orders:,}"
    title = f"{problem.graph.name}: {len(sample.peaks):,} orders{counted}, {how}"

    write_figure(path, lambda: plot_peak_distribution(sample.peaks, marks, title=title))
