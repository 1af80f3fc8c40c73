"""Shared parts of benchmarks: graphs by name, command-line options, timing, aligned tables."""

from __future__ import annotations

import argparse
import csv
import os
import tempfile
import time
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from remat import ComputeGraph, layered, read_graph
from remat.graphs.families import unit_chain
from remat.graphs.io import load_graph, write_graph
from remat.graphs.rewriting import RewriteOptions, rewrite_graph
from remat.graphs.zoo import gpt, randwire, swiftnet_cells, transformer
from remat.runtime.deadline import Deadline
from remat.runtime.solve_options import SolveOptions

#: Graphs of the data folder next to the checkout.
SHARED = Path(os.environ.get("REMAT_SHARED", Path(__file__).resolve().parents[2] / "shared")) / "data" / "graphs"

#: Families of graphs: ``name@size``.
FAMILIES: dict[str, Callable[[int], ComputeGraph]] = {
    "chain": unit_chain,
    "gpt": lambda layers: gpt(layers=layers, width=256, heads=4, sequence=256, name=f"gpt{layers}"),
    "layered": lambda ops: layered(ops, min(0.3, 500 / ops), seed=1),
    "randwire": lambda seed: randwire(regime="cifar10", seed=seed),
    "transformer": lambda layers: transformer(layers=layers),
}


def graph(name: str) -> ComputeGraph | None:
    """Return the graph of a name; None if its file is missing from the data folder.

    A name is ``family@size``, a file, a file of the data folder without its suffix, ``swiftnet-rewritten``, or a graph
    of the zoo.
    """
    family, _, size = name.partition("@")
    if size:
        return FAMILIES[family](int(size))
    if name == "swiftnet-rewritten":
        return rewrite_graph(swiftnet_cells(), RewriteOptions(min_parts=3)).graph
    if (path := SHARED / f"{name}.json").exists():
        return read_graph(path)
    return None if name.startswith(("rl_", "gpt2l", "resnet_gn__", "unet_train")) else load_graph(name)


def graphs(names: str) -> list[tuple[str, ComputeGraph]]:
    """Return the graphs of comma-separated names, and print the missing ones."""
    found = []
    for name in names.split(","):
        if (made := graph(name)) is None:
            print(f"{name}: no file in {SHARED}")
        else:
            found.append((name, made))
    return found


def one_thread(seconds: float | None = None, seed: int = 0) -> SolveOptions:
    """Return options of a run with one thread and at most `seconds`."""
    return SolveOptions(Deadline() if seconds is None else Deadline.after(seconds), threads=1, seed=seed)


def parse(doc: str, **defaults: Any) -> argparse.Namespace:
    """Read the command line: an option for each default, of its type; a tuple is a positional list."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in defaults.items():
        if isinstance(default, tuple):
            parser.add_argument(name, nargs="*", type=type(default[0]), default=list(default))
        elif isinstance(default, bool):
            parser.add_argument(f"--{name.replace('_', '-')}", action="store_true")
        else:
            kind = str if default is None else type(default)
            parser.add_argument(
                f"--{name.replace('_', '-')}", type=kind, default=default, help=f"default: {default}".replace("%", "%%")
            )
    return parser.parse_args()


def timed(call: Callable[[], Any]) -> tuple[Any, float, float]:
    """Return the value of a call, its seconds, and its seconds of processor time in this process."""
    began, used = time.monotonic(), time.process_time()
    value = call()
    return value, time.monotonic() - began, time.process_time() - used


def percent(value: float | None, base: float) -> str:
    """Return an objective as overhead over `base` in %."""
    return "-" if value is None else f"{100 * (value / base - 1):.4f}"


def answer_alone(answer: Callable[..., dict[str, Any]], graph: ComputeGraph, *arguments: Any) -> dict[str, Any]:
    """Return ``answer(path, *arguments)`` of a process of its own, which has imported what this one has.

    `path` is a file of the graph.
    """
    with tempfile.TemporaryDirectory() as folder, get_context("fork").Pool(1) as alone:
        path = Path(folder) / "graph.json"
        write_graph(graph, path)
        return alone.apply(answer, (path, *arguments))


class Rows:
    """Rows of a benchmark, which a CSV file keeps if one is named: rows that it has are not run again."""

    def __init__(self, fields: tuple[str, ...], file: str) -> None:
        self.fields, self.file = fields, Path(file) if file else None
        self.rows: list[dict[str, Any]] = []
        if self.file is not None and self.file.exists():
            self.rows = list(csv.DictReader(self.file.read_text().splitlines()))

    def known(self, **some: str) -> bool:
        """Return True if a row has these values."""
        return any(some.items() <= row.items() for row in self.rows)

    def add(self, row: dict[str, Any]) -> None:
        self.rows.append(row)
        if self.file is not None:
            with self.file.open("a", newline="") as lines:
                writer = csv.DictWriter(lines, self.fields)
                if not lines.tell():
                    writer.writeheader()
                writer.writerow(row)


class Table:
    """Rows of aligned cells, printed at once.

    >>> table = Table("graph:-8", "seconds:9")
    graph     seconds
    >>> table.row("unet", f"{1.234:.1f}")
    unet          1.2
    """

    def __init__(self, *columns: str) -> None:
        heads, widths = zip(*(column.rsplit(":", 1) for column in columns), strict=True)
        self.widths = [int(width) for width in widths]
        self.row(*heads)

    def row(self, *cells: object) -> None:
        shown = (
            f"{cell!s:{'<' if width < 0 else '>'}{abs(width)}}" for cell, width in zip(cells, self.widths, strict=True)
        )
        print(" ".join(shown).rstrip(), flush=True)
