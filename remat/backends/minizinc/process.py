"""A program in a process group of its own, read line by line, and stopped with all its children."""

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

from remat.backends.processes import families, guard, guard_process
from remat.deadline import Deadline

#: Seconds between the polite request to end and the one that cannot be refused.
GRACE = 0.3
#: Name of the file with the program's error output.
ERRORS = "errors"


class GroupProcess:
    """Runs `command` in a session of its own, so that all that it starts can be found and ended.

    The driver gives its solver a group of its own, so a signal to one group is not enough; and both would outlive
    this process, for which there is the guard (:mod:`remat.backends.processes.guard`).

    Parameters
    ----------
    folder : Path
        Where it runs; its error output is in a file there.
    on_line : callable
        Receives each line of standard output, in the thread of :meth:`run`.
    memory_limit : int, optional
        Bytes that all of them may hold; where they hold more they are ended, and `too_large` is true.
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
            families.cap(self._process.pid, memory_limit)
        self._reader = threading.Thread(target=self._read, daemon=True, name="remat-reader")

    def stop(self) -> None:
        """Ask for the end, from any thread; :meth:`run` sees to it."""
        self._stop.set()

    def run(self, deadline: Deadline) -> int:
        """Read until the program ends; at the deadline, or when asked, the whole group is ended. Its exit code.

        Lines that were written before the end are read in any case. On an error in a callback the group is ended too.
        """
        self._reader.start()
        try:
            self._follow(deadline)
        finally:
            code = self.end()
        self._reader.join(GRACE)  # a grandchild that left the group may hold the pipe open, so not for ever
        while not self._lines.empty():
            if (line := self._lines.get()) is not None:
                self._on_line(line)
        return code

    def errors(self) -> list[str]:
        """Return the lines of error output so far."""
        return self._errors.read_text(encoding="utf-8", errors="replace").splitlines()

    def _follow(self, deadline: Deadline) -> None:
        looked = 0.0
        while not self._stop.is_set() and not deadline.expired:
            if self._memory_limit is not None and time.monotonic() > looked + families.LOOK:
                looked = time.monotonic()
                self.too_large = families.memory_of(self._process.pid) > self._memory_limit
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
        """End every process of the group that still runs; may be called again."""
        if not self._ended:
            self._ended = True
            self._signal(signal.SIGTERM)
            until = time.monotonic() + GRACE
            while self._signal(0) and time.monotonic() < until:
                time.sleep(0.01)
            guard_process.kill([self._process.pid])
            self._process.kill()  # where sessions cannot be looked at
            self._process.wait()
            guard.forget(self._process.pid)
        return self._process.wait()

    def _signal(self, number: int) -> bool:
        """Send a signal to the group (0: none); whether it is still there."""
        self._process.poll()  # takes the driver out of the group where it has ended
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
