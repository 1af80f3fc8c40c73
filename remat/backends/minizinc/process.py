"""Program in a process group of its own: read line by line, and terminated with all its children."""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from remat.runtime.deadline import Deadline
from remat.runtime.processes import guard, guard_process, process_trees

#: Seconds between SIGTERM and SIGKILL.
GRACE = 0.3
#: Name of the file with the program's error output.
ERRORS = "errors"


class GroupProcess:
    """Run `command` in a session of its own, so that all its descendants can be found and terminated.

    The driver puts its solver into another process group, so a signal to one group is not enough. Both would outlive
    this process, which the guard prevents (:mod:`remat.runtime.processes.guard`).

    Parameters
    ----------
    folder : Path
        Working directory; holds a file with the error output.
    on_line : callable
        Receives each line of standard output, in the thread of :meth:`run`.
    memory_limit : int, optional
        Bytes that all processes together may hold. Beyond that they are terminated, and `too_large` is true.
    """

    def __init__(
        self,
        command: Sequence[str],
        folder: Path,
        environment: Mapping[str, str],
        on_line: Callable[[str], None],
        *,
        memory_limit: int | None = None,
    ) -> None:
        self._errors, self._on_line, self._memory_limit = folder / ERRORS, on_line, memory_limit
        self.too_large = False
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._stop = threading.Event()
        self._ended = False
        with self._errors.open("wb") as errors:
            self._process = subprocess.Popen(
                list(command), cwd=folder, env=dict(environment), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                stderr=errors, start_new_session=True,
            )  # fmt: skip
        guard.watch(self._process.pid)
        if memory_limit is not None:
            process_trees.cap(self._process.pid, memory_limit)
        self._reader = threading.Thread(target=self._read, daemon=True, name="remat-reader")

    def stop(self) -> None:
        """Request termination, from any thread; :meth:`run` carries it out."""
        self._stop.set()

    def run(self, deadline: Deadline) -> int:
        """Read until the program ends; terminate the group at the deadline or on request. Return its exit code.

        Lines written before the end are always read. An exception in a callback terminates the group too.
        """
        self._reader.start()
        try:
            self._follow(deadline)
        finally:
            code = self.end()
        self._reader.join(GRACE)  # bounded: a grandchild that left the group may hold the pipe open
        while not self._lines.empty():
            if (line := self._lines.get()) is not None:
                self._on_line(line)
        return code

    def errors(self) -> list[str]:
        """Return the lines of error output so far."""
        return self._errors.read_text(encoding="utf-8", errors="replace").splitlines()

    def _follow(self, deadline: Deadline) -> None:
        checked = 0.0
        while not self._stop.is_set() and not deadline.expired:
            if self._memory_limit is not None and time.monotonic() > checked + process_trees.INTERVAL:
                checked = time.monotonic()
                self.too_large = process_trees.memory_of(self._process.pid) > self._memory_limit
                if self.too_large:
                    return
            try:
                line = self._lines.get(timeout=min(0.05, deadline.remaining + 0.001))
            except queue.Empty:
                continue
            if line is None:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._process.wait(GRACE)
                return
            self._on_line(line)

    def end(self) -> int:
        """Terminate all running processes of the group; idempotent."""
        if not self._ended:
            self._ended = True
            self._signal(signal.SIGTERM)
            until = time.monotonic() + GRACE
            while self._signal(0) and time.monotonic() < until:
                time.sleep(0.01)
            guard_process.kill([self._process.pid])
            self._process.kill()  # for systems without /proc
            self._process.wait()
            guard.forget(self._process.pid)
        return self._process.wait()

    def _signal(self, number: int) -> bool:
        """Send a signal to the group (0: none); return whether it still exists."""
        self._process.poll()  # reaps the driver if it has ended
        try:
            os.killpg(self._process.pid, number)
        except (ProcessLookupError, PermissionError):
            return False
        return True

    def _read(self) -> None:
        assert self._process.stdout is not None
        with contextlib.suppress(ValueError, OSError), self._process.stdout as stream:
            for line in stream:
                self._lines.put(line.decode(errors="replace").rstrip("\n"))
        self._lines.put(None)
