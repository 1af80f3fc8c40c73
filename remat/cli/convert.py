"""``remat convert``: graphs and schedules from one file format to another."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from remat.cli.common import load_graph
from remat.cli.completion import complete_format, complete_graph
from remat.cli.options import Costs, Device
from remat.io.files import check_output, exists
from remat.runtime.text import short


class Frees(StrEnum):
    """Placement of the frees of a schedule."""

    GIVEN = "given"
    EARLY = "early"
    IMPLIED = "implied"


def command(
    source: Annotated[
        Path, typer.Argument(metavar="IN", help="File to read; its content determines the format. Or a zoo graph.")
    ],
    target: Annotated[Path, typer.Argument(metavar="OUT", help="File to write; its suffix determines the format.")],
    *,
    graph: str | None = typer.Option(
        None, metavar="GRAPH", autocompletion=complete_graph, help="IN is a schedule of this graph."
    ),
    to: str = typer.Option(
        "remat-json",
        metavar="FORMAT",
        autocompletion=complete_format,
        help="Schedule format: remat-json, plan, plan-text, plain-list, checkmate, rockmate, hlo, ...",
    ),
    frees: Frees | None = typer.Option(
        None,
        metavar="given|early|implied",
        help="Frees of a schedule: write them out, move them forward, or leave them implied.",
    ),
    dim: list[str] | None = typer.Option(
        None, metavar="NAME=SIZE", help="Size of an open dimension of a model; repeatable."
    ),
    option: list[str] | None = typer.Option(
        None, metavar="NAME=VALUE", help="Reader option of a model, such as views=keep; repeatable."
    ),
    costs: Costs = None,
    device: Device = None,
) -> None:
    """Convert a graph file, or with --graph a schedule file.

    With --costs, the graph has the costs of a profile, or the schedule belongs to such a graph.

    Examples
    --------
    remat convert model.onnx graph.json --dim batch=8
    remat convert theirs.json schedule.json --graph graph.json
    """
    check_output(target, inputs=(graph, costs))
    if graph is None:
        from remat.graphs.io import read_graph, write_graph
        from remat.graphs.profiles import load_profiled

        if to != "remat-json" or frees is not None:
            raise typer.BadParameter("--to and --frees are for schedules, which need --graph")
        options = _options(dim, option)
        read = read_graph(source, **options) if options or exists(source) else load_graph(str(source))
        write_graph(load_profiled(read, costs, device), target)
    else:
        if dim or option:
            raise typer.BadParameter("--dim and --option are for graphs, not for schedules")
        from remat.schedule.early_frees import with_early_frees
        from remat.schedule.io import read_schedule, write_schedule
        from remat.schedule.simulate import with_frees

        loaded = load_graph(graph, costs, device)
        schedule = read_schedule(source, loaded)
        if frees is Frees.GIVEN:
            schedule = with_frees(loaded, schedule)
        elif frees is Frees.EARLY:
            schedule = with_early_frees(loaded, schedule)
        elif frees is Frees.IMPLIED:
            schedule = schedule.without_frees()
        write_schedule(schedule, target, to, loaded, model=graph)


def _options(dims: list[str] | None, options: list[str] | None) -> dict[str, Any]:
    """Return the reader options of a graph."""
    result: dict[str, Any] = {}
    for text in options or ():
        name, equals, value = text.partition("=")
        if not (equals and name and value) or name == "dims":
            raise typer.BadParameter(f"--option needs NAME=VALUE, such as views=keep, not {short(text)}")
        if result.setdefault(name, value) != value:
            raise typer.BadParameter(f"--option gives two values for {short(name)}")
    sizes = dimensions(dims)
    return result | ({"dims": sizes} if sizes else {})


def input_values(given: Iterable[str]) -> dict[str, Any]:
    """Return contents of inputs by name from the values of ``--value``: numbers, or those of a tensor file."""
    from remat.graphs.formats.onnx.given_values import TENSOR_SUFFIXES, read_tensor

    values: dict[str, Any] = {}
    for text in given:
        name, sign, value = text.partition("=")
        if not (name and sign) or name in values:
            raise typer.BadParameter(
                f"--value gives two values for {short(name)}" if name and sign else
                f"--value needs NAME=VALUE, such as axes=0,1 or axes=axes.npy, not {short(text)}"
            )  # fmt: skip
        values[name] = read_tensor(value) if value.lower().endswith(TENSOR_SUFFIXES) else _numbers(name, value)
    return values


def _numbers(name: str, text: str) -> list[int | float]:
    try:
        return [float(word) if set(word) & set(".einEIN") else int(word) for word in text.split(",") if text]
    except ValueError:
        raise typer.BadParameter(
            f"the value of {short(name)} must be numbers such as 3,4, or a file (.npy, .pb), not {short(text)}"
        ) from None


def dimensions(dims: list[str] | None) -> dict[str, int]:
    """Return sizes by name from the values of ``--dim``."""
    sizes: dict[str, int] = {}
    for text in dims or ():
        name, _, size = text.rpartition("=")
        if not (name and size.isascii() and size.isdigit() and len(size) < 16):
            raise typer.BadParameter(f"--dim needs NAME=SIZE, such as batch=8, not {short(text)}")
        if sizes.setdefault(name, int(size)) != int(size):
            raise typer.BadParameter(f"--dim gives two sizes for {short(name)}")
    return sizes
