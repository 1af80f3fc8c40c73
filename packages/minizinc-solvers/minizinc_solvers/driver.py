"""Shared driver of the FlatZinc programs: read, solve in a thread, stop in time, print results."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn, Protocol

from minizinc_solvers.deadline import Deadline
from minizinc_solvers.errors import FlatZincError
from minizinc_solvers.model import FlatZinc
from minizinc_solvers.options import Options, parse_options
from minizinc_solvers.output import Ending, Printer
from minizinc_solvers.parser import parse

#: Seconds that a solver may take to stop; then the driver prints the known results without it.
GRACE = 1.0


class Search(Protocol):
    """Run of a solver on one model."""

    def run(self) -> Ending:
        """Solve, telling the printer of each solution and bound."""

    def stop(self) -> None:
        """Ask :meth:`run` to end soon; may be called more than once, and before it has begun."""


#: Factory of a search: (model, options, printer, deadline).
Solver = Callable[[FlatZinc, Options, Printer, Deadline], Search]


class _Stop:
    """Event set by SIGTERM and SIGINT."""

    def __init__(self) -> None:
        self.event = threading.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: self.event.set())


def main(program: str, solver: Solver, arguments: Sequence[str] | None = None) -> NoReturn:
    """Run a FlatZinc program; exit with 0, or with 1 and one line on standard error."""
    options = parse_options(program, arguments)
    deadline = Deadline(options.milliseconds / 1000) if options.milliseconds else Deadline()
    stop = _Stop()
    code = 0
    worker = _Worker(options, solver, deadline)
    try:
        worker.wait(stop.event)
    except FlatZincError as error:
        print(f"{program}: error: {error}", file=sys.stderr)
        code = 1
    except BrokenPipeError:  # the reader closed the pipe
        code = 1
    _leave(code)


def _leave(code: int) -> NoReturn:
    """Exit immediately: a solver that does not stop must not keep the process alive."""
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except BrokenPipeError:
        code = 1
    os._exit(code)


def _end_with_parent() -> None:
    """Let the kernel kill this process when its parent exits; Linux only."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def _read_text(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8")
    except OSError as error:
        reason = "no such file" if isinstance(error, FileNotFoundError) else str(error.strerror)
        raise FlatZincError(f"{path}: {reason}") from None
    except UnicodeDecodeError as error:
        raise FlatZincError(f"{path}: not UTF-8 text (byte {error.start})") from None


class _Worker:
    """Thread that reads and solves, so that the main thread handles signals and the deadline."""

    def __init__(self, options: Options, solver: Solver, deadline: Deadline) -> None:
        self.options, self.solver, self.deadline = options, solver, deadline
        self.printer = Printer(FlatZinc(), options, deadline)
        self.search: Search | None = None
        self.finished = threading.Event()
        self.failure: BaseException | None = None

    def wait(self, stop: threading.Event) -> None:
        """Wait until the worker has finished, or until the grace after a stop has passed."""
        _end_with_parent()
        parent = os.getppid()
        threading.Thread(target=self._work, daemon=True, name="fzn-solver").start()
        grace: Deadline | None = None
        while not self.finished.wait(0.02) and not (grace and grace.expired):
            if os.getppid() != parent:  # the parent has exited
                os._exit(1)
            if stop.is_set() or self.deadline.expired:
                grace = grace or Deadline(GRACE)
                if self.search is not None:
                    self.search.stop()
        if self.failure is not None:
            raise self.failure
        self.printer.finish(Ending.UNKNOWN)  # no effect if the search printed more

    def _work(self) -> None:
        try:
            model = parse(_read_text(self.options.path), self.options.path.name)
            self.printer.model = model
            self.search = self.solver(model, self.options, self.printer, self.deadline)
            verdict = Ending.UNKNOWN if self.deadline.expired else self.search.run()
            self.printer.finish(verdict)
        except BaseException as error:  # raised by the waiting thread
            self.failure = error
        finally:
            self.finished.set()
