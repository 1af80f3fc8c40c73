"""``remat minimize``: the smallest budget for which there is a schedule."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from remat.cli.common import (
    ConstantMemory,
    Graph,
    Json,
    Keep,
    MaxComputes,
    Order,
    Output,
    Picture,
    Quiet,
    Threads,
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
    backend: Annotated[
        str, typer.Option("--backend", help="Solver, NAME or NAME:VARIANT; `none`: heuristics and search alone.")
    ] = "cp-sat",
    time_limit: Annotated[
        float | None,
        typer.Option("--time-limit", "-t", help="Seconds for everything; default: until there is nothing more to try."),
    ] = None,
    threads: Threads = None,
    seed: Annotated[int, typer.Option("--seed", help="Seed of everything random.")] = 0,
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
    from remat.backends.base import SolveOptions
    from remat.cli.reporter import Reporter
    from remat.io.files import check_outputs, is_standard_stream
    from remat.problem import Problem
    from remat.schedule.io import write_schedule
    from remat.schedule.plots import SUFFIXES, save_plot
    from remat.solving.min_peak import minimize

    check_outputs((output, ()), (plot, SUFFIXES), inputs=(graph,))
    problem = Problem(load_graph(graph), None, order, max_computes, tuple(keep or ()), bool(count_constant_memory))
    with Reporter(quiet) as reporter:
        result = minimize(
            problem, backend=None if backend == "none" else backend, stop=time_limit,
            options=SolveOptions(threads=threads, seed=seed), on_progress=reporter,
        )  # fmt: skip
    if output is not None:
        write_schedule(result.schedule, output)
    if plot is not None:
        save_plot(
            problem.graph, result.schedule, plot, result.peak,
            keep=problem.keep, count_constant_memory=problem.count_constant_memory,
        )  # fmt: skip
    if as_json:
        print_json(result.as_dict(), sys.stderr if is_standard_stream(output) else sys.stdout)
    else:
        print(result, file=sys.stderr if is_standard_stream(output) else sys.stdout)
