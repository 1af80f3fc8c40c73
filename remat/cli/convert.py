"""``remat convert``: a graph, or a schedule, from one file format into another."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from remat.cli.common import load_graph
from remat.files import check_output


def command(
    source: Annotated[Path, typer.Argument(metavar="IN", help="File to read; its format is found from its content.")],
    target: Annotated[Path, typer.Argument(metavar="OUT", help="File to write; its suffix names the format.")],
    graph: Annotated[
        str | None, typer.Option("--graph", metavar="GRAPH", help="IN is a schedule of this graph.")
    ] = None,
) -> None:
    """Convert a graph file, or with --graph a schedule file."""
    check_output(target, inputs=(graph,))
    if graph is None:
        from remat.graphs.io import read_graph, write_graph

        write_graph(read_graph(source), target)
    else:
        from remat.schedule.io import read_schedule, write_schedule

        write_schedule(read_schedule(source, load_graph(graph)), target)
