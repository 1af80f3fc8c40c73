"""Ctrl-C, SIGTERM and SIGHUP for the process of a command: it exits within two seconds and keeps its results.

Signals wake a thread even while the main thread is in a solver, compiled code or an import; nothing is raised. The
thread sets a flag that running calls check (:func:`remat.runtime.interruption.interrupted`). If no call checks it,
nothing can be lost, and the process exits at once, as it does at a second signal. If a call does not end in time,
the last result is written and the process exits.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator

from remat.cli.terminal import unguarded
from remat.runtime import interruption

#: Signals that end a command. Signals ignored from the start (``nohup``) stay ignored.
SIGNALS = tuple(
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
)  # fmt: skip
#: Seconds after the first signal for calls to end, and for writing their results.
PATIENCE, WRITING_PATIENCE = 1.7, 20.0
#: Seconds between two checks.
TICK = 0.05

Rescue = Callable[[], bool]

_rescues: list[Rescue] = []
_writing = threading.Event()


@contextlib.contextmanager
def rescued_by(rescue: Rescue) -> Iterator[None]:
    """Call `rescue` if the process must exit during the ``with`` block; it writes the last result.

    It returns True if there is a result.
    """
    _rescues.append(rescue)
    try:
        yield
    finally:
        _rescues.remove(rescue)


def writing() -> None:
    """Mark the end of the search: the results are being written, and get more time."""
    _writing.set()


class SignalHandler:
    """Signal handler in the main thread of a process that runs a command."""

    def __init__(self) -> None:
        self.number = 0
        """Number of the first signal."""
        self.listens = threading.current_thread() is threading.main_thread()

    def listen(self) -> None:
        """Handle signals from now on, also during the end of the interpreter."""
        _writing.clear()
        if not self.listens:
            return
        self._ears, self._mouth = socket.socketpair()
        self._mouth.setblocking(False)
        signal.set_wakeup_fd(self._mouth.fileno(), warn_on_full_buffer=False)
        for number in SIGNALS:
            if signal.getsignal(number) not in (signal.SIG_IGN, None):
                signal.signal(number, lambda *_: None)  # the thread handles it
        threading.Thread(target=self._listen, daemon=True, name="remat-signals").start()

    def leave(self, code: int) -> int:
        """Ignore signals while the interpreter exits; they can no longer change the result.

        Python would restore its own handlers before it exits, so that a late signal would change the exit code.
        """
        code = self.exit_code(code)
        if self.listens:
            for number in SIGNALS:
                signal.signal(number, signal.SIG_IGN)
            last = threading.Timer(PATIENCE, os._exit, (code,))
            last.daemon = True
            last.start()
        return code

    def exit_code(self, code: int) -> int:
        """Return the exit code of the process: the command's `code`, or another one after SIGTERM and SIGHUP.

        After Ctrl-C it is that of the command, since a person sees the result. A program that sends a signal needs the
        code to detect the interruption.
        """
        return code if self.number in (0, signal.SIGINT) else 128 + self.number

    def _listen(self) -> None:
        while True:
            self._ears.settimeout(None)
            for number in self._ears.recv(16):
                if number not in SIGNALS:
                    continue
                if self.number and interruption.since() > interruption.SAME:
                    self._end(rescue=False)
                first, self.number = not self.number, self.number or number
                if not interruption.request():
                    self._end(rescue=False)
                if first:
                    threading.Thread(target=self._watch, daemon=True, name="remat-last-resort").start()

    def _watch(self) -> None:
        """End the process in time after a signal."""
        waiting = threading.Event()
        while interruption.interrupted():
            waiting.wait(TICK)
            if interruption.since() > (WRITING_PATIENCE if _writing.is_set() else PATIENCE):
                self._end(rescue=not _writing.is_set())

    def _end(self, *, rescue: bool) -> None:
        """End the process, regardless of its other threads."""
        some = False
        with contextlib.suppress(Exception):
            some = rescue and any(one() for one in tuple(_rescues))
        with contextlib.suppress(Exception):
            if sys.stderr.isatty():
                said = "" if some else "\nremat: interrupted; there is no result yet\n"
                unguarded(sys.stderr).write(f"\x1b[?25h{said}")  # show the cursor, which a live line hides
            sys.stderr.flush()
        os._exit(self.exit_code(0 if some else 128 + signal.SIGINT))
