"""``remat bounds``: lower bounds on peak, cost and time of any schedule."""

from __future__ import annotations

import sys
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


@shared("budget", "machine", *RULES, "time_limit", "relaxations", "threads", "isolate", "memory_limit", "json", "quiet")
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
    """Bound the peak of schedules of GRAPH, and their cost (on a machine, time) within a budget, from below.

    Exit code 0: done; 1: no schedule keeps the budget; 2: an error; 130: Ctrl-C, which keeps the bounds so far.

    Examples
    --------
    remat bounds unet -b 80%
    """
    from remat import registry
    from remat.bounds.selection import applies, bounds_in_turn
    from remat.cli.clock import from_start
    from remat.cli.console import DETAIL, NUMBER, TEXT, console, print_columns, print_notes
    from remat.cli.reporter import Reporter
    from remat.runtime.deadline import Deadline
    from remat.runtime.interruption import interrupted, interrupts

    clock = from_start(Deadline.after(time_limit))  # includes reading
    named = words(relaxations)
    for word in named:
        registry.load("formulations", word)
    options = given.solve_options()
    problem = given.problem(graph, order=order)
    with interrupts():
        turns = bounds_in_turn(
            problem, clock, threads=options.threads, memory_limit=options.memory_bytes, isolate=options.isolate,
            relaxations=tuple(named),
        )  # fmt: skip
        best: dict[str, Bound] = {}
        with Reporter(given.output().quiet or not sys.stderr.isatty(), limit=clock.remaining) as reporter:
            for bound in turns:
                best[bound.kind] = bound
                reporter.news("", ": ".join(_row(problem, bound)[:3:2]))
        found = list(best.values())
        infeasible = any(bound.infeasible and applies(bound, problem) for bound in found)
        cut_short = interrupted()
        if given.json:
            print_json(_facts(problem, found, infeasible))
        else:
            out, rows = console(), [_row(problem, bound) for bound in found]
            columns = [("bound", TEXT), ("on", {}), ("at least", NUMBER), ("cost", DETAIL), ("seconds", DETAIL)]
            print_columns(out, f"{problem.graph.name}, bounds", columns, rows)
            print_notes(
                out, ((row[0], f"of schedules in {bound.scope}") for row, bound in zip(rows, found, strict=True))
            )
            for bound in found:
                if bound.note:
                    say_sentence(f"{bound.kind.removeprefix('the ')}: {bound.note}")
            if infeasible:
                say_sentence("No schedule keeps the budget.")
            if cut_short:
                say_sentence("interrupted: the bounds may improve with more time")
    if infeasible or cut_short:
        raise typer.Exit(NO if infeasible else INTERRUPTED)


def _row(problem: Problem, bound: Bound) -> tuple[str, ...]:
    if bound.value is None:
        words = ("no schedule", "") if bound.infeasible else ("unknown", "")
    elif bound.measure == "peak":
        peak = problem.reference_peak
        share = f" ({100 * bound.value / peak:.4g} %)" if peak else ""
        words = (f"{bound.value:,} bytes{share}{' > budget' * bound.infeasible}", "")
    else:
        cost = f"{bound.value:,}"
        words = (cost if bound.overhead is None else f"overhead {bound.overhead:.4g} %", cost)
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
