"""Child process of :mod:`remat.backends.isolated`: solves one model and reports progress."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from dataclasses import replace
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

from remat.backends.results import Incumbent, RawResult, Values
from remat.errors import BackendError, RematError
from remat.modeling import Model
from remat.registry import import_class
from remat.runtime.processes import wire
from remat.runtime.processes.guard import enter_child
from remat.runtime.solve_options import SolveOptions, Status, StopReason


class Job(NamedTuple):
    """Model, options and hint for the child to solve."""

    backend: str
    """Class as ``module:name``."""
    variant: str
    model: Model
    options: SolveOptions
    """The memory limit applies to the whole process."""
    logs: bool
    """True: send the solver's log."""
    hint: Values | None


def serve(connection: Connection, errors: Connection, environment: Mapping[str, str], folder: str, job: Job) -> None:
    """Serve one job, then end the process.

    Parameters
    ----------
    errors : connection
        Receives all printed output.
    environment : mapping
        Variables of the parent's environment.
    folder : str
        Folder for temporary files; the parent removes it.
    """
    enter_child({**environment, "TMPDIR": folder})
    for number in (1, 2):  # solvers print to both
        os.dup2(errors.fileno(), number)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    tempfile.tempdir = folder
    if limit := job.options.memory_bytes:
        import resource

        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    code = 1
    try:
        _Worker(connection).serve(job)
        code = 0
    finally:
        sys.stderr.flush()
        # Skip the interpreter's shutdown: a solver that missed its deadline may still be running.
        os._exit(code)


@contextlib.contextmanager
def _uninterrupted() -> Iterator[None]:
    """Delay Ctrl-C: an interrupted message would corrupt the next one."""
    if threading.current_thread() is not threading.main_thread():  # other threads get no signals
        yield
        return
    received: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _frame: received.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if received and callable(before):
        before(signal.SIGINT, None)


class _Worker:
    """One job and its reports; solvers call back from several threads."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._lock = threading.Lock()

    def send(self, kind: str, head: dict[str, Any], **arrays: Any) -> None:
        with self._lock, _uninterrupted():
            wire.write(self._connection, wire.Message(kind, head, arrays))

    def serve(self, job: Job) -> None:
        try:
            self.report(self.solve(job))
        except KeyboardInterrupt:  # while building
            self.report(RawResult(Status.UNKNOWN, StopReason.INTERRUPTED))
        except MemoryError:
            self.fail(BackendError("out of memory (MemoryError)"))
        except RematError as error:
            self.fail(error)
        except Exception as error:
            self.fail(BackendError(" ".join(f"{type(error).__name__}: {error}".split())))

    def fail(self, error: RematError) -> None:
        self.send("failure", wire.error_head(error))

    def solve(self, job: Job) -> RawResult:
        options = replace(job.options, log=lambda line: self.send("log", {"line": line})) if job.logs else job.options
        backend = import_class(job.backend, "backends")(job.variant)
        return backend.solve(job.model, options, job.hint, self.incumbent, self.bound)

    def incumbent(self, found: Incumbent) -> None:
        self.send("incumbent", {"bound": found.bound}, values=found.values)

    def bound(self, _seconds: float, bound: float) -> None:
        self.send("bound", {"bound": bound})

    def report(self, raw: RawResult) -> None:
        names = ("status", "stop", "objective", "bound", "build_seconds", "solve_seconds", "message")
        head = {name: getattr(raw, name) for name in names} | {"versions": dict(raw.versions)}
        self.send("result", head, **({} if raw.values is None else {"values": raw.values}))
