"""Interruption flag of the process.

While a call checks the flag (:func:`interrupts`), Ctrl-C sets it and raises nothing; otherwise Ctrl-C raises
``KeyboardInterrupt`` as usual. An exception can strike between any two steps, and in ``Thread.join()`` it makes
Python 3.11 treat a running thread as finished. A flag is checked only where stopping is safe.

The flag stays until all calls that were running when it was set have returned, so an inner call that returns does not
clear it for the outer one. Every :class:`remat.runtime.deadline.Deadline` is expired while it is set: a search
that keeps its best schedule at the deadline also keeps it at Ctrl-C.
"""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Iterator
from types import FrameType

#: Seconds within which a second signal counts as the same: ``timeout`` and shells send each signal twice.
SAME = 0.3

_lock = threading.Lock()
_calls: set[object] = set()
"""Tokens of the calls that check the flag."""
_unanswered: set[object] = set()
"""Tokens of the calls that were running when it was set."""
_moment = -float("inf")


def interrupted() -> bool:
    """Return True if the running calls must stop."""
    return bool(_unanswered)


def since() -> float:
    """Return seconds since the interruption; minus infinity without one."""
    return time.monotonic() - _moment if _unanswered else -float("inf")


def request() -> bool:
    """Interrupt all calls that check the flag; return whether there are any. Safe in a signal handler."""
    global _moment  # noqa: PLW0603  (one state for the process is what this module is for)
    if not _unanswered:
        _moment = time.monotonic()
    _unanswered.update(_calls)  # a single C call needs no lock, which the interrupted thread might hold
    return bool(_unanswered)


def handler(_number: int, _frame: FrameType | None) -> None:
    """Signal handler: the first signal interrupts the running calls.

    Raise KeyboardInterrupt for a second signal, or if no call checks the flag.
    """
    again = since() > SAME
    if not request() or again:
        raise KeyboardInterrupt


@contextlib.contextmanager
def interrupts() -> Iterator[None]:
    """Declare that the ``with`` block checks :func:`interrupted`: the first Ctrl-C sets the flag, the second raises.

    The handler is installed only in the main thread, and only in place of Python's own. Elsewhere only :func:`request`
    sets the flag.

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
