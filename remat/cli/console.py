"""Tables and notes printed by rich, with escaped texts."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from itertools import zip_longest
from typing import Any, TextIO

from rich import box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from remat.cli.screen import on_screen, with_units
from remat.cli.terminal import unguarded
from remat.runtime.text import printable


class SafeConsole(Console):
    """Rich console that escapes texts, but not its own colours and cursor movements."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=printable(segment.text, "\n"))


def console(stream: TextIO | None = None) -> SafeConsole:
    """Return a console on `stream` (default: standard output) without mark-up; 200 columns wide in a file."""
    target = unguarded(sys.stdout if stream is None else stream)
    width = None if on_screen(target) else 200
    return SafeConsole(file=target, width=width, highlight=False, markup=False, emoji=False)


#: Columns of :func:`print_columns`: folded texts, numbers, and numbers that a narrow terminal omits.
TEXT: Mapping[str, Any] = {"overflow": "fold"}
NUMBER: Mapping[str, Any] = {"justify": "right", "no_wrap": True}
DETAIL: Mapping[str, Any] = dict(NUMBER)
#: Least width of folded texts, and space between columns.
FOLDED, GAP = 24, 3


def print_columns(
    out: Console,
    title: str,
    columns: Iterable[tuple[str, Mapping[str, Any]]],
    rows: Iterable[Iterable[str]],
    total: Iterable[str] = (),
    *,
    stacked: int = 0,
) -> None:
    """Print a titled table with an optional row `total`; columns that do not fit are omitted and listed below it.

    The first two columns are never omitted. With `stacked`, omitted columns follow in further tables, in groups of that
    number. A first column of long texts, such as file names, stands above the other cells of each row.
    """
    columns, total = list(columns), list(total)
    lines = [[with_units(cell) for cell in row] for row in rows]
    words = zip_longest([heading for heading, _ in columns], *lines, total, fillvalue="")
    widths = [max(map(cell_len, column)) for column in words]
    if columns[0][1] is TEXT and widths[0] > out.width // 2 and sum(widths) + GAP * len(widths) > out.width:
        _print_below_names(out, title, columns, lines, widths)
        return
    shown = _that_fit([settings for _, settings in columns], widths, out.width)
    if stacked and 2 < len(shown) < len(columns):
        shown = shown[: max(2 + stacked, len(shown) - (len(shown) - 2) % stacked)]
    out.print(Text(with_units(title)))
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_footer=bool(total))
    for k in shown:
        table.add_column(Text(columns[k][0]), Text(total[k]) if total else "", **columns[k][1])
    for line in lines:
        table.add_row(*(Text(line[k]) for k in shown if k < len(line)))
    out.print(table)
    if stacked and 2 < len(shown) < len(columns):
        rest = [0, 1, *(k for k in range(len(columns)) if k not in shown)]
        picked = ([line[k] for k in rest if k < len(line)] for line in lines)
        print_columns(out, title, [columns[k] for k in rest], picked, stacked=stacked)
        return
    _name_omitted(out, columns, shown)


def _print_below_names(
    out: Console,
    title: str,
    columns: list[tuple[str, Mapping[str, Any]]],
    lines: list[list[str]],
    widths: list[int],
) -> None:
    """Print a table whose first column has a line of its own above the other cells of each row."""
    shown = [0, *(k + 1 for k in _that_fit([each for _, each in columns[1:]], widths[1:], out.width - GAP))]
    right = {k for k in shown if columns[k][1] is not TEXT}
    cells = [[heading for heading, _ in columns], *lines]
    rooms = [max(cell_len(row[k]) for row in cells) for k in range(len(columns))]
    out.print(Text(with_units(title)), end="\n\n")
    for number, row in enumerate(cells):
        out.print(Text(f" {row[0]}"), soft_wrap=True)
        others = (f"{row[k]:>{rooms[k]}}" if k in right else f"{row[k]:<{rooms[k]}}" for k in shown[1:])
        out.print(Text(f"   {(' ' * GAP).join(others)}".rstrip()), soft_wrap=True)
        if not number:
            out.print(Text(" " + "\u2500" * (sum(rooms[k] + GAP for k in shown[1:]) - 1)))
    out.print()
    _name_omitted(out, columns, shown)


def _name_omitted(out: Console, columns: list[tuple[str, Mapping[str, Any]]], shown: list[int]) -> None:
    if missing := [heading for k, (heading, _) in enumerate(columns) if k not in shown]:
        say(out, f"left out at this width: {', '.join(missing)}")


def _that_fit(settings: list[Mapping[str, Any]], widths: list[int], room: int) -> list[int]:
    """Return the positions of columns that fit: details are dropped first, then the last columns."""
    needed = [
        min(width, FOLDED) if k and each.get("overflow") else width
        for k, (each, width) in enumerate(zip(settings, widths, strict=True))
    ]
    shown = list(range(len(settings)))
    while len(shown) > 2 and sum(needed[k] + GAP for k in shown) > room:
        details = [k for k in shown[1:] if settings[k] is DETAIL]
        shown.remove((details or shown)[-1])
    return shown


def say(out: Console, text: str) -> None:
    """Print a line; on the screen it is wrapped between words."""
    out.print(Text(with_units(text)), soft_wrap=not on_screen())


def print_notes(out: Console, notes: Iterable[tuple[str, str]]) -> None:
    """Print each note on a line, after the labels that it applies to."""
    labels: dict[str, list[str]] = {}
    for label, note in notes:
        labels.setdefault(note, []).append(label)
    for note, about in labels.items():
        say(out, f"{', '.join(dict.fromkeys(about))}: {note}")
