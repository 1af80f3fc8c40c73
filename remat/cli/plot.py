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
    from remat.schedule.step_lines import StepLines, described
    from remat.schedule.validate import validate

    check_output(output, inputs=(graph, schedule), suffixes=SUFFIXES)
    loaded = load_graph(graph)
    drawn, format_name = read_with_format(schedule, loaded)
    budget_bytes, broken = Problem(loaded, budget).budget_bytes, validate(loaded, drawn).violations
    lines = StepLines.of(schedule, format_name, drawn, loaded) if broken else None
    save_plot(loaded, drawn, output, budget_bytes, axis=axis, lines=lines)
    if broken:
        say("remark", f"{schedule} is not a valid schedule: {described(broken[0], lines)}")
