"""``remat view``: interactive page of a schedule."""

from __future__ import annotations

from pathlib import Path

import typer

from remat.cli.common import load_graph
from remat.cli.options import Budget, ConstantMemory, Graph, Keep, Machine, OptionalSchedule
from remat.cli.saving import Outputs
from remat.cli.terminal import OK, say
from remat.io.files import check_output


def command(
    graph: Graph,
    schedule: OptionalSchedule = None,
    *,
    output: Path = typer.Option(..., "--output", "-o", metavar="FILE", help="Page to write (.html)."),
    budget: Budget = None,
    machine: Machine = None,
    keep: Keep = None,
    count_constant_memory: ConstantMemory = None,
) -> None:
    """Write SCHEDULE as an interactive page: memory and tensors over time, in one file that needs no network.

    With --machine, also the work of its links, and the times at which the device waits for them.

    Exit code 0: done; 2: an error.

    Examples
    --------
    remat view unet schedule.json -o unet.html
    remat view gpt offloaded.json --machine pcie4 -o gpt.html
    """
    from remat.io.page import SUFFIXES
    from remat.problem import Problem
    from remat.schedule import Rules, Schedule
    from remat.schedule.io import read_with_format
    from remat.schedule.pages import schedule_page
    from remat.schedule.step_lines import StepLines, described
    from remat.schedule.validate import validate

    check_output(output, inputs=(graph, schedule), suffixes=SUFFIXES)
    loaded = load_graph(graph)
    counted = bool(count_constant_memory)
    problem = Problem(loaded, budget, count_constant_memory=counted, machine=machine)
    kept = frozenset(keep or ())
    rules = Rules(budget=problem.budget_bytes, keep=kept, count_constant_memory=counted, machine=problem.machine)
    outputs = Outputs()
    steps, format_name = (Schedule.reference(loaded), "") if schedule is None else read_with_format(schedule, loaded)
    first = validate(loaded, steps, rules).decisive
    lines = None if schedule is None or first is None else StepLines.of(schedule, format_name, steps, loaded)
    outputs.save_text(output, schedule_page(loaded, steps, rules, lines))
    if first is not None:
        say("remark", f"{schedule or 'the reference order'} is marked on the page: {described(first, lines)}")
    outputs.leave(OK)
