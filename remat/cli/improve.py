"""``remat improve``: improvement of a given schedule."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from remat.cli.common import end_of_solve
from remat.cli.completion import complete_schedule
from remat.cli.options import FILE, LIMITS, RULES, Given, Graph, shared

if TYPE_CHECKING:
    from remat.problem import Problem
    from remat.schedule import Schedule
    from remat.schedule.certificate import Certificate
    from remat.solving.result import Result


@shared(*FILE, "budget", "machine", "method", "backend", *RULES, *(key for key in LIMITS if key != "start"),
        "schedule", "plot", "json", "quiet")  # fmt: skip
def command(
    graph: Graph,
    schedule: Annotated[
        Path, typer.Argument(metavar="SCHEDULE", autocompletion=complete_schedule, help="Schedule file, in any format.")
    ],
    *,
    given: Given,
) -> None:
    """Find a better schedule of GRAPH within a budget, starting from SCHEDULE.

    SCHEDULE may exceed the budget, but must be valid otherwise. --output receives the better schedule, and the result
    states the improvement. Without one, the output is SCHEDULE or an equally good schedule.

    Exit code 0: there is a schedule within the budget, SCHEDULE or a better one (also after Ctrl-C); 1: none exists or
    none was found; 2: an error, or SCHEDULE is not valid; 130: Ctrl-C before there was a schedule.

    Examples
    --------
    remat improve unet schedule.json -b 80% -t 1m -o better.json
    """
    from remat.cli.clock import from_start
    from remat.cli.reporter import Reporter
    from remat.cli.saving import Keeper
    from remat.runtime.deadline import Deadline
    from remat.runtime.interruption import interrupts
    from remat.schedule.io import read_schedule

    given.sections["solve"]["warm_start"] = str(schedule)
    run = given.run(graph, "budget")
    clock = from_start(Deadline.after(run.solve.time_limit))  # includes reading
    problem = run.make_problem()
    start = read_schedule(schedule, problem.graph)
    before = validated(problem, start, str(schedule))
    with interrupts():
        with Reporter(run.output.quiet) as reporter, Keeper(run.output.schedule, reporter) as keeper:
            result = run.run(keeper, problem=problem, warm_start=start, write=False, clock=clock)
        rows = [*result.rows(), ("improved", saving(before, result))]
        end_of_solve(result, run.output, rows, {"given": before.as_dict()}, source=run.problem.graph)


def validated(problem: Problem, schedule: Schedule, name: str) -> Certificate:
    """Return the certificate of a schedule to improve.

    Raise ScheduleError with the path and the violation, if any rule except the budget is violated.
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
    """Describe the improvement of `result` over the given schedule."""
    from remat.schedule.certificate import overhead_text

    found = result.certificate
    over = "" if given.accepted else f"the schedule given is over the budget (peak {given.peak:,} bytes)"
    if found is None:
        return f"{over}, and none within it was found"
    objective = result.problem.objective
    before, after, other = objective.value(given), objective.value(found), objective.other
    if over:
        return f"{over}; one within it {objective.verb} {after:,} instead of {before:,}"
    if after < before:
        less, base = f"{100 * (before - after) / before:.4g} %", objective.base(result.problem.graph)
        overheads = f"overhead {overhead_text(before, base)} -> {overhead_text(after, base)}, " if base else ""
        return f"{overheads}{objective.word} {before:,} -> {objective.text(after)}, {less} less"
    if objective.rank(found) < objective.rank(given):
        return f"same {objective.word}, {other.word} {other.value(given):,} -> {other.text(other.value(found))}"
    return "nothing better was found" + (", and within the scope nothing is" if result.status == "optimal" else "")
