"""``remat solve``: best schedule for a graph and a budget."""

from __future__ import annotations

from remat.cli.common import end_of_solve, option_values
from remat.cli.options import FILE, LIMITS, RULES, Given, MethodOptions, OptionalGraph, shared
from remat.problem.objective import Objective


@shared(*FILE, "budget", "machine", "objective", "method", "option", "backend", *RULES, *LIMITS, "warm_start",
        "schedule", "plot", "json", "quiet")  # fmt: skip
def command(graph: OptionalGraph = None, *, option: MethodOptions = None, given: Given) -> None:
    """Find the cheapest schedule of GRAPH within a budget, or the one with the least peak.

    Define the run in a file (--config; `remat config --example` shows one) or by options, which take precedence.
    `--option h-partition.max_top=10` is for a partitioner or method in the levels of `hierarchical`. If GRAPH is an
    ONNX or TensorFlow Lite model and --output has its suffix, the model is written in the order of the schedule.

    Exit code 0: a schedule was found (also after Ctrl-C); 1: none exists or none was found; 2: an error;
    130: Ctrl-C before there was a schedule.

    Examples
    --------
    remat solve unet -b 80%
    remat solve step.onnx -b 16GiB -t 5m -o schedule.json
    remat solve unet -b 80% -m checkmate/highs --plot a.png
    """
    from remat.cli.clock import from_start
    from remat.cli.reporter import Reporter
    from remat.cli.saving import Keeper
    from remat.runtime.deadline import Deadline
    from remat.runtime.interruption import interrupts

    budgeted = given.sections["problem"].get("objective") not in {each for each in Objective if each.is_memory}
    run = given.run(graph, *(("budget",) if budgeted else ())).with_options(option_values(option))
    clock = from_start(Deadline.after(run.solve.time_limit))
    with interrupts():
        with Reporter(run.output.quiet) as reporter, Keeper(run.output.schedule, reporter) as keeper:
            result = run.run(keeper, write=False, clock=clock)
        end_of_solve(result, run.output, source=run.problem.graph)
