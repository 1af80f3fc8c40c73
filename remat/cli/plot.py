"""``remat plot``: picture of a schedule."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import typer

from remat.cli.common import load_graph
from remat.cli.options import Budget, Graph, ScheduleFile
from remat.cli.terminal import say
from remat.io.files import check_output

Axis = Literal["time", "step"]


def command(
    graph: Graph,
    schedule: ScheduleFile,
    *,
    output: Path = typer.Option(..., "--output", "-o", metavar="FILE", help="Picture to write (.png, .svg, .pdf)."),
    budget: Budget = None,
    axis: Axis = typer.Option(
        "time", metavar="time|step", help="Horizontal axis: time (cost of the computes) or steps."
    ),
) -> None:
    """Draw the memory and the retention intervals of SCHEDULE.

    Examples
    --------
    remat plot unet schedule.json -o unet.png
    """
    from remat.io.figures import SUFFIXES
    from remat.problem import Problem
    from remat.schedule.io import read_with_format
    from remat.schedule.plots import save_plot
    from remat.schedule.step_lines import step_lines
    from remat.schedule.validate import validate

    check_output(output, inputs=(graph, schedule), suffixes=SUFFIXES)
    loaded = load_graph(graph)
    drawn, format_name = read_with_format(schedule, loaded)
    save_plot(loaded, drawn, output, Problem(loaded, budget).budget_bytes, axis=axis)
    if broken := validate(loaded, drawn).violations:
        lines, step = step_lines(schedule, format_name, drawn, loaded), broken[0].step
        where = f"{schedule}:{lines[step]}" if lines and step is not None else f"{schedule}"
        say("remark", f"{where} is not a valid schedule: {broken[0].message}")
