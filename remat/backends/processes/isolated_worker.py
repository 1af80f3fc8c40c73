"""The child of :mod:`remat.backends.processes.isolated`: reads one job, solves it, reports as it goes."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from remat.backends.base import Incumbent, RawResult
    from remat.errors import RematError


def serve(connection: Connection, errors: Connection, limit: int, environment: Mapping[str, str], folder: str) -> None:
    """Serve one job; the process ends here.

    Parameters
    ----------
    errors : connection
        Takes all that is printed.
    limit : int
        Bytes of private memory; 0: no limit.
    environment : mapping
        Variables of the parent's environment now.
    folder : str
        Where temporary files go; removed by the parent.
    """
    from remat.backends.processes import wire
    from remat.backends.processes.guard import enter_child

    enter_child({**environment, "TMPDIR": folder})
    for number in (1, 2):  # solvers print, and the way to the parent is known here alone
        os.dup2(errors.fileno(), number)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    tempfile.tempdir = folder
    if limit:
        import resource

        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    code = 1
    try:
        job = wire.read(connection)
        if job is not None:
            threading.Thread(target=_end_with_parent, args=[connection], daemon=True).start()
            _Worker(connection).serve(job)
            code = 0
    finally:
        sys.stderr.flush()
        # Not through the interpreter's end: a solver that missed its deadline may still be at work.
        os._exit(code)


def _end_with_parent(connection: Connection) -> None:
    """The connection ends when the parent does; nothing of this family stays behind then."""
    with contextlib.suppress(EOFError, OSError):
        connection.recv_bytes()
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(1)


@contextlib.contextmanager
def _uninterrupted() -> Iterator[None]:
    """Ctrl-C waits: raised in the middle of a message, it would have the next one read as the rest of that."""
    if threading.current_thread() is not threading.main_thread():  # where it never strikes
        yield
        return
    came: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _frame: came.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if came and callable(before):
        before(signal.SIGINT, None)


class _Worker:
    """One job, and the way to report on it; solvers call back from several threads."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._lock = threading.Lock()

    def say(self, kind: str, head: dict[str, Any], **arrays: Any) -> None:
        from remat.backends.processes import wire

        with self._lock, _uninterrupted():
            wire.write(self._connection, wire.Message(kind, head, arrays))

    def serve(self, job: Any) -> None:
        from remat.backends.base import RawResult, Status, StopReason
        from remat.errors import BackendError, RematError

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
        from remat.backends.processes import wire

        self.say("failure", wire.error_head(error))

    def solve(self, job: Any) -> RawResult:
        from remat.backends.base import SolveOptions
        from remat.backends.processes import wire
        from remat.deadline import Deadline

        arrays = dict(job.arrays)
        hint = arrays.pop("hint", None)
        model = wire.unpack(wire.Message("model", job.head["model"], arrays))
        told = dict(job.head["options"])
        log = (lambda line: self.say("log", {"line": line})) if told.pop("log") else None
        deadline = Deadline(told.pop("seconds"), told.pop("started"))
        options = SolveOptions(deadline=deadline, log=log, **told)
        backend = wire.class_at(job.head["backend"])(job.head["variant"])
        return backend.solve(model, options, hint, self.incumbent, self.bound)

    def incumbent(self, found: Incumbent) -> None:
        head = {"time": found.time, "objective": found.objective, "bound": found.bound}
        self.say("incumbent", head, values=found.values)

    def bound(self, seconds: float, bound: float) -> None:
        self.say("bound", {"time": seconds, "bound": bound})

    def report(self, raw: RawResult) -> None:
        names = ("status", "stop", "objective", "bound", "build_seconds", "solve_seconds", "message")
        head = {name: getattr(raw, name) for name in names} | {"versions": dict(raw.versions)}
        self.say("result", head, **({} if raw.values is None else {"values": raw.values}))
