"""Ctrl-C, SIGTERM and SIGHUP for the process of a command: it ends within two seconds, with what it has found.

The signals wake a thread, whatever the main thread is at (a solver, compiled code, an import), and nothing is ever
raised. That thread asks the calls that look at :func:`remat.interruption.interrupted` to end. Where no call looks there
is nothing to lose, and the process ends at once; so it does at a second signal. Where a call has not ended in time,
what was found last is written and the process ends.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator

from remat import interruption

#: What ends a command. Where one of them is ignored from the start (``nohup``) it stays ignored.
SIGNALS = tuple(
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
)  # fmt: skip
#: Seconds after the first signal in which calls must end by themselves, and those for writing what came of them.
PATIENCE, WRITING_PATIENCE = 1.7, 20.0
#: Seconds between two looks at whether they have.
TICK = 0.05

Rescue = Callable[[], bool]

_rescues: list[Rescue] = []
_writing = threading.Event()


@contextlib.contextmanager
def rescued_by(rescue: Rescue) -> Iterator[None]:
    """For the time of the ``with`` block `rescue` writes what was found last, if the process must end at once.

    It returns whether there is a result.
    """
    _rescues.append(rescue)
    try:
        yield
    finally:
        _rescues.remove(rescue)


def writing() -> None:
    """The search has ended; what follows is written and shown, and has time for that."""
    _writing.set()


class Listener:
    """Listens to signals in the main thread of a process that is a command."""

    def __init__(self) -> None:
        self.number = 0
        """Of the first signal that came."""
        self.listens = threading.current_thread() is threading.main_thread()

    def listen(self) -> None:
        """Listen from now on, also while the interpreter ends."""
        _writing.clear()
        if not self.listens:
            return
        self._ears, self._mouth = socket.socketpair()
        self._mouth.setblocking(False)
        signal.set_wakeup_fd(self._mouth.fileno(), warn_on_full_buffer=False)
        for number in SIGNALS:
            if signal.getsignal(number) not in (signal.SIG_IGN, None):
                signal.signal(number, _nothing)
        threading.Thread(target=self._listen, daemon=True, name="remat-signals").start()

    def leave(self, code: int) -> int:
        """The work is done and the interpreter ends: soon, as signals cannot change what comes of it any more.

        Python itself would take back its handlers before its end, so that a signal in that moment gives another code.
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
        """That of the process, where the command would return `code`: another one after SIGTERM and SIGHUP.

        After Ctrl-C it is that of the command, as a person sees what there is; a program that ends another one must be
        able to tell that it was cut short.
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
        """See to it that the process ends."""
        waiting = threading.Event()
        while interruption.interrupted():
            waiting.wait(TICK)
            if interruption.since() > (WRITING_PATIENCE if _writing.is_set() else PATIENCE):
                self._end(rescue=not _writing.is_set())

    def _end(self, *, rescue: bool) -> None:
        """End the process, whatever it does."""
        some = False
        with contextlib.suppress(Exception):
            some = rescue and any(one() for one in tuple(_rescues))
        with contextlib.suppress(Exception):
            if sys.stderr.isatty():
                sys.stderr.write("\x1b[?25h")  # the cursor, which a live line hides
            sys.stderr.flush()
        os._exit(self.exit_code(0 if some else 128 + signal.SIGINT))


def _nothing(_number: int, _frame: object) -> None:
    """A handler that leaves it to the thread."""
