"""``remat arenas``: memory that allocators need for a graph in different orders."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from remat.cli.common import load_graph
from remat.cli.options import Graph, Quiet, SearchSeed, Threads, time_option, words
from remat.cli.screen import memory, say_sentence
from remat.cli.terminal import OK

if TYPE_CHECKING:
    from remat.experiments.arenas import Arena


def command(
    graph: Graph,
    *,
    orders: list[str] | None = typer.Option(
        None, metavar="ORDER[,ORDER...]",
        help="`reference` and methods of `remat order`; separate by commas or repeat. Default: five of them.",
    ),
    methods: list[str] | None = typer.Option(
        None, "--methods", "-m", metavar="METHOD[,METHOD...]",
        help="Allocators; separate by commas or repeat. Default: rules and auto.",
    ),
    time_limit: Annotated[float, time_option("Time for each order and each allocation")] = 20.0,
    threads: Threads = None,
    output: Path | None = typer.Option(None, "--output", "-o", metavar="FILE", help="Table to write (.csv)."),
    plot: Path | None = typer.Option(None, metavar="FILE", help="Draw it into this file (.png, .svg, .pdf)."),
    seed: SearchSeed = 0,
    quiet: Quiet = False,
) -> None:  # fmt: skip
    """Show the arena of GRAPH for several orders and allocators, next to the peaks of the orders.

    Exit code 0: done; 2: an error.

    Examples
    --------
    remat arenas unet -t 5s
    """
    from remat.cli.console import DETAIL, NUMBER, TEXT, console, print_columns
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
            loaded, tuple(words(orders) or ORDERS), tuple(words(methods) or ALLOCATORS), time_limit=time_limit,
            options=SolveOptions(threads=threads, seed=seed),
        )  # fmt: skip
    outputs = Outputs()
    if output is not None:
        outputs.save_text(output, found.to_csv())
    if plot is not None:
        outputs.plot(plot, found.plot)
    if not quiet:
        columns = [("order", TEXT), ("allocator", TEXT), ("arena", NUMBER), ("above the peak", NUMBER),
                   ("peak", NUMBER), ("seconds", DETAIL)]  # fmt: skip
        print_columns(console(), f"{loaded.name}, arenas", columns, map(_row, found.found))
        best = min((one for one in found.found if one.arena is not None), key=lambda one: one.arena or 0, default=None)
        if best is not None:
            say_sentence(f"The smallest arena has {best.arena:,} bytes: order {best.order}, {best.allocator}.")
    outputs.leave(OK)


def _row(one: Arena) -> tuple[str, ...]:
    arena, above = "none found", ""
    if one.arena is not None:
        arena = memory(one.arena)
        above = f"{100 * (one.arena / one.peak - 1):.2f} %" if one.peak else "0.00 %"
    return (one.order, one.allocator, arena, above, memory(one.peak), f"{one.seconds:.2f}")
