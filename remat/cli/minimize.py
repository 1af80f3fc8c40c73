"""``remat minimize``: smallest feasible budget."""

from __future__ import annotations

import typer

from remat.cli.common import class_or_name, end_of_solve, search_backend
from remat.cli.completion import complete_method
from remat.cli.options import RULES, Given, Graph, Order, SearchBackend, SearchSeed, SearchTime, shared


@shared(*RULES, "method", "backend", "time_limit", "gap", "threads", "isolate", "memory_limit", "seed",
        "schedule", "plot", "json", "quiet")  # fmt: skip
def command(
    graph: Graph,
    *,
    order: Order = "fixed",
    method: str = typer.Option(
        "auto",
        "--method",
        "-m",
        metavar="METHOD",
        autocompletion=complete_method,
        help="auto, retention-intervals, a heuristic that runs at lower and lower budgets, or MODULE:CLASS.",
    ),
    backend: SearchBackend = "cp-sat",
    time_limit: SearchTime = None,
    seed: SearchSeed = 0,
    given: Given,
) -> None:
    """Find the smallest budget with a schedule of GRAPH, and the cheapest schedule with that peak.

    The output has a feasible budget and a bound below which no schedule exists; `proved least` if both are equal.

    Exit code 0: done, also after Ctrl-C; 2: an error; 130: Ctrl-C before the search started.

    Examples
    --------
    remat minimize unet -t 30s -o least.json
    """
    from remat.cli.clock import from_start
    from remat.cli.reporter import Reporter
    from remat.cli.saving import Keeper
    from remat.config import draw
    from remat.io.figures import SUFFIXES
    from remat.io.files import check_outputs
    from remat.runtime.interruption import interrupts
    from remat.schedule.io import SUFFIXES as SCHEDULES
    from remat.solving.min_peak import minimize
    from remat.solving.stop import stopping

    output, options = given.output(), given.solve_options(seed=seed)
    clock = from_start(stopping(time_limit, options)[0].deadline)  # includes reading
    check_outputs((output.schedule, SCHEDULES), (output.plot, SUFFIXES), inputs=(graph,))
    problem = given.problem(graph, order=order)
    with interrupts():
        with Reporter(output.quiet) as reporter, Keeper(output.schedule, reporter) as keeper:
            result = minimize(
                problem, class_or_name(method, "methods"), search_backend(backend), stop=clock, options=options,
                on_progress=keeper,
            )  # fmt: skip
        pictures = [(output.plot, lambda path: draw(result, path, result.peak))] if output.plot is not None else []
        end_of_solve(result, output, pictures=pictures)
