"""``remat bounds``: lower bounds on peak and cost of any schedule."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from remat.cli.common import print_json
from remat.cli.completion import complete_formulations
from remat.cli.options import RULES, Given, Graph, Order, shared, time_option, words
from remat.cli.screen import say_sentence
from remat.cli.terminal import INTERRUPTED, NO

if TYPE_CHECKING:
    from remat.bounds import Bound
    from remat.problem import Problem


@shared("budget", *RULES, "time_limit", "relaxations", "threads", "isolate", "memory_limit", "json")
def command(
    graph: Graph,
    *,
    order: Order = "fixed",
    time_limit: Annotated[float | None, time_option("Time for all bounds; default: unlimited")] = None,
    relaxations: list[str] | None = typer.Option(
        None, metavar="FORMULATION,...", autocompletion=complete_formulations,
        help="Add bounds of the linear relaxations of these formulations; separate by commas or repeat.",
    ),
    given: Given,
) -> None:  # fmt: skip
    """Bound the peak of schedules of GRAPH, and their cost within a budget, from below.

    Exit code 0: done; 1: no schedule keeps the budget; 2: an error; 130: Ctrl-C, which keeps the bounds so far.

    Examples
    --------
    remat bounds unet -b 80%
    """
    from remat import registry
    from remat.bounds.selection import applies, bounds
    from remat.cli.clock import from_start
    from remat.cli.console import DETAIL, NUMBER, TEXT, console, print_columns, print_notes
    from remat.runtime.deadline import Deadline
    from remat.runtime.interruption import interrupted, interrupts

    clock = from_start(Deadline.after(time_limit))  # includes reading
    named = words(relaxations)
    for word in named:
        registry.load("formulations", word)
    options = given.solve_options()
    problem = given.problem(graph, order=order)
    with interrupts():
        found = bounds(
            problem, clock, threads=options.threads, memory_limit=options.memory_bytes, isolate=options.isolate,
            relaxations=tuple(named),
        )  # fmt: skip
        infeasible = any(bound.infeasible and applies(bound, problem) for bound in found)
        cut_short = interrupted()
        if given.json:
            print_json(_facts(problem, found, infeasible))
        else:
            out, rows = console(), [_row(problem, bound) for bound in found]
            columns = [("bound", TEXT), ("on", {}), ("at least", NUMBER), ("share", TEXT), ("seconds", DETAIL)]
            print_columns(out, f"{problem.graph.name}, bounds", columns, rows)
            print_notes(
                out, ((row[0], f"of schedules in {bound.scope}") for row, bound in zip(rows, found, strict=True))
            )
            for bound in found:
                if bound.note:
                    say_sentence(f"{bound.kind.removeprefix('the ')}: {bound.note}")
            if infeasible:
                print("no schedule keeps the budget")
            if cut_short:
                print("interrupted: the bounds may improve with more time")
    if infeasible or cut_short:
        raise typer.Exit(NO if infeasible else INTERRUPTED)


def _row(problem: Problem, bound: Bound) -> tuple[str, ...]:
    if bound.value is None:
        words = ("no schedule", "") if bound.infeasible else ("unknown", "")
    elif bound.measure == "peak":
        peak = problem.reference_peak
        share = f"{100 * bound.value / peak:.4g} % of peak" if peak else ""
        words = (f"{bound.value:,} bytes", share + ", over the budget" * bound.infeasible)
    else:
        words = (f"{bound.value:,}", "" if bound.overhead is None else f"overhead {bound.overhead:.4g} %")
    return bound.kind.removeprefix("the "), str(bound.measure), *words, f"{bound.seconds:.2f}"


def _facts(problem: Problem, found: list[Bound], infeasible: bool) -> dict[str, Any]:
    return {
        "graph": problem.graph.name,
        "graph_digest": problem.graph.digest,
        "budget": problem.budget_bytes,
        "order": str(problem.order),
        "reference_peak": problem.reference_peak,
        "base_cost": problem.graph.base_cost,
        "cost_unit": problem.graph.cost_unit,
        "infeasible": infeasible,
        "bounds": [
            {
                "bound": bound.kind,
                "measure": str(bound.measure),
                "value": bound.value,
                "overhead": bound.overhead,
                "infeasible": bound.infeasible,
                "cause": bound.cause or None,
                "note": bound.note or None,
                "scope": bound.scope.as_dict(),
                "seconds": bound.seconds,
                "versions": dict(bound.versions),
            }
            for bound in found
        ],
    }
