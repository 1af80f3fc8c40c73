"""The one way to the terminal: nothing that comes from a file, a name or a solver reaches it raw."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TextIO, cast

from remat.io.text import one_line, printable


class Guard:
    """A text stream that writes what is printable, and line ends, and the escapes of everything else.

    Parameters
    ----------
    stream : text file
        Where it goes; what is written to it directly is not looked at.
    """

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream

    def write(self, text: str) -> int:
        self.stream.write(printable(text, "\n"))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


@contextmanager
def guarded() -> Iterator[None]:
    """Guard standard output and standard error; before and after, they are what they were."""
    streams = sys.stdout, sys.stderr
    for stream in streams:
        if hasattr(stream, "reconfigure"):  # a name that the terminal cannot show is no reason to fail
            stream.reconfigure(errors="backslashreplace")
    sys.stdout, sys.stderr = (cast(TextIO, Guard(stream)) for stream in streams)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = streams


def say(kind: str, message: str) -> None:
    """Print an error, a warning or a remark as one line on standard error, without anything that a terminal obeys."""
    print(f"remat: {kind}: {one_line(message)}", file=sys.stderr)


def unguarded(stream: TextIO) -> TextIO:
    """The stream that a guard writes to, for those who send the terminal its own sequences."""
    return stream.stream if isinstance(stream, Guard) else stream
