"""One state for the whole process: whether somebody has asked it to stop.

Ctrl-C sets a flag, and raises nothing, while some call has promised to look at it (:func:`interrupts`); otherwise it
raises ``KeyboardInterrupt``, as ever. An exception may strike between any two steps, and one in ``Thread.join()`` makes
Python 3.11 take a running thread for finished; a flag is looked at where it suits.

The flag stays until every call that ran when it was set has ended, so a call inside another one that ends by itself
does not take it away. Every :class:`remat.deadline.Deadline` is over while it is set: what ends at its deadline with
the best that it has ends at Ctrl-C, too.
"""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Iterator
from types import FrameType

#: Seconds after an interruption in which another signal is taken for the same: ``timeout`` and shells send them twice.
SAME = 0.3

_lock = threading.Lock()
_calls: set[object] = set()
"""Tokens of the calls that look at the flag."""
_unanswered: set[object] = set()
"""Those of them that ran when it was set."""
_moment = -float("inf")


def interrupted() -> bool:
    """Whether the calls that run now are asked to end."""
    return bool(_unanswered)


def since() -> float:
    """Seconds since that was asked; minus infinity while it is not."""
    return time.monotonic() - _moment if _unanswered else -float("inf")


def request() -> bool:
    """Ask all calls that look at the flag to end; whether there are any. Safe in a signal handler."""
    global _moment  # noqa: PLW0603  (one state for the process is what this module is for)
    if not _unanswered:
        _moment = time.monotonic()
    _unanswered.update(_calls)  # one step of C: no lock, which the thread that is interrupted might hold
    return bool(_unanswered)


def handler(_number: int, _frame: FrameType | None) -> None:
    """A signal handler: the first signal asks, another one, or one that nobody looks for, raises.

    Raises
    ------
    KeyboardInterrupt
    """
    again = since() > SAME
    if not request() or again:
        raise KeyboardInterrupt


@contextlib.contextmanager
def interrupts() -> Iterator[None]:
    """For the time of the ``with`` block somebody looks at :func:`interrupted`, and so Ctrl-C raises nothing.

    A second Ctrl-C does. Only the main thread can handle signals, and a handler that is not Python's own is respected:
    otherwise nothing is installed, and the flag is set only by :func:`request`.

    Examples
    --------
    >>> with interrupts():
    ...     with interrupts():
    ...         signal.raise_signal(signal.SIGINT)
    ...     interrupted()
    True
    >>> interrupted()
    False
    """
    token = object()
    handled = threading.current_thread() is threading.main_thread() and (
        signal.getsignal(signal.SIGINT) is signal.default_int_handler
    )
    with _lock:
        _calls.add(token)
    try:
        if handled:
            signal.signal(signal.SIGINT, handler)
        yield
    finally:
        if handled:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        with _lock:
            _calls.discard(token)
            _unanswered.discard(token)
