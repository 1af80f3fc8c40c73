"""What the commands share: options, reading inputs, checking outputs before any work is done."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from remat.files import check_output

if TYPE_CHECKING:
    from remat.graphs import ComputeGraph

__all__ = [
    "BUDGET_HELP", "ERROR", "NO", "OK", "ConstantMemory", "Graph", "Json", "Keep", "MaxComputes", "Order",
    "check_output", "load_graph", "print_json", "print_table",
]  # fmt: skip

#: Exit codes; also: 130 for Ctrl-C, 141 for a broken pipe.
OK, NO, ERROR = 0, 1, 2

Graph = Annotated[str, typer.Argument(metavar="GRAPH", help="Graph file, or the name of a zoo graph (resnet50).")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Order = Annotated[str, typer.Option("--order", metavar="fixed|free", help="Order of first computations.")]
MaxComputes = Annotated[int | None, typer.Option("--max-computes", min=1, help="Limit of computes for every op.")]
Keep = Annotated[
    list[str] | None, typer.Option("--keep", metavar="TENSOR", help="Tensor to be alive at the end; may be repeated.")
]
ConstantMemory = Annotated[
    bool, typer.Option("--count-constant-memory", help="Count the graph's constant memory in peak and budget.")
]
BUDGET_HELP = "Bytes (123456, 10GiB) or a share of the reference peak (80%)."


def load_graph(name: str) -> ComputeGraph:
    """See :func:`remat.graphs.io.load_graph`, which is imported only now."""
    from remat.graphs.io import load_graph

    return load_graph(name)


def print_json(value: Any) -> None:
    """Print a JSON value, readable and exact."""
    print(json.dumps(value, indent=2, ensure_ascii=True, allow_nan=False))


def print_table(rows: Iterable[tuple[str, ...]], indent: str = "") -> None:
    """Print rows of words in aligned columns; the last one as long as it is."""
    lines = list(rows)
    widths = [max(len(word) for word in column) for column in zip(*lines, strict=True)]
    for line in lines:
        cells = [word.ljust(width) for word, width in zip(line, widths, strict=True)]
        print((indent + "  ".join(cells)).rstrip())
