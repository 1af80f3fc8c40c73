"""The child of :mod:`remat.backends.processes.isolated`: reads one job, solves it, reports as it goes.

Run as ``python -m remat.backends.processes.isolated_worker LIMIT`` by its parent, where LIMIT is a number of bytes,
0 for none.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from typing import TYPE_CHECKING, Any, BinaryIO

if TYPE_CHECKING:
    from remat.backends.base import Incumbent, RawResult


def main(limit: int) -> int:
    """Serve the one job on standard input; returns only where there is none."""
    if limit:
        import resource

        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    # Solvers print: standard output goes to standard error, and the way to the parent is known here alone.
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    from remat.backends.processes import wire

    job = wire.read(sys.stdin.buffer)
    if job is None:
        return 1
    if surroundings := job.head.get("surroundings"):  # of a process that was not started by the parent itself
        os.environ.clear()
        os.environ.update(surroundings["environment"])
        os.chdir(surroundings["folder"])
        sys.path[:] = surroundings["path"]
    threading.Thread(target=_end_with_parent, daemon=True).start()
    _Worker(out).serve(job)
    out.flush()
    # Not through the interpreter's end: a solver that missed its deadline may still be at work.
    os._exit(0)


def _end_with_parent() -> None:
    """The pipe ends when the parent does, however it ends; nothing of this family stays behind then."""
    while os.read(0, 4096):
        pass
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(1)


class _Worker:
    """One job, and the way to report on it; solvers call back from several threads."""

    def __init__(self, out: BinaryIO) -> None:
        self._out = out
        self._lock = threading.Lock()

    def say(self, kind: str, head: dict[str, Any], **arrays: Any) -> None:
        from remat.backends.processes import wire

        with self._lock:
            wire.write(self._out, wire.Message(kind, head, arrays))

    def serve(self, job: Any) -> None:
        from remat.backends.base import RawResult, Status, StopReason
        from remat.errors import RematError

        try:
            self.report(self.solve(job))
        except KeyboardInterrupt:  # while building
            self.report(RawResult(Status.UNKNOWN, StopReason.INTERRUPTED))
        except MemoryError:
            self.say("failure", {"type": "BackendError", "text": "out of memory (MemoryError)"})
        except RematError as error:
            self.say("failure", {"type": type(error).__name__, "text": str(error)})
        except Exception as error:
            text = " ".join(f"{type(error).__name__}: {error}".split())
            self.say("failure", {"type": "BackendError", "text": text})

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


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
