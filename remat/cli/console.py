"""Tables and live lines by rich, whose texts are as printable as everything else on the terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from itertools import chain, repeat
from typing import Any, TextIO

from rich import box
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from remat.cli.terminal import unguarded
from remat.io.text import printable


class SafeConsole(Console):
    """A console of rich whose texts are printable; colours and cursor movements are its own."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=printable(segment.text, "\n"))


def console(stream: TextIO | None = None) -> SafeConsole:
    """A console on `stream` (default: standard output) without mark-up; 200 wide where it is a file."""
    target = unguarded(sys.stdout if stream is None else stream)
    return SafeConsole(file=target, width=None if target.isatty() else 200, highlight=False, markup=False, emoji=False)


#: Columns of :func:`print_columns`: texts, which are folded, and numbers.
TEXT: Mapping[str, Any] = {"overflow": "fold"}
NUMBER: Mapping[str, Any] = {"justify": "right", "no_wrap": True}


def print_columns(
    out: Console,
    title: str,
    columns: Iterable[tuple[str, Mapping[str, Any]]],
    rows: Iterable[Iterable[str]],
    total: Iterable[str] = (),
) -> None:
    """Print a titled table of `columns`, each a heading and settings of a column of rich, with a last row `total`."""
    footers = [Text(word) for word in total]
    table = Table(
        title=Text(title), box=box.SIMPLE_HEAD, title_justify="left", pad_edge=False, show_footer=bool(footers)
    )
    for (heading, settings), footer in zip(columns, chain(footers, repeat(Text())), strict=False):
        table.add_column(Text(heading), footer, **settings)
    for row in rows:
        table.add_row(*map(Text, row))
    out.print(table)


def print_notes(out: Console, notes: Iterable[tuple[str, str]]) -> None:
    """Print each note on a line, after the labels of those that it is about."""
    labels: dict[str, list[str]] = {}
    for label, note in notes:
        labels.setdefault(note, []).append(label)
    for note, about in labels.items():
        out.print(f"{', '.join(dict.fromkeys(about))}: {note}", soft_wrap=True)
