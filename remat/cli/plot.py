"""``remat plot``: picture of a schedule."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import typer

from remat.cli.common import load_graph
from remat.cli.options import Budget, Graph, Machine, ScheduleFile
from remat.cli.terminal import say
from remat.io.files import check_output

Axis = Literal["time", "step"]


def command(
    graph: Graph,
    schedule: ScheduleFile,
    *,
    output: Path = typer.Option(..., "--output", "-o", metavar="FILE", help="Picture to write (.png, .svg, .pdf)."),
    budget: Budget = None,
    machine: Machine = None,
    axis: Axis = typer.Option(
        "time", metavar="time|step", help="Horizontal axis: time (cost of the computes) or steps."
    ),
) -> None:
    """Draw the memory and the retention intervals of SCHEDULE.

    With --machine, draw the memory of device and host, the work of device and links, and shade the waits, over time.

    Examples
    --------
    remat plot unet schedule.json -o unet.png
    remat plot gpt offloaded.json --machine pcie4 -o gpt.png
    """
    from remat.io.figures import SUFFIXES, write_figure
    from remat.problem import Problem
    from remat.schedule.io import read_with_format
    from remat.schedule.plots import save_plot
    from remat.schedule.step_lines import StepLines, described
    from remat.schedule.transfer_plots import plot_transfers
    from remat.schedule.validate import validate

    check_output(output, inputs=(graph, schedule), suffixes=SUFFIXES)
    loaded = load_graph(graph)
    problem = Problem(loaded, budget, machine=machine)
    drawn, format_name = read_with_format(schedule, loaded)
    if (host := problem.machine) is not None:
        write_figure(output, lambda: plot_transfers(loaded, drawn, host, problem.budget_bytes))
        return
    broken = validate(loaded, drawn).violations
    lines = StepLines.of(schedule, format_name, drawn, loaded) if broken else None
    save_plot(loaded, drawn, output, problem.budget_bytes, axis=axis, lines=lines)
    if broken:
        say("remark", f"{schedule} is not a valid schedule: {described(broken[0], lines)}")
