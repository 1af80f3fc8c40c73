"""What the commands share: options, reading inputs, checking outputs before any work is done."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from remat.errors import FormatError

if TYPE_CHECKING:
    from remat.graphs import ComputeGraph

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
    """The graph in the file `name`, or the zoo graph of that name.

    Raises
    ------
    FormatError, GraphError
        If there is neither, or the file is no well-formed graph.
    """
    if Path(name).exists():
        from remat.graphs.io import read_graph

        return read_graph(name)
    from remat.graphs.zoo import ZOO

    if name in ZOO:
        return ZOO[name]()
    raise FormatError(f"{name}: no such file, and no zoo graph of that name either ({', '.join(sorted(ZOO))})")


def check_output(path: Path | None, inputs: Iterable[str | Path | None] = (), suffixes: Iterable[str] = ()) -> None:
    """Find out that `path` cannot be written before the work is done, not after.

    Raises
    ------
    FormatError
        If its folder is missing or cannot be written to, its suffix is none of `suffixes` (where there are any), or it
        is one of the `inputs`.
    """
    if path is None:
        return
    if path.is_dir():
        raise FormatError(f"{path}: cannot be written: it is a folder")
    allowed = tuple(suffixes)
    if allowed and path.suffix.lower() not in allowed:
        raise FormatError(f"{path}: the suffix must be one of {', '.join(allowed)}")
    for other in inputs:
        if other is not None and path.exists() and Path(other).exists() and path.samefile(other):
            raise FormatError(f"{path}: would overwrite the input")
    try:
        handle, probe = tempfile.mkstemp(dir=path.parent, prefix=".remat.", suffix=".part")
        os.close(handle)
        Path(probe).unlink()
    except OSError as error:
        raise FormatError(f"{path}: cannot be written: {error.strerror}") from None


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
