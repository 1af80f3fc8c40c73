"""``remat arenas``: memory that allocators need for a graph in different orders."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from remat.cli.common import load_graph, print_table
from remat.cli.options import Graph, Quiet, Threads, time_option
from remat.cli.terminal import OK

if TYPE_CHECKING:
    from remat.experiments.arenas import Arena


def command(
    graph: Graph,
    *,
    order: list[str] | None = typer.Option(
        None, help="`reference` or a method of `remat order`; repeatable. Default: five of them."
    ),
    method: list[str] | None = typer.Option(None, help="Allocator; repeatable. Default: rules and auto."),
    time_limit: Annotated[float, time_option("Seconds for each order and each allocation")] = 20.0,
    threads: Threads = None,
    output: Path | None = typer.Option(None, "--output", "-o", help="Write the table to this file (.csv)."),
    plot: Path | None = typer.Option(None, help="Draw it into this file (.png, .svg, .pdf)."),
    quiet: Quiet = False,
) -> None:
    """Show the arena of GRAPH for several orders and allocators, next to the peaks of the orders.

    Exit code 0: done; 2: an error.
    """
    from remat.cli.saving import Outputs
    from remat.experiments.arenas import ALLOCATORS, ORDERS, arenas
    from remat.io.figures import SUFFIXES
    from remat.io.files import check_outputs
    from remat.runtime.interruption import interrupts
    from remat.runtime.solve_options import SolveOptions

    check_outputs((output, (".csv",)), (plot, SUFFIXES), inputs=(graph,))
    loaded = load_graph(graph)
    with interrupts():
        found = arenas(
            loaded, tuple(order or ORDERS), tuple(method or ALLOCATORS), time_limit=time_limit,
            options=SolveOptions(threads=threads),
        )  # fmt: skip
    outputs = Outputs()
    if output is not None:
        outputs.save_text(output, found.to_csv())
    if plot is not None:
        outputs.plot(plot, found.plot)
    if not quiet:
        print_table([("order", "peak", "allocator", "arena", "above the peak", "seconds"), *map(_row, found.found)])
    outputs.leave(OK)


def _row(one: Arena) -> tuple[str, ...]:
    arena, above = "none found", ""
    if one.arena is not None:
        arena = f"{one.arena:,}"
        above = f"{100 * (one.arena / one.peak - 1):.2f} %" if one.peak else "0.00 %"
    return (one.order, f"{one.peak:,}", one.allocator, arena, above, f"{one.seconds:.2f}")
