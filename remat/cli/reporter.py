"""Progress on a terminal or in a log."""

from __future__ import annotations

import math
import sys
import threading
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, TextIO

from remat.cli.screen import width_of, with_units
from remat.runtime.resources import used_memory
from remat.runtime.sizes import size_text
from remat.runtime.text import clipped
from remat.solving.progress import Progress, clock_text, parts

if TYPE_CHECKING:
    from rich.text import Text


#: Least width of a shortened label.
LEAST_LABEL = 12


class Reporter:
    """Shows progress: a live line on a terminal, occasional plain lines elsewhere, nothing when quiet.

    Use it as a context manager and pass it to :func:`remat.solve` as `on_progress`. It updates the elapsed time while
    the solver reports nothing. Searches without such reports, and runs of many solves, call :meth:`news`.

    Parameters
    ----------
    quiet : bool
        Show nothing.
    stream : text file, optional
        Default: standard error.
    interval : float
        Seconds between plain lines if only the time changes; changes are shown at most ten times as often.
    label : str
        What runs, such as ``[2/6] 80%, greedy``; it replaces the phase.
    limit : float
        Seconds allowed, for :meth:`news`.
    """

    def __init__(
        self, quiet: bool = False, stream: TextIO | None = None, interval: float = 10.0, *, label: str = "",
        limit: float = math.inf,
    ) -> None:  # fmt: skip
        self._stream = sys.stderr if stream is None else stream
        self._mode = "quiet" if quiet else "live" if self._stream.isatty() else "plain"
        self._interval, self._label, self._limit = interval, label, limit
        self._began = time.monotonic()
        self._lock = threading.Lock()
        self._moment: Progress | None = None
        self._heard = 0.0
        self._facts: Sequence[str] = ()
        self._printed = 0.0
        self._pending = False
        self._done = threading.Event()
        self._ticker: threading.Thread | None = None
        self._live: _Live | None = None

    def __call__(self, moment: Progress) -> None:
        with self._lock:
            before = self._moment and parts(self._moment, 0.0)
            # a solve that fails at once prints no line
            if moment.phase != "start" or moment.objective is not None:
                self._pending |= parts(moment, 0.0) != before
            self._moment, self._heard = moment, time.monotonic()

    def news(self, line: str, *facts: str) -> None:
        """Print a plain line outside a terminal; on a terminal, show `facts` (default: that line) with the time."""
        with self._lock:
            self._facts = facts or (line,)
        if self._mode == "plain":
            print(line, file=self._stream, flush=True)

    def __enter__(self) -> Reporter:
        self._printed = time.monotonic()
        if self._mode == "plain" and self._label:
            print(self._label, file=self._stream, flush=True)
        if self._mode == "live":
            self._live = _Live(self._line, self._stream)
            self._live.start()
        elif self._mode == "plain":
            self._ticker = threading.Thread(target=self._tick, daemon=True, name="remat-progress")
            self._ticker.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._done.set()
        if self._ticker is not None:
            self._ticker.join()
        if self._live is not None:
            self._live.stop()

    def _line(self) -> str | None:
        """Return the current line, with the time of the last report plus the time since."""
        with self._lock:
            now = time.monotonic()
            if self._moment is None and (self._mode == "plain" or not (self._facts or self._label)):
                return None
            if self._moment is None:
                clock, phase, *facts = clock_text(now - self._began, self._limit), ""
            else:
                clock, phase, *facts = parts(self._moment, self._moment.elapsed + now - self._heard)
            label = self._label if self._mode == "live" else ""
        return fitted([clock, label or phase, *self._facts, *facts, *_memory()], self._stream, labelled=bool(label))

    def _tick(self) -> None:
        while not self._done.wait(min(0.1, self._interval / 10)):
            now = time.monotonic()
            wait = self._interval / 10 if self._pending else self._interval
            if now - self._printed < wait:
                continue
            try:
                if (line := self._line()) is not None:
                    self._printed, self._pending = now, False
                    print(line, file=self._stream, flush=True)
            except (OSError, ValueError):  # a closed log has no width and takes no line, and must not end a solve
                return


def fitted(parts: Sequence[str], stream: TextIO, *, labelled: bool = False) -> str:
    """Return the parts of a line that fit the width of a stream, which the second part, the phase, yields to others.

    A label as second part yields only to the time and the first fact, and loses its last words. Sizes have units on a
    screen.
    """
    room, words = width_of(stream), [with_units(part, stream) for part in parts]
    time, phase, *facts = (k for k, word in enumerate(words) if word or k < 2)
    first = 1 if labelled else 3
    shown: set[int] = set()
    for k in (time, *facts[:first], phase, *facts[first:]):
        if labelled and k == phase:
            words[k] = _shortened(words[k], max(room - 3, LEAST_LABEL))
        if room > len(words[k]) + 2:
            shown.add(k)
            room -= len(words[k]) + 2
    return "  ".join(words[k] for k in sorted(shown) if words[k])


def _shortened(label: str, length: int) -> str:
    """Return a label without its last words, or where less than :data:`LEAST_LABEL` letters were left, clipped."""
    short = label
    while len(short) > length:
        short = short.rpartition(" ")[0].removesuffix(" at")
        if len(short) < LEAST_LABEL:
            return clipped(label, length)
    return short


def _memory() -> list[str]:
    """Return the memory of this process, if known."""
    used = used_memory()
    return [] if used is None else [f"memory {size_text(used)}"]


class _Live:
    """Line on a terminal, redrawn four times a second."""

    def __init__(self, line: Callable[[], str | None], stream: TextIO) -> None:
        from rich.live import Live

        from remat.cli.console import console

        self._text = line
        self._live = Live(get_renderable=self._render, console=console(stream), refresh_per_second=4, transient=True)
        self.start, self.stop = self._live.start, self._live.stop

    def _render(self) -> Text:
        from rich.text import Text

        return Text(self._text() or "", no_wrap=True, overflow="ellipsis")
