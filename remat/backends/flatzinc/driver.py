"""What the FlatZinc programs have in common: read, solve in a thread, stop in time, and print what is known."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from typing import NoReturn, Protocol

from remat.backends.flatzinc.model import FlatZinc
from remat.backends.flatzinc.options import Options, parse_options
from remat.backends.flatzinc.output import Ending, Printer
from remat.backends.flatzinc.parser import parse
from remat.backends.processes.guard import end_with_parent
from remat.deadline import Deadline
from remat.errors import RematError
from remat.io.files import read_text

#: Seconds that a solver has to end after it was asked to; then what is known is printed without it.
GRACE = 1.0


class Search(Protocol):
    """A solver at work on one model."""

    def run(self) -> Ending:
        """Solve, telling the printer of each solution and bound."""

    def stop(self) -> None:
        """Ask :meth:`run` to end soon; may be called more than once, and before it has begun."""


#: Makes a search: (model, options, printer, deadline).
Solver = Callable[[FlatZinc, Options, Printer, Deadline], Search]


class _Stop:
    """Set by SIGTERM and SIGINT."""

    def __init__(self) -> None:
        self.event = threading.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: self.event.set())


def main(program: str, solver: Solver, arguments: Sequence[str] | None = None) -> NoReturn:
    """Run a FlatZinc program; ends the process with 0, or with 1 and one line on standard error."""
    options = parse_options(program, arguments)
    deadline = Deadline.after(options.milliseconds and options.milliseconds / 1000)
    stop = _Stop()
    code = 0
    worker = _Worker(options, solver, deadline)
    try:
        worker.wait(stop.event)
    except RematError as error:
        print(f"{program}: error: {error}", file=sys.stderr)
        code = 1
    except BrokenPipeError:  # nobody reads any more
        code = 1
    _leave(code)


def _leave(code: int) -> NoReturn:
    """End at once: a solver that did not stop in time must not hold the process."""
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except BrokenPipeError:
        code = 1
    os._exit(code)


class _Worker:
    """Reads and solves in a thread of its own, so that the main thread stays free for signals and the deadline."""

    def __init__(self, options: Options, solver: Solver, deadline: Deadline) -> None:
        self.options, self.solver, self.deadline = options, solver, deadline
        self.printer = Printer(FlatZinc(), options, deadline)
        self.search: Search | None = None
        self.finished = threading.Event()
        self.failure: BaseException | None = None

    def wait(self, stop: threading.Event) -> None:
        """Until it is done, or was asked to stop and the time to do so is over."""
        end_with_parent()
        parent = os.getppid()
        threading.Thread(target=self._work, daemon=True, name="fzn-solver").start()
        asked: Deadline | None = None
        while not self.finished.wait(0.02) and not (asked and asked.expired):
            if os.getppid() != parent:  # nobody reads any more
                os._exit(1)
            if stop.is_set() or self.deadline.expired:
                asked = asked or Deadline.after(GRACE)
                if self.search is not None:
                    self.search.stop()
        if self.failure is not None:
            raise self.failure
        self.printer.finish(Ending.UNKNOWN)  # does nothing if the search has said more

    def _work(self) -> None:
        try:
            model = parse(read_text(self.options.path), self.options.path.name)
            self.printer.model = model
            self.search = self.solver(model, self.options, self.printer, self.deadline)
            verdict = Ending.UNKNOWN if self.deadline.expired else self.search.run()
            self.printer.finish(verdict)
        except BaseException as error:  # handed to the waiting thread
            self.failure = error
        finally:
            self.finished.set()
