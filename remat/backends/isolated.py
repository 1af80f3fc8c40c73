"""Any backend in a child process, with a hard deadline and a memory limit; solutions survive a crash."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import BinaryIO, ClassVar

from remat.backends import isolated_worker
from remat.backends.base import Availability, AvailabilityState, Backend, Run
from remat.backends.bookkeeping import Bookkeeping
from remat.backends.results import RawResult
from remat.errors import BackendError, ModelError
from remat.modeling import Model
from remat.runtime.deadline import Deadline
from remat.runtime.processes import guard, wire
from remat.runtime.processes.process_trees import too_large
from remat.runtime.processes.supervised import Ending, Supervised
from remat.runtime.solve_options import SolveOptions, Status, StopReason

#: Seconds after the deadline at which the process is killed.
GRACE = 0.6


class Isolated(Backend):
    """A backend in a child process.

    The model goes there as an argument. Solutions and bounds come back as JSON and arrays, are never unpickled, and
    are stored as they arrive. If the child fails, the best solution so far is therefore the result, and the message
    gives the reason: killed at the deadline, over its memory limit, crashed. The child's descendants are killed with
    it, and all end when this process does.

    On Linux ``SolveOptions.memory_limit`` is enforced twice: the kernel refuses each process more private memory, and
    a process tree that holds more in total is killed.

    The class of the backend, and that of every record, must be importable by name.

    Examples
    --------
    >>> from remat.backends.highs import Highs
    >>> from remat.modeling import Model
    >>> model = Model("two")
    >>> model.minimize(model.integers("x", 2, [3, 4], 9).index, 1)
    >>> Isolated(Highs()).solve(model, SolveOptions()).objective
    7.0
    """

    name: ClassVar[str] = "isolated"
    native: ClassVar = frozenset()
    own_process: ClassVar[bool] = True

    def __init__(self, backend: Backend) -> None:
        super().__init__()
        self.backend = backend
        self.native = backend.native  # type: ignore[misc]

    @property
    def full_name(self) -> str:
        return self.backend.full_name

    @classmethod
    def availability(cls) -> Availability:
        return Availability(AvailabilityState.READY, "runs any other backend in a process of its own")

    def ready(self) -> Availability:
        return self.backend.ready()

    def reads_rows(self, options: SolveOptions) -> bool:
        return self.backend.reads_rows(options)

    def prepare(self, model: Model, options: SolveOptions, books: Bookkeeping) -> Run:
        if options.memory_bytes is not None and not Path("/proc/self/statm").exists():
            raise BackendError("a limit of memory needs Linux")
        return _Run(self.backend, model, options, books)


class _Run(Run):
    """One child process and its result."""

    keeps_deadline: ClassVar[bool] = True

    def __init__(self, backend: Backend, model: Model, options: SolveOptions, books: Bookkeeping) -> None:
        for kind in (type(backend), *map(type, model.records)):
            if kind.__module__ == "__main__" or "<" in kind.__qualname__:
                raise ModelError(
                    f"class {kind.__qualname__} of module {kind.__module__} cannot be imported by another process",
                    "not-importable",
                )
        self.backend, self.options, self.limit, self.books = backend, options, options.memory_bytes, books
        deadline = Deadline(options.deadline.seconds, options.deadline.started)
        child_options = dataclasses.replace(options, deadline=deadline, log=None, start="auto")
        where = f"{type(backend).__module__}:{type(backend).__qualname__}"
        # a copy has no overrides, which are functions of its formulation
        self.job = isolated_worker.Job(
            where, backend.variant, model.copy(model.name), child_options, options.log is not None, books.hint
        )
        self.child: Supervised | None = None
        self.result: RawResult | None = None
        self.failure: Exception | None = None
        self.last_line = ""

    def run(self) -> None:
        began = time.monotonic()
        with guard.temporary_folder() as folder, (folder / "output").open("w+b") as output:
            printed = Connection(os.dup(output.fileno()), readable=False)
            given = (printed, dict(os.environ), str(folder), self.job)
            self.child = Supervised(
                isolated_worker.serve, given, self.backend.preload, self.options.deadline, self.limit, grace=GRACE
            )
            with self.child:
                try:
                    for message in self.child.messages():
                        self._take(message)
                        if self.result is not None or self.failure is not None or self.books.failure is not None:
                            break
                except KeyboardInterrupt:
                    self.child.kill(StopReason.INTERRUPTED, "was killed after a second Ctrl-C")
            self.failure = self.failure or self.child.failure
            self.last_line = _last_line(output)
        self.spent = time.monotonic() - began

    def stop(self) -> None:
        if self.child is not None:
            self.child.request_stop()

    def _take(self, message: wire.Message) -> None:
        head = message.head
        if message.kind == "incumbent":
            self.books.raise_bound(head["bound"], notify=False)
            self.books.found(message.arrays["values"])
        elif message.kind == "bound":
            self.books.raise_bound(head["bound"])
        elif message.kind == "log":
            if self.options.log:
                self.options.log(head["line"])
        elif message.kind == "result":
            self.result = RawResult(**{**head, "status": Status(head["status"]), "stop": StopReason(head["stop"])})
            if "values" in message.arrays:
                self.books.found(message.arrays["values"], notify=False)
        else:
            self.failure = wire.error_of(message)

    def final_status(self) -> tuple[Status, StopReason, str]:
        assert self.child is not None
        books, result = self.books, self.result
        short = self._out_of_memory(self.child)
        if result is not None:
            books.bound = result.objective if result.status is Status.OPTIMAL else result.bound
            books.versions.update(result.versions)
            self.seconds = max(result.build_seconds, self.spent - result.solve_seconds), result.solve_seconds
            gave_up = short and result.stop is StopReason.OTHER and not result.message
            message = f"backend {self.backend.full_name!r} gave up: {too_large(self.limit or 0)}" if gave_up else ""
            return result.status, result.stop, message or result.message
        if self.failure is not None and books.best is None and not short:
            raise self.failure
        ending = self.child.ending or Ending(StopReason.OTHER, self._death(self.child, short))
        said = Status.UNKNOWN if self.child.ending or short or books.best else Status.ERROR
        kept = "; the best solution before that is kept" if books.best else ""
        return said, ending.stop, f"the process of backend {self.backend.full_name!r} {ending.reason}{kept}"

    def _death(self, child: Supervised, short: bool) -> str:
        """Return how the child ended without being killed by this process."""
        code = child.process.exitcode or 0
        if self.failure is not None:
            what = f"failed: {self.failure}"
        elif code >= 0:
            what = f"ended with exit code {code}"
        else:
            what = f"was killed by signal {_signal_name(-code)}"
        if short:
            what += f", as {too_large(self.limit or 0)}"
        elif -code == signal.SIGKILL:
            what += " (by another process, or by the system because it is out of memory)"
        return what + (f": {self.last_line}" if self.last_line else "")

    def _out_of_memory(self, child: Supervised) -> bool:
        """Return True if the child very likely exceeded its memory limit."""
        words = f"{self.failure} {self.last_line}"
        near = self.limit is not None and child.most_memory > 0.8 * self.limit
        return self.limit is not None and (near or "bad_alloc" in words or "MemoryError" in words)


def _signal_name(number: int) -> str:
    with contextlib.suppress(ValueError):
        return signal.Signals(number).name
    return str(number)


def _last_line(errors: BinaryIO) -> str:
    """Return the last line of standard error."""
    size = errors.seek(0, os.SEEK_END)
    errors.seek(max(0, size - 2000))
    lines = errors.read().decode("utf-8", "replace").split("\n")
    return next((" ".join(line.split())[:200] for line in reversed(lines) if line.strip()), "")
