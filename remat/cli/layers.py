"""``remat layers``: saved and recomputed tensors of a schedule, layer by layer."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from remat.cli.common import load_graph, load_schedule, print_json
from remat.cli.options import ConstantMemory, Graph, Json, Keep, OptionalSchedule
from remat.cli.saving import Outputs
from remat.cli.terminal import OK
from remat.io.files import check_outputs

if TYPE_CHECKING:
    from remat.schedule.traces import LayerTable


def command(
    graph: Graph,
    schedule: OptionalSchedule = None,
    *,
    by: str | None = typer.Option(
        None,
        metavar="module|type",
        help="Rows by module or by type of op; default: what the graph has, otherwise parts of the order.",
    ),
    depth: int | None = typer.Option(
        None, min=1, metavar="N", help="Parts of a module path that form a row; default: up to its first number."
    ),
    collapse: bool = typer.Option(True, "--collapse/--all", help="Join equal layers in one row."),
    keep: Keep = None,
    count_constant_memory: ConstantMemory = None,
    tables: list[Path] | None = typer.Option(
        None, "--output", "-o", metavar="FILE", help="Write the table to this file (.md, .csv); repeatable."
    ),
    plot: Path | None = typer.Option(
        None, metavar="FILE", help="Draw the bytes and the time of each layer to this file (.png, .svg, .pdf)."
    ),
    as_json: Json = False,
) -> None:
    """Show bytes and time that SCHEDULE saves and recomputes in each layer of GRAPH.

    Exit code 0: done; 2: an error.

    Examples
    --------
    remat layers unet schedule.json
    """
    from remat.io.figures import SUFFIXES as PICTURES
    from remat.schedule.layer_plots import plot_layers
    from remat.schedule.traces.layers import SUFFIXES, layer_table

    check_outputs(*((table, SUFFIXES) for table in tables or ()), (plot, PICTURES), inputs=(graph, schedule))
    loaded = load_graph(graph)
    steps = load_schedule(schedule, loaded)
    make = partial(
        layer_table, loaded, steps, by=by, depth=depth, keep=keep or (),  # type: ignore[arg-type]
        count_constant_memory=bool(count_constant_memory),
    )  # fmt: skip
    found = make(collapse=collapse)
    outputs = Outputs()
    for path in tables or ():
        outputs.save_text(path, found.to_csv() if path.suffix.lower() == ".csv" else found.to_markdown())
    if plot is not None:
        outputs.plot(plot, lambda: plot_layers(make(collapse=False)))
    print_json(found.as_dict()) if as_json else _print(found)
    outputs.leave(OK)


def _print(found: LayerTable) -> None:
    from remat.cli.console import DETAIL, NUMBER, TEXT, console, print_columns

    head, *rows, total = found.cells()
    vital = ("saved", "recomputed", "extra")
    columns = [(word, NUMBER if word in vital else DETAIL if column else TEXT) for column, word in enumerate(head)]
    print_columns(console(), f"{found.graph}, by layer", columns, rows, total)
