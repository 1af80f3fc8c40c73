"""``remat partition``: hierarchies of a graph by partitioners."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from remat.cli.common import class_or_name, option_values, print_json, print_table
from remat.cli.completion import complete_partitioners
from remat.cli.options import CostTolerance, Given, Graph, Json, MethodOptions, Order, shared, time_option, words
from remat.cli.screen import say_sentence


@shared("costs", "device")
def command(
    graph: Graph,
    *,
    partitioners: list[str] | None = typer.Option(
        None, "--partitioners", "-p", metavar="NAME[,NAME...]", autocompletion=complete_partitioners,
        help="Names or MODULE:CLASS; separate by commas or repeat. Default: all registered.",
    ),
    option: MethodOptions = None,
    order: Order = "fixed",
    time_limit: Annotated[float | None, time_option("Time for each partitioner")] = None,
    cost_tolerance: CostTolerance = None,
    outline: bool = typer.Option(False, "--outline", help="Also print the groups."),
    as_json: Json = False,
    given: Given,
) -> None:  # fmt: skip
    """Show depth, groups, unique groups and largest group of the hierarchies of GRAPH.

    These are the columns of HiRemate's Table 3(b). The depth counts the whole graph as a level, the groups exclude it.
    The largest group has the most nodes: forward ops, and groups of the level below.

    Exit code 0: done; 1: no partitioner applies; 2: an error.

    Examples
    --------
    remat partition resnet50 -p h-partition --outline
    """
    from remat import registry
    from remat.config import make_options
    from remat.errors import ProblemError
    from remat.hierarchy.classes import COST_TOLERANCE
    from remat.hierarchy.outline import figures
    from remat.hierarchy.outline import outline as outlined
    from remat.hierarchy.partition.base import as_partitioner
    from remat.runtime.deadline import Deadline, OverdueError

    named_words, values = words(partitioners) or sorted(registry.partitioners()), option_values(option)
    if values and len(named_words) != 1:
        raise typer.BadParameter("--option is for one partitioner; name it with --partitioner")
    problem, found, left_out = given.problem(graph, order=order), dict[str, Any](), dict[str, str]()
    tolerance = COST_TOLERANCE if cost_tolerance is None else cost_tolerance
    for word in named_words:
        named = class_or_name(word, "partitioners")
        kind = named if isinstance(named, type) else registry.load("partitioners", named)
        made = kind(make_options(word, values, kind=kind, group="partitioners")) if values else as_partitioner(named)
        try:
            hierarchy = made.partition(problem, Deadline.after(time_limit))
            found[word] = figures(problem, hierarchy.root, tolerance)
            if outline:
                found[word]["outline"] = outlined(problem, hierarchy.root, tolerance)
        except (ProblemError, OverdueError) as error:
            left_out[word] = str(error)
    if as_json:
        print_json({"partitioners": found, "left_out": left_out})
    else:
        outlines = [row.pop("outline", "") for row in found.values()]
        heads = ("partitioner", "depth", "groups", "unique groups", "largest group")
        rows = [(word, *(f"{number:,}" for number in row.values())) for word, row in found.items()]
        print_table([heads, *rows] if rows else [], right=range(1, 5))
        for text in filter(None, outlines):
            print(f"\n{text}")
        for word, why in left_out.items():
            say_sentence(f"{word}: {why}")
    raise typer.Exit(0 if found else 1)
