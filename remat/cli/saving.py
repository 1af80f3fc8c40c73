"""Saving of results during the search, and elsewhere if a file cannot be written."""

from __future__ import annotations

import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, NoReturn, Protocol

import typer

from remat.cli.signals import rescued_by
from remat.cli.terminal import ERROR, INTERRUPTED, say
from remat.errors import FormatError
from remat.graphs.io import MODEL_SUFFIXES
from remat.io.files import is_special, write_atomic
from remat.io.page import SUFFIXES as PAGE_SUFFIXES
from remat.runtime.deadline import OverdueError
from remat.runtime.interruption import interrupted
from remat.runtime.text import one_line

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from remat.schedule import Schedule
    from remat.solving.progress import Progress

#: Least seconds between two writes of a schedule, and largest share of the time that writing may take.
EVERY, SHARE = 2.0, 0.05


class Keeper:
    """Writes the best schedule to a file during the search, so that a killed process loses only seconds.

    Use it as a context manager and call it with every :class:`~remat.solving.progress.Progress`. Pipes, devices and
    models receive only the final result. An error is reported once, and the search continues.

    Without `path` it writes nothing. `on_progress` also receives each progress.
    """

    def __init__(self, path: str | os.PathLike[str] | None, on_progress: Callable[[Progress], object]) -> None:
        is_model = path is not None and Path(path).suffix.lower() in MODEL_SUFFIXES
        self._path = None if path is None or is_special(path) or is_model else Path(path)
        self._report = on_progress
        self._best: Schedule | None = None
        self._written: Schedule | None = None
        self._reported = False
        self._news, self._end, self._lock = threading.Event(), threading.Event(), threading.Lock()
        self._thread: threading.Thread | None = None

    def __call__(self, moment: Progress) -> None:
        if moment.schedule is not None and moment.schedule is not self._best:
            self._best = moment.schedule
            self._news.set()
        self._report(moment)

    def __enter__(self) -> Keeper:
        self._rescue = rescued_by(self.rescue)
        self._rescue.__enter__()
        if self._path is not None:
            self._thread = threading.Thread(target=self._keep, daemon=True, name="remat-keeper")
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end.set()
        self._news.set()
        if self._thread is not None:
            self._thread.join()
        if kind is not None:  # there is no result: keep the best schedule so far
            self._write()
        self._rescue.__exit__(kind, error, trace)

    def rescue(self) -> bool:
        """Write the best schedule and report it before the process exits; return True if there is one."""
        if self._best is None:
            return False
        self._write()
        kept = f"; the best schedule is in {self._path}" if self._written is self._best else ""
        print(f"remat: interrupted before the method ended{one_line(kept)}", file=sys.stderr)
        return True

    def _keep(self) -> None:
        while not self._end.is_set():
            self._news.wait()
            self._news.clear()
            began = time.monotonic()
            if not self._end.is_set():
                self._write()
            self._end.wait(max(EVERY, (time.monotonic() - began) / SHARE))

    def _write(self) -> None:
        from remat.schedule.io import write_schedule

        with self._lock:
            best = self._best
            if self._path is None or best is None or best is self._written:
                return
            try:
                write_schedule(best, self._path)
                self._written = best
            except FormatError as error:
                if not self._reported:
                    self._reported = True
                    say("warning", f"{error}; the search continues")


class Drawn(Protocol):
    """Table with a plot and an interactive page."""

    def plot(self) -> Figure: ...
    def page(self) -> str: ...


def write_plot_or_page(path: Path, found: Drawn) -> None:
    """Write the plot of a table, or its interactive page if `path` has a page's suffix."""
    from remat.io.figures import write_figure

    if path.suffix.lower() in PAGE_SUFFIXES:
        write_atomic(path, found.page())
    else:
        write_figure(path, found.plot)


