"""What a solve is doing right now, and a reporter that shows it on a terminal or in a log."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from rich.text import Text


@dataclass(frozen=True)
class Progress:
    """A moment of a solve.

    Attributes
    ----------
    phase : str
        ``start``, ``build``, ``preliminary`` or ``solve``.
    elapsed : float
        Seconds since the deadline's clock began.
    base_cost : int
        Cost of computing each op once.
    objective, bound : int or None
        Certified cost of the best schedule so far, and what no schedule in the scope can beat.
    """

    phase: str
    elapsed: float
    base_cost: int
    objective: int | None = None
    bound: int | None = None

    @property
    def overhead(self) -> float | None:
        """Overhead of the best schedule so far in %, None without one (or where every op is free)."""
        if self.objective is None or self.base_cost == 0:
            return None
        return 100 * (self.objective - self.base_cost) / self.base_cost

    @property
    def gap(self) -> float | None:
        """(objective − bound) / objective, None while either is unknown."""
        return relative_gap(self.objective, self.bound)

    def facts(self) -> list[str]:
        """What is known at that moment, in words."""
        if self.objective is None:
            return ["no schedule yet"]
        known = [f"cost {self.objective:,}" if self.overhead is None else f"overhead {self.overhead:.2f} %"]
        if self.bound is not None:
            if self.base_cost:
                known.append(f"bound {100 * (self.bound - self.base_cost) / self.base_cost:.2f} %")
            known.append(f"gap {100 * (self.gap or 0.0):.2f} %")
        return known


@dataclass(frozen=True)
class PeakProgress:
    """A moment of a search for the least peak.

    Attributes
    ----------
    phase : str
        ``bounds``, the name of the heuristic, ``exhaustive``, ``preliminary`` or ``cost``.
    elapsed : float
        Seconds since the deadline's clock began.
    peak, bound : int
        Bytes: certified peak of the best schedule so far, and what no schedule can beat.
    overhead : float or None
        Of that schedule, in %.
    """

    phase: str
    elapsed: float
    peak: int
    bound: int
    overhead: float | None = None

    def facts(self) -> list[str]:
        """What is known at that moment, in words."""
        known = [f"peak {self.peak:,} bytes", f"bound {self.bound:,}"]
        known.append(f"gap {100 * (relative_gap(self.peak, self.bound) or 0.0):.2f} %")
        return known if self.overhead is None else [*known, f"overhead {self.overhead:.2f} %"]


def relative_gap(objective: int | None, bound: int | None) -> float | None:
    """(objective − bound) / objective; 0 for an objective of 0, None while either is unknown.

    Examples
    --------
    >>> relative_gap(10, 8), relative_gap(0, 0), relative_gap(None, 8)
    (0.2, 0.0, None)
    """
    if objective is None or bound is None:
        return None
    return (objective - bound) / objective if objective else 0.0


#: Told of every new phase, schedule and bound; may be called from another thread.
OnProgress = Callable[[Progress], object]
OnPeakProgress = Callable[[PeakProgress], object]


def describe(moment: Progress | PeakProgress, elapsed: float | None = None) -> str:
    """`moment` in one line, at `elapsed` seconds if it is later by now.

    Examples
    --------
    >>> describe(Progress("solve", 2.0, base_cost=100, objective=105, bound=102))
    '2.0 s  solve        overhead 5.00 %  bound 2.00 %  gap 2.86 %'
    >>> describe(Progress("build", 0.5, base_cost=100))
    '0.5 s  build        no schedule yet'
    >>> describe(PeakProgress("greedy", 0.5, peak=1_250, bound=1_000))
    '0.5 s  greedy       peak 1,250 bytes  bound 1,000  gap 20.00 %'
    """
    seconds = moment.elapsed if elapsed is None else elapsed
    return "  ".join([f"{seconds:.1f} s  {moment.phase:<11}", *moment.facts()])


class Reporter:
    """Shows progress: one live line on a terminal, a plain line now and then elsewhere, nothing when quiet.

    Use it as a context manager and pass it to :func:`remat.solve.solve` or :func:`remat.minimize.minimize` as
    `on_progress`. The elapsed time goes on
    while the solver is silent.

    Parameters
    ----------
    quiet : bool
        Show nothing.
    stream : text file, optional
        Default: standard error.
    interval : float
        Seconds between plain lines while nothing but the time changes; changes come at most ten times as often.
    """

    def __init__(self, quiet: bool = False, stream: TextIO | None = None, interval: float = 10.0) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._mode = "quiet" if quiet else "live" if self._stream.isatty() else "plain"
        self._interval = interval
        self._lock = threading.Lock()
        self._moment: Progress | PeakProgress | None = None
        self._heard = 0.0
        self._printed = -float("inf")
        self._pending = False
        self._done = threading.Event()
        self._ticker: threading.Thread | None = None
        self._live: _Live | None = None

    def __call__(self, moment: Progress | PeakProgress) -> None:
        with self._lock:
            self._moment, self._heard, self._pending = moment, time.monotonic(), True

    def __enter__(self) -> Reporter:
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
        """The present line; its time is that of the last news plus what has passed since."""
        with self._lock:
            if self._moment is None:
                return None
            return describe(self._moment, self._moment.elapsed + time.monotonic() - self._heard)

    def _tick(self) -> None:
        while not self._done.wait(min(0.1, self._interval / 10)):
            now = time.monotonic()
            wait = self._interval / 10 if self._pending else self._interval
            if now - self._printed >= wait and (line := self._line()) is not None:
                self._printed, self._pending = now, False
                try:
                    print(line, file=self._stream, flush=True)
                except (OSError, ValueError):  # the log is gone; that is no reason to lose a solve
                    return


class _Live:
    """A line on a terminal that is drawn again four times a second, whether or not there is news."""

    def __init__(self, line: Callable[[], str | None], stream: TextIO) -> None:
        from rich.console import Console
        from rich.live import Live

        self._text = line
        self._live = Live(
            get_renderable=self._render, console=Console(file=stream), refresh_per_second=4, transient=True
        )
        self.start, self.stop = self._live.start, self._live.stop

    def _render(self) -> Text:
        from rich.text import Text

        return Text(self._text() or "", no_wrap=True, overflow="ellipsis")
