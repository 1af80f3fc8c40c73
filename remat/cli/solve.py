"""``remat solve``: the best schedule for a graph and a budget."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from remat.cli.common import (
    BUDGET_HELP,
    NO,
    OK,
    ConstantMemory,
    Graph,
    Json,
    Keep,
    MaxComputes,
    Order,
    check_output,
    load_graph,
    print_json,
)


def command(
    graph: Graph,
    *,
    budget: Annotated[str, typer.Option("--budget", "-b", help=BUDGET_HELP)],
    method: Annotated[
        str, typer.Option("--formulation", "-f", help="Formulation or heuristic; `remat backends` lists them.")
    ] = "retention-intervals",
    backend: Annotated[str, typer.Option("--backend", help="Solver; `remat backends` lists them.")] = "cp-sat",
    order: Order = "fixed",
    max_computes: MaxComputes = None,
    keep: Keep = None,
    count_constant_memory: ConstantMemory = False,
    time_limit: Annotated[
        float | None, typer.Option("--time-limit", "-t", help="Seconds for everything; default: until it is proved.")
    ] = None,
    gap: Annotated[float, typer.Option("--gap", help="Stop at this relative gap; 0: prove optimality.")] = 0.0,
    threads: Annotated[int | None, typer.Option("--threads", help="Default: as many as there are.")] = None,
    seed: Annotated[int, typer.Option("--seed", help="Seed of everything random.")] = 0,
    warm_start: Annotated[Path | None, typer.Option("--warm-start", help="Schedule file to start from.")] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write the schedule to this file.")] = None,
    plot: Annotated[Path | None, typer.Option("--plot", help="Draw the schedule into this file (.png, .svg).")] = None,
    as_json: Json = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")] = False,
) -> None:
    """Find the cheapest schedule of GRAPH within a budget.

    Exit code 0: a schedule was found (after Ctrl-C, too); 1: none exists or none was found; 2: an error;
    130: Ctrl-C before there was a schedule.
    """
    from remat.problem import Problem
    from remat.progress import Reporter
    from remat.schedule.io import read_schedule, write_schedule
    from remat.schedule.plots import SUFFIXES, save_plot
    from remat.solve import solve

    check_output(output, inputs=(graph, warm_start))
    check_output(plot, inputs=(graph, warm_start), suffixes=SUFFIXES)
    loaded = load_graph(graph)
    problem = Problem(loaded, budget, order, max_computes, keep or (), count_constant_memory)
    start = None if warm_start is None else read_schedule(warm_start, loaded)
    with Reporter(quiet) as reporter:
        result = solve(
            problem, method, backend, deadline=time_limit, warm_start=start, threads=threads, seed=seed,
            relative_gap=gap, on_progress=reporter,
        )  # fmt: skip
    # Files first: whatever becomes of standard output, the schedule is safe.
    if result.schedule is not None:
        if output is not None:
            write_schedule(result.schedule, output)
        if plot is not None:
            save_plot(
                loaded, result.schedule, plot, problem.budget_bytes,
                keep=problem.keep, count_constant_memory=count_constant_memory,
            )  # fmt: skip
    if as_json:
        print_json(result.as_dict())
    else:
        print(result)
    raise typer.Exit(OK if result.schedule is not None else 130 if result.stop == "interrupted" else NO)