class Outputs:
    """Output files of a command; a file that cannot be written is reported and gives an error exit code at the end."""

    def __init__(self) -> None:
        self.failed = False
        """True if any file could not be written to its path."""
        self.interrupted = False
        """True if Ctrl-C skipped a picture."""
        self._reported: set[str] = set()

    def attempt(self, path: str | os.PathLike[str], write: Callable[[Path], object]) -> None:
        """Write a file that will be written again later; report the first failure."""
        try:
            write(Path(path))
        except Exception as error:  # drawing may raise anything
            if str(path) not in self._reported:
                self._reported.add(str(path))
                say("warning", f"{_reason(error, path)}; the command continues")

    def save(self, path: str | os.PathLike[str], write: Callable[[Path], object], text: Callable[[], str]) -> None:
        """Write a final file to its path, or else to the current folder or that of temporary files.

        If all fail, print its `text`.
        """
        try:
            write(Path(path))
            return
        except BrokenPipeError:
            raise
        except (FormatError, OSError) as error:
            reason = _reason(error, path)
        for folder in (Path.cwd(), Path(tempfile.gettempdir())):
            other = folder / f"{Path(path).stem or 'result'}.{os.getpid()}{Path(path).suffix or '.json'}"
            try:
                write(other)
            except (FormatError, OSError):
                continue
            self.fail(f"{reason}; it is in {other} instead")
            return
        self.fail(f"{reason}, nor elsewhere; the content follows")
        print(text(), end="", flush=True)

    def attempt_text(self, path: str | os.PathLike[str], text: str) -> None:
        """Apply :meth:`attempt` to a text; pipes and devices receive only the final one."""
        if not is_special(path):
            self.attempt(path, lambda where: write_atomic(where, text))

    def save_text(self, path: str | os.PathLike[str], text: str) -> None:
        """Apply :meth:`save` to a text."""
        self.save(path, lambda where: write_atomic(where, text), lambda: text)

    def save_schedule(self, path: str | os.PathLike[str], schedule: Schedule, source: str = "") -> None:
        """Apply :meth:`save` to a schedule, or to the model `source` in its order if `path` has a model's suffix."""
        from remat.schedule.formats.remat_json import schedule_to_text
        from remat.schedule.io import write_schedule

        def write(where: Path) -> None:
            if Path(path).suffix.lower() in MODEL_SUFFIXES:
                from remat.deploy import write_answer

                write_answer(schedule, where, source)
            else:
                write_schedule(schedule, where)

        self.save(path, write, lambda: schedule_to_text(schedule))

    def fail(self, message: str) -> None:
        """Report another output that could not be written."""
        self.failed = True
        say("error", message)

    def leave(self, code: int) -> NoReturn:
        """Exit the command; with the code of an error or of Ctrl-C if any file was not written to its path."""
        raise typer.Exit(ERROR if self.failed else INTERRUPTED if self.interrupted else code)

    def plot(self, path: str | os.PathLike[str], plot: Callable[[], Figure | Axes]) -> None:
        """Apply :meth:`draw` to the figure that `plot` returns."""
        from remat.io.figures import write_figure

        self.draw(path, lambda where: write_figure(where, plot))

    def plot_or_page(self, path: str | os.PathLike[str], found: Drawn) -> None:
        """Apply :meth:`draw` to the plot of a table, or to its interactive page if `path` has a page's suffix."""
        self.draw(path, lambda where: write_plot_or_page(where, found))

    def draw(self, path: str | os.PathLike[str], write: Callable[[Path], object]) -> None:
        """Write a final picture; it can be drawn again from saved results. Ctrl-C skips it."""
        try:
            write(Path(path))
        except OverdueError as error:
            if not interrupted():
                self.fail(_reason(error, path))
                return
            self.interrupted = True
            say("interrupted", f"{path} was not drawn")
        except Exception as error:
            self.fail(_reason(error, path))


def _reason(error: Exception, path: str | os.PathLike[str]) -> str:
    if isinstance(error, FormatError):
        return str(error)
    if isinstance(error, OSError) and error.strerror:
        return f"{path}: cannot be written: {error.strerror}"
    return f"{path}: cannot be written: {type(error).__name__}: {error}"
