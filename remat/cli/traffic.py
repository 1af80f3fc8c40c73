"""``remat traffic``: bytes that a schedule moves between on-chip and off-chip memory."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from remat.cli.common import load_graph, option_bytes, print_json
from remat.cli.options import TABLES, Graph, Json, Keep, ScheduleFile, Tables, size_option, words
from remat.cli.saving import Outputs
from remat.cli.screen import memory
from remat.cli.terminal import OK
from remat.io.files import check_outputs
from remat.runtime.text import csv_text, json_text

if TYPE_CHECKING:
    from remat.schedule.traffic import Traffic


def command(
    graph: Graph,
    schedule: ScheduleFile,
    *,
    on_chip: list[str] = typer.Option(
        ..., metavar="SIZE[,SIZE...]", help="On-chip memory (512KiB, 1MiB); separate by commas or repeat."
    ),
    block: Annotated[int | None, size_option("Size of a transfer; default: 512 bytes", "--block")] = None,
    keep: Keep = None,
    tables: Tables = None,
    plot: Path | None = typer.Option(
        None, metavar="FILE", help="Draw it with the reference order to this file (.png, .svg, .pdf)."
    ),
    as_json: Json = False,
) -> None:
    """Show the bytes that SCHEDULE fetches and writes with each on-chip memory, next to those of the reference order.

    Evictions are optimal for the whole schedule (Belady): the value with the latest next read leaves. Graph inputs are
    fetched once in any case; these compulsory bytes are listed separately.

    Exit code 0: done; 2: an error.

    Examples
    --------
    remat traffic unet schedule.json --on-chip 1MiB,4MiB
    """
    from remat.io.figures import SUFFIXES
    from remat.schedule.io import read_schedule
    from remat.schedule.schedule import Schedule
    from remat.schedule.traffic import BLOCK, off_chip_traffic

    sizes = [option_bytes(word, "--on-chip") for word in words(on_chip)]
    unit = BLOCK if block is None else block
    check_outputs(*((table, TABLES) for table in tables or ()), (plot, SUFFIXES), inputs=(graph, schedule))
    loaded = load_graph(graph)
    mine = off_chip_traffic(loaded, read_schedule(schedule, loaded), sizes, block=unit, keep=keep or ())
    theirs = off_chip_traffic(loaded, Schedule.reference(loaded), sizes, block=unit, keep=keep or ())
    rows = [row(one, other) for one, other in zip(mine, theirs, strict=True)]
    facts, lines = {"graph": loaded.name, "rows": rows}, [list(each.values()) for each in rows]
    outputs = Outputs()
    for path in tables or ():
        outputs.save_text(path, json_text(facts) if path.suffix.lower() == ".json" else csv_text(list(rows[0]), lines))
    if as_json:
        print_json(facts)
    else:
        _print(loaded.name, rows)
    if plot is not None:
        from remat.schedule.plots import plot_traffic

        outputs.plot(plot, lambda: plot_traffic(loaded.name, mine, theirs))
    outputs.leave(OK)


def row(mine: Traffic, theirs: Traffic) -> dict[str, Any]:
    """Return the numbers of a schedule and of the reference order, the latter with the prefix ``reference_``.

    ``times_less`` is None if the schedule moves nothing.
    """
    reference = {f"reference_{name}": theirs.as_dict()[name] for name in ("fetched", "written", "total")}
    return {**mine.as_dict(), **reference, "times_less": theirs.total / mine.total if mine.total else None}


def _print(name: str, rows: Sequence[dict[str, Any]]) -> None:
    from remat.cli.console import DETAIL, NUMBER, console, print_columns, say

    def cells(row: dict[str, Any]) -> tuple[str, ...]:
        times = row["times_less"]
        gain = f"{times:.2f}" if times is not None else "all gone" if row["reference_total"] else "-"
        names = ("on_chip", "fetched", "written", "total", "reference_total")
        return (*(memory(row[name]) for name in names), gain)

    columns = [("on chip", NUMBER), ("fetched", DETAIL), ("written", DETAIL), ("total", NUMBER),
               ("reference order", NUMBER), ("times less", NUMBER)]  # fmt: skip
    out, first = console(), rows[0]
    print_columns(out, f"{name}, bytes moved", columns, map(cells, rows))
    say(out, f"blocks of {first['block']:,} bytes; graph inputs, compulsory: {first['compulsory']:,} bytes")
