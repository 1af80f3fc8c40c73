"""Tables and live lines by rich, whose texts are as printable as everything else on the terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import TextIO

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

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
