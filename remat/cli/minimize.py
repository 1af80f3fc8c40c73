"""``remat minimize``: the smallest budget for which there is a schedule."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from remat.cli.common import (
    ERROR,
    ConstantMemory,
    Costs,
    Device,
    Gap,
    Graph,
    Isolate,
    Json,
    Keep,
    MaxComputes,
    MemoryLimit,
    Order,
    Output,
    Picture,
    Quiet,
    SearchBackend,
    SearchSeed,
    SearchTime,
    Threads,
    class_or_name,
    load_graph,
    print_json,
)


def command(
    graph: Graph,
    *,
    order: Order = "fixed",
    max_computes: MaxComputes = None,
    keep: Keep = None,
    count_constant_memory: ConstantMemory = None,
    costs: Costs = None,
    device: Device = None,
    method: Annotated[
        str,
        typer.Option(
            "--method",
            "-f",
            help="auto, retention-intervals, a heuristic, asked for less and less, or MODULE:CLASS.",
        ),
    ] = "auto",
    backend: SearchBackend = "cp-sat",
    time_limit: SearchTime = None,
    gap: Gap = None,
    threads: Threads = None,
    isolate: Isolate = None,
    memory_limit: MemoryLimit = None,
    seed: SearchSeed = 0,
    output: Output = None,
    plot: Picture = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Find the smallest budget for which there is a schedule of GRAPH, and the cheapest schedule with that peak.

    What is printed is a budget that suffices, and a bound below which there is no schedule; `proved least` where both
    meet.

    Exit code 0: done, also after Ctrl-C; 2: an error; 130: Ctrl-C before the search began.
    """
    from remat.cli.clock import Garbage, from_start

    garbage = Garbage()
    from remat.backends.base import DEFAULT_GAP, SolveOptions
    from remat.cli.reporter import Reporter
    from remat.cli.saving import Keeper, Outputs
    from remat.cli.signals import writing
    from remat.interruption import interrupts
    from remat.io.files import check_outputs, is_standard_stream
    from remat.problem import Problem
    from remat.schedule.plots import SUFFIXES, save_plot
    from remat.solving.min_peak import minimize
    from remat.solving.stop import stopping

    options = SolveOptions(
        threads=threads, seed=seed, relative_gap=DEFAULT_GAP if gap is None else gap,
        isolate=bool(isolate), memory_limit=memory_limit,
    )  # fmt: skip
    clock = from_start(stopping(time_limit, options)[0].deadline)  # reading counts
    check_outputs((output, ()), (plot, SUFFIXES), inputs=(graph,))
    problem = Problem(
        load_graph(graph, costs, device), None, order, max_computes, tuple(keep or ()), bool(count_constant_memory)
    )
    garbage.look()
    outputs = Outputs()
    with interrupts():
        with Reporter(quiet) as reporter, Keeper(output, reporter) as keeper:
            result = minimize(
                problem, class_or_name(method, "methods"),
                None if backend == "none" else class_or_name(backend, "backends"), stop=clock,
                options=options, on_progress=keeper,
            )  # fmt: skip
        writing()
        schedule = result.schedule
        assert schedule is not None  # the reference order is one
        if output is not None:
            outputs.save_schedule(output, schedule)
        stream = sys.stderr if is_standard_stream(output) else sys.stdout
        if as_json:
            print_json(result.as_dict(), stream)
        else:
            print(result, file=stream)
        if plot is not None:
            outputs.draw(plot, lambda path: save_plot(
                problem.graph, schedule, path, result.peak,
                keep=problem.keep, count_constant_memory=problem.count_constant_memory,
            ))  # fmt: skip
    if outputs.failed:
        raise typer.Exit(ERROR)
