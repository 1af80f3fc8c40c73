"""``remat order``: the order of least peak, each op computed once."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from remat.cli.common import (
    ERROR,
    INTERRUPTED,
    NO,
    OK,
    Budget,
    ConstantMemory,
    Gap,
    Graph,
    Json,
    Keep,
    Output,
    Quiet,
    SearchBackend,
    SearchSeed,
    SearchTime,
    Threads,
    class_or_name,
    load_graph,
    print_json,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from remat.cli.saving import Outputs
    from remat.solving.result import Result

#: Seconds for the sample of orders at most.
SAMPLE_SECONDS = 60.0


def command(
    graph: Graph,
    *,
    method: Annotated[
        str,
        typer.Option(
            "--method",
            "-f",
            help="auto, serenity, kahn or another that can be asked for the least peak (`remat backends` lists them), "
            "or MODULE:CLASS.",
        ),
    ] = "auto",
    option: Annotated[
        list[str] | None,
        typer.Option(
            "--option",
            metavar="NAME=VALUE",
            help="Option of the method (divide=false, step_seconds=0.5 of serenity); may be repeated.",
        ),
    ] = None,
    budget: Budget = None,
    keep: Keep = None,
    count_constant_memory: ConstantMemory = None,
    backend: SearchBackend = "cp-sat",
    time_limit: SearchTime = None,
    gap: Gap = None,
    threads: Threads = None,
    seed: SearchSeed = 0,
    output: Output = None,
    plot: Annotated[
        Path | None, typer.Option("--plot", help="Draw the memory before and after into this file (.png, .svg).")
    ] = None,
    sample: Annotated[
        int, typer.Option("--sample", min=1, metavar="ORDERS", help="Orders at random for --plot-samples.")
    ] = 10_000,
    plot_samples: Annotated[
        Path | None,
        typer.Option("--plot-samples", help="Draw the distribution of the peaks of orders at random into this file."),
    ] = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Find the order of GRAPH that needs the least memory, each op computed once.

    What is printed is the peak of the reference order, that of the order found, and a bound that no order beats;
    `proved least` where both meet.

    Exit code 0: done, also after Ctrl-C; 1: no order within the budget exists or was found; 2: an error;
    130: Ctrl-C before there was an order.
    """  # fmt: skip
    from remat.cli.clock import Garbage, from_start

    garbage = Garbage()
    from remat.backends.base import DEFAULT_GAP, SolveOptions
    from remat.cli.reporter import Reporter
    from remat.cli.saving import Keeper, Outputs
    from remat.cli.signals import writing
    from remat.interruption import interrupts
    from remat.io.files import check_outputs, is_standard_stream
    from remat.problem import Problem
    from remat.schedule.plots import SUFFIXES
    from remat.solving.order import order
    from remat.solving.stop import stopping

    options = SolveOptions(threads=threads, seed=seed, relative_gap=DEFAULT_GAP if gap is None else gap)
    clock = from_start(stopping(time_limit, options)[0].deadline)  # reading counts
    check_outputs((output, ()), (plot, SUFFIXES), (plot_samples, SUFFIXES), inputs=(graph,))
    problem = Problem(
        load_graph(graph), budget, "free", 1, tuple(keep or ()), bool(count_constant_memory), "least-peak"
    )
    garbage.look()
    outputs = Outputs()
    with interrupts():
        with Reporter(quiet) as reporter, Keeper(output, reporter) as keeper:
            result = order(
                problem, class_or_name(method, "methods"),
                None if backend == "none" else class_or_name(backend, "backends"), stop=clock,
                options=options, method_options=_method_options(method, option or []), on_progress=keeper,
            )  # fmt: skip
        writing()
        if output is not None and result.schedule is not None:
            outputs.save_schedule(output, result.schedule)
        stream = sys.stderr if is_standard_stream(output) else sys.stdout
        if as_json:
            print_json(result.as_dict(), stream)
        else:
            print(_report(result), file=stream)
        _draw(result, outputs, plot)
        if plot_samples is not None:
            _draw_samples(result, outputs, plot_samples, sample)
    code = OK if result.schedule is not None else INTERRUPTED if result.stop == "interrupted" else NO
    raise typer.Exit(ERROR if outputs.failed else code)


