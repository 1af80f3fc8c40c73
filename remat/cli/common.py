"""Shared parts of the commands: reading inputs, printing, and the end of a solve."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TextIO

from remat.cli.screen import joined, say_sentence, width_of, with_units, wrapped
from remat.cli.terminal import INTERRUPTED, NO, OK
from remat.io.files import is_standard_stream
from remat.runtime.text import aligned, json_text, printable

if TYPE_CHECKING:
    from remat.config import OutputSection
    from remat.graphs import ComputeGraph
    from remat.schedule import Schedule
    from remat.solving.result import Result


def load_graph(name: str, costs: Path | None = None, device: str | None = None) -> ComputeGraph:
    """Return the graph of a file or of the zoo, with the costs of a profile if given."""
    from remat.graphs.io import load_graph
    from remat.graphs.profiles import load_profiled

    return load_profiled(load_graph(name), costs, device)


def load_schedule(path: Path | None, graph: ComputeGraph) -> Schedule:
    """Return the schedule in a file of any format, or the graph's reference order."""
    from remat.schedule import Schedule, read_schedule

    return Schedule.reference(graph) if path is None else read_schedule(path, graph)


def import_from_here() -> None:
    """Allow imports from the current folder, with lowest priority, for classes on the command line."""
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.append(here)


def class_or_name(word: str, group: str) -> Any:
    """Return the class for MODULE:CLASS, otherwise the word."""
    from remat.registry import import_class, names_class

    if not names_class(word, group):
        return word
    import_from_here()
    return import_class(word, group)


def option_values(given: list[str] | None) -> dict[str, Any]:
    """Return values by name from NAME=VALUE, read as JSON or else as text."""
    import typer

    values: dict[str, Any] = {}
    for text in given or ():
        name, sign, value = text.partition("=")
        if not sign or not name:
            raise typer.BadParameter(f"option {text!r} is not NAME=VALUE")
        try:
            values[name] = json.loads(value)
        except ValueError:
            values[name] = value
    return values


def search_backend(word: str) -> Any:
    """Return the backend of a search for the least peak, or None for ``none``."""
    return None if word == "none" else class_or_name(word, "backends")


def end_of_solve(
    result: Result,
    output: OutputSection,
    rows: Sequence[tuple[str, str]] = (),
    facts: Mapping[str, Any] | None = None,
    pictures: Sequence[tuple[str, Callable[[Path], object]]] | None = None,
    *,
    source: str = "",
) -> NoReturn:
    """Write the schedule, print the result, draw pictures, and leave with the exit code.

    If the schedule goes to standard output, the result goes to standard error.

    Parameters
    ----------
    rows : sequence of (label, text)
        Printed instead of those of the result, before the closing sentence.
    facts : mapping, optional
        Additional keys of the result's JSON.
    pictures : sequence of (path, writer), optional
        Default: the schedule, if requested.
    source : str
        File of the graph; if the output has the suffix of a model, this model is written in the order of the schedule.
    """
    from remat.cli.closing import closing
    from remat.cli.saving import Outputs
    from remat.cli.signals import writing
    from remat.config import draw

    writing()
    outputs = Outputs()
    if result.schedule is not None and output.schedule is not None:
        outputs.save_schedule(output.schedule, result.schedule, source)
    stream = sys.stderr if is_standard_stream(output.schedule) else sys.stdout
    if output.json_:
        print_json({**result.as_dict(), **(facts or {})}, stream)
    else:
        print_rows(rows or result.rows(), stream)
        print(file=stream)
        say_sentence(closing(result), stream)
    if pictures is None and result.schedule is not None and output.plot is not None:
        pictures = [(output.plot, lambda path: draw(result, path))]
    for path, write in pictures or ():
        outputs.draw(path, write)
    outputs.leave(OK if result.schedule is not None else INTERRUPTED if result.stop == "interrupted" else NO)


def print_json(value: Any, stream: TextIO | None = None) -> None:
    """Print a readable, exact JSON value to a stream (default: standard output)."""
    print(json_text(value), end="", file=stream)


def print_table(rows: Iterable[tuple[str, ...]], indent: str = "", right: Container[int] = ()) -> None:
    """Print rows in aligned columns, those in `right` right-aligned.

    On a screen that is too narrow, the widest columns are wrapped between words; without room for the longest words,
    each row becomes a block of lines.
    """
    width = width_of() - len(indent)
    cells = [[printable(with_units(word)) for word in row] for row in rows]
    if not cells:
        return
    columns = list(zip_longest(*cells, fillvalue=""))
    rooms = [max(map(len, column)) for column in columns]
    words = [max((len(word) for cell in column for word in joined(cell).split(" ")), default=0) for column in columns]
    least = [room if k in right else word for k, (room, word) in enumerate(zip(rooms, words, strict=True))]
    gap = 2 if sum(least) + 2 * (len(rooms) - 1) <= width else 1
    while sum(rooms) + gap * (len(rooms) - 1) > width:
        wide = [k for k, room in enumerate(rooms) if room > least[k]]
        if not wide:
            _print_blocks(cells, indent, width)
            return
        rooms[max(wide, key=rooms.__getitem__)] -= 1
    lines: list[tuple[str, ...]] = []
    for row in cells:
        parts = [wrapped(cell, room) if len(cell) > room else [cell] for cell, room in zip(row, rooms, strict=False)]
        lines += zip_longest(*parts, fillvalue="")
    for line in aligned(lines, right, gap):
        print(indent + line)


def _print_blocks(cells: Sequence[Sequence[str]], indent: str, width: int) -> None:
    """Print each row as a block: its first word, and the others indented."""
    for first, *others in cells:
        print(indent + first)
        for line in wrapped("  ".join(word for word in others if word), width - 2):
            print(f"{indent}  {line}")


def print_rows(rows: Iterable[tuple[str, str]], stream: TextIO | None = None, least: int = 9) -> None:
    """Print texts, each behind its word; in a terminal, wrap them to its width.

    A path or digest that is longer than a line has one of its own, from the margin, for the terminal to break: it can
    be copied whole. `least` is the least width of the words.
    """
    rows = list(rows)
    target = sys.stdout if stream is None else stream
    width = width_of(target)
    rows = [(word, with_units(text, target)) for word, text in rows]
    room = max(least, *(len(word) for word, _ in rows)) + 1
    for word, text in rows:
        indent = " " * (room + len(text) - len(text.lstrip()))
        lines = wrapped(printable(text.strip()), width, indent)
        if len(lines[0]) > width:
            print(word, file=target)
        for number, line in enumerate(lines):
            if len(line) > width:
                print(line.strip(), file=target)
            else:
                print(f"{'' if number else word:<{room - 1}} {line[room:]}", file=target)


def option_bytes(size: str, option: str) -> int:
    """Return the bytes of an option; errors name the option."""
    from remat.errors import ProblemError
    from remat.runtime.sizes import memory_bytes

    try:
        return memory_bytes(size)
    except ProblemError:
        raise ProblemError(f"{option}: {size[:60]!r} is not a size above 0 (1000, 512KiB, 8G)") from None
