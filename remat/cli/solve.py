"""``remat solve``: the best schedule for a graph and a budget."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from remat.cli.common import (
    AllowImports,
    AllowSolverFiles,
    Backend,
    BaseConfig,
    Budget,
    ConstantMemory,
    Costs,
    Device,
    Gap,
    Isolate,
    Json,
    Keep,
    MaxComputes,
    MemoryLimit,
    Method,
    Objective,
    OptionalGraph,
    Output,
    Picture,
    Quiet,
    Seed,
    SolveOrder,
    Start,
    Threads,
    TimeLimit,
    base_config,
    chosen,
    end_of_solve,
)

if TYPE_CHECKING:
    from remat.solving.progress import Progress


def command(
    graph: OptionalGraph = None,
    *,
    config: BaseConfig = None,
    allow_solver_files: AllowSolverFiles = False,
    allow_imports: AllowImports = False,
    budget: Budget = None,
    objective: Objective = None,
    method: Method = None,
    backend: Backend = None,
    order: SolveOrder = None,
    max_computes: MaxComputes = None,
    keep: Keep = None,
    count_constant_memory: ConstantMemory = None,
    costs: Costs = None,
    device: Device = None,
    time_limit: TimeLimit = None,
    gap: Gap = None,
    threads: Threads = None,
    seed: Seed = None,
    start: Start = None,
    isolate: Isolate = None,
    memory_limit: MemoryLimit = None,
    warm_start: Annotated[
        Path | None, typer.Option("--warm-start", help="Schedule file to start from, in any format.")
    ] = None,
    output: Output = None,
    plot: Picture = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Find the cheapest schedule of GRAPH within a budget, or the one with the least peak.

    Everything can be said in a file (--config; `remat config --example` shows one) or by options, which go before the
    file.

    Exit code 0: a schedule was found (after Ctrl-C, too); 1: none exists or none was found; 2: an error;
    130: Ctrl-C before there was a schedule.
    """
    from remat.cli.clock import Garbage, from_start

    garbage = Garbage()
    from remat.cli.reporter import Reporter
    from remat.cli.saving import Keeper
    from remat.deadline import Deadline
    from remat.interruption import interrupts

    options = {
        "problem": chosen(
            budget=budget, order=order, max_computes=max_computes, keep=keep or None,
            count_constant_memory=count_constant_memory, costs=costs, device=device, objective=objective,
        ),
        "solve": chosen(
            method=method, backend=backend, time_limit=time_limit, gap=gap, threads=threads, seed=seed, start=start,
            isolate=isolate, memory_limit=memory_limit,
            warm_start=warm_start,
        ),
        "output": chosen(schedule=output, plot=plot, json=as_json or None, quiet=quiet or None),
    }  # fmt: skip
    required = () if objective == "least-peak" else ("budget",)
    run = base_config(
        config, graph, options, required=required, allow_solver_files=allow_solver_files, allow_imports=allow_imports
    )
    clock = from_start(Deadline.after(run.solve.time_limit))
    with interrupts():
        with Reporter(run.output.quiet) as reporter, Keeper(run.output.schedule, reporter) as keeper:

            def tell(moment: Progress) -> None:
                garbage.look()
                keeper(moment)

            result = run.run(tell, write=False, clock=clock)
        end_of_solve(result, run.output)
