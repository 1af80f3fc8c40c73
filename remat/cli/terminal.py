"""Guarded standard streams, where text from files, names or solvers is escaped; exit codes."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TextIO, cast

from remat.cli.screen import say_sentence
from remat.runtime.text import one_line, printable

#: The last two are those of a process terminated by a signal: Ctrl-C, a closed pipe.
OK, NO, ERROR, INTERRUPTED, BROKEN_PIPE = 0, 1, 2, 130, 141


class Guard:
    """Text stream that escapes everything except printable characters and line ends.

    `stream`: destination; direct writes to it are not escaped.
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
    """Guard standard output and standard error within the ``with`` block."""
    streams = sys.stdout, sys.stderr
    for stream in streams:
        if hasattr(stream, "reconfigure"):  # unsupported characters must not raise
            stream.reconfigure(errors="backslashreplace")
    sys.stdout, sys.stderr = (cast(TextIO, Guard(stream)) for stream in streams)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = streams


def say(kind: str, message: str) -> None:
    """Print an error, a warning or a remark as one escaped line on standard error; wrapped on the screen."""
    text = f"remat: {kind}: {one_line(message)}"
    if sys.stderr.isatty():
        say_sentence(text, sys.stderr)
    else:
        print(text, file=sys.stderr)


def unguarded(stream: TextIO) -> TextIO:
    """Return the stream that a guard writes to, for terminal control sequences."""
    return stream.stream if isinstance(stream, Guard) else stream