def _method_options(method: str, given: list[str]) -> Any:
    """Options of the method from NAME=VALUE; values as in JSON."""
    from remat.config import make_options

    values: dict[str, Any] = {}
    for text in given:
        name, sign, value = text.partition("=")
        if not sign or not name:
            raise typer.BadParameter(f"option {text!r} is not NAME=VALUE")
        try:
            values[name] = json.loads(value)
        except ValueError:
            values[name] = value
    return make_options(method, values) if values else None


def _report(result: Result) -> str:
    """Before, after, and what is proved; the result itself where there is no order within the budget."""
    before, after = result.problem.reference_peak, result.peak
    if after is None:
        return str(result)
    saved = f" ({100 * (1 - after / before):.4g} % less)" if before else ""
    by = result.bound_kind or result.method + (f" by {result.backend}" if result.backend else "")
    gap = f"least known, gap {100 * (result.gap or 0.0):.4g} % (stopped: {result.stop})"
    states = f", {result.states:,} states explored" if result.states else ""
    found = "the reference order stays" if after == before else f"order by {result.source}"
    spent = ", ".join(f"{name} {seconds:.2f} s" for name, seconds in result.timings.items() if name != "total")
    rows = [
        ("graph", f"{result.problem.graph.name}: {len(result.problem.graph.ops):,} ops"),
        ("before", f"{before:,} bytes (reference order)"),
        ("after", f"{after:,} bytes{saved}"),
        ("bound", f"{result.bound:,} bytes, {by}"),
        ("status", f"proved least by {by}" if result.proved else gap),
        ("method", f"{result.method}{states} ({found})"),
        ("time", f"{result.timings.get('total', 0.0):.2f} s" + (f" ({spent})" if spent else "")),
    ]
    rows += [("note", result.message)] if result.message else []
    return "\n".join(f"{word:<9} {text}" for word, text in rows)


def _draw(result: Result, outputs: Outputs, path: Path | None) -> None:
    """The memory before and after."""
    from remat.schedule import Schedule
    from remat.schedule.order_plots import plot_footprints
    from remat.schedule.plots import empty_figure, write_figure

    schedule, problem = result.schedule, result.problem
    if path is None or schedule is None:
        return
    both = {"reference order": Schedule.reference(problem.graph), f"order by {result.source}": schedule}

    def picture() -> Figure:
        figure = empty_figure((10, 4))
        plot_footprints(
            problem.graph, both, figure.subplots(),
            keep=problem.keep, count_constant_memory=problem.count_constant_memory,
        )  # fmt: skip
        return figure

    outputs.draw(path, lambda where: write_figure(where, picture))


def _draw_samples(result: Result, outputs: Outputs, path: Path, number: int) -> None:
    """The distribution of peaks, with marks for the reference order, Kahn's order and the one found."""
    from remat.deadline import Deadline
    from remat.ordering.instance import OrderInstance
    from remat.ordering.rules import kahn_order
    from remat.ordering.sampling import sample_peaks
    from remat.schedule.order_plots import plot_peak_distribution
    from remat.schedule.plots import empty_figure, write_figure

    problem = result.problem
    instance = OrderInstance.of(problem)
    sample = sample_peaks(instance, number, seed=result.seed, deadline=Deadline.after(SAMPLE_SECONDS))
    marks = {"reference order": problem.reference_peak, "Kahn's order": instance.peak_of(kahn_order(instance))}
    if result.peak is not None:
        marks["least peak" if result.proved else "least peak known"] = result.peak
    how = "every order equally likely" if sample.uniform else "each ready op equally likely"
    counted = "" if sample.orders is None else f" of {sample.orders:,}"
    title = f"{problem.graph.name}: {len(sample.peaks):,} orders{counted}, {how}"

    def picture() -> Figure:
        figure = empty_figure((7, 4.8))
        plot_peak_distribution(sample.peaks, marks, figure.subplots(), title=title)
        return figure

    outputs.draw(path, lambda where: write_figure(where, picture))
