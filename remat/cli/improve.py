"""``remat improve``: a better schedule than the one that there is."""

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
    Graph,
    Isolate,
    Json,
    Keep,
    MaxComputes,
    MemoryLimit,
    Method,
    Output,
    Picture,
    Quiet,
    Seed,
    SolveOrder,
    Threads,
    TimeLimit,
    base_config,
    chosen,
    end_of_solve,
)

if TYPE_CHECKING:
    from remat.problem import Problem
    from remat.schedule import Schedule
    from remat.schedule.certificate import Certificate
    from remat.solving.result import Result


def command(
    graph: Graph,
    schedule: Annotated[Path, typer.Argument(metavar="SCHEDULE", help="Schedule file, in any format.")],
    *,
    config: BaseConfig = None,
    allow_solver_files: AllowSolverFiles = False,
    allow_imports: AllowImports = False,
    budget: Budget = None,
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
    isolate: Isolate = None,
    memory_limit: MemoryLimit = None,
    output: Output = None,
    plot: Picture = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Find a better schedule of GRAPH within a budget than SCHEDULE, which is where the search starts.

    SCHEDULE may be over the budget, but must be valid otherwise. The better schedule is written to --output, and how
    much better it is stands in the result; where nothing better is found, it is SCHEDULE or one just as good.

    Exit code 0: there is a schedule within the budget, SCHEDULE or a better one (after Ctrl-C, too); 1: none exists or
    none was found; 2: an error, or SCHEDULE is not valid; 130: Ctrl-C before there was a schedule.
    """
    from remat.cli.clock import Garbage, from_start

    garbage = Garbage()
    from remat.cli.reporter import Reporter
    from remat.cli.saving import Keeper
    from remat.deadline import Deadline
    from remat.interruption import interrupts
    from remat.schedule.io import read_schedule

    options = {
        "problem": chosen(
            budget=budget, order=order, max_computes=max_computes, keep=keep or None,
            count_constant_memory=count_constant_memory, costs=costs, device=device,
        ),
        "solve": chosen(
            method=method, backend=backend, time_limit=time_limit, gap=gap, threads=threads, seed=seed,
            isolate=isolate, memory_limit=memory_limit,
            warm_start=schedule,
        ),
        "output": chosen(schedule=output, plot=plot, json=as_json or None, quiet=quiet or None),
    }  # fmt: skip
    run = base_config(
        config, graph, options, required=("budget",), allow_solver_files=allow_solver_files, allow_imports=allow_imports
    )
    clock = from_start(Deadline.after(run.solve.time_limit))  # reading counts
    problem = run.make_problem()
    garbage.look()
    start = read_schedule(schedule, problem.graph)
    given = validated(problem, start, str(schedule))
    with interrupts():
        with Reporter(run.output.quiet) as reporter, Keeper(run.output.schedule, reporter) as keeper:
            result = run.run(keeper, problem=problem, warm_start=start, write=False, clock=clock)
        end_of_solve(result, run.output, ("improved", saving(given, result)), {"given": given.as_dict()})


def validated(problem: Problem, schedule: Schedule, name: str) -> Certificate:
    """The certificate of a schedule to be improved.

    Raises
    ------
    ScheduleError
        Naming the file and the violation, if any rule but the budget is broken.
    """
    from remat.errors import ScheduleError
    from remat.schedule import OrderRule, Rule, Verdict
    from remat.schedule.validate import validate

    certificate = validate(problem.graph, schedule, problem.rules)
    if certificate.verdict is Verdict.INVALID:
        first = certificate.first
        assert first is not None
        advice = " (--order free allows it)" if first.rule is Rule.ORDER and problem.order is OrderRule.FIXED else ""
        raise ScheduleError(f"{name}: not a valid schedule of {problem.graph.name!r}: {first}{advice}")
    return certificate


def saving(given: Certificate, result: Result) -> str:
    """By how much the schedule of `result` is better than the one that was given."""
    found = result.certificate
    over = "" if given.accepted else f"the schedule given is over the budget (peak {given.peak:,} bytes)"
    if found is None:
        return f"{over}, and none within it was found"
    if over:
        return f"{over}; one within it costs {found.cost:,} instead of {given.cost:,}"
    if found.cost < given.cost:
        less = f"{100 * (given.cost - found.cost) / given.cost:.4g} %"
        overheads = f"overhead {given.overhead:.4g} % -> {found.overhead:.4g} %, " if given.base_cost else ""
        return f"{overheads}cost {given.cost:,} -> {found.cost:,}, {less} less"
    if found.peak < given.peak:
        return f"same cost, peak {given.peak:,} -> {found.peak:,} bytes"
    return "nothing better was found" + (", and within the scope nothing is" if result.status == "optimal" else "")
