"""Running a native solver in a thread of its own: Ctrl-C, and solvers that look at their clock too rarely."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import signal
import threading
from collections.abc import Callable, Iterator

from remat.deadline import Deadline

#: Seconds after the deadline that a solver may take to return; then it is left to wind down by itself.
GRACE = 0.35
#: Seconds that the end of the program waits for solvers left behind.
LAST_WAIT = 30.0

_left_behind: list[threading.Thread] = []


class OverdueError(TimeoutError):
    """Work did not end by its deadline."""


@contextlib.contextmanager
def interrupts() -> Iterator[threading.Event]:
    """Ctrl-C sets the event that is given, and raises nothing, where this is the main thread and Python's own handler.

    An exception may strike between any two steps, and one in ``Thread.join()`` makes Python 3.11 take a running
    thread for finished; a flag is looked at where it suits.
    """
    interrupted = threading.Event()
    handled = threading.current_thread() is threading.main_thread() and (
        signal.getsignal(signal.SIGINT) is signal.default_int_handler
    )
    if handled:
        signal.signal(signal.SIGINT, lambda *_: interrupted.set())
    try:
        yield interrupted
    finally:
        if handled:
            signal.signal(signal.SIGINT, signal.default_int_handler)


def run_interruptible(work: Callable[[], None], stop: Callable[[], object], deadline: Deadline | None = None) -> bool:
    """Run `work` in a thread and wait; on Ctrl-C call `stop`, wait for `work` to end, and return True.

    Native solvers hold the main thread where Python's signal handler cannot run; in a thread of its own the solver
    can be asked to stop and its incumbent survives. An exception in `work` is raised here.

    `stop` is called again until `work` ends, since a solver that has not quite started may not hear the first call.

    Parameters
    ----------
    deadline : Deadline, optional
        When it is over, `stop` is called too.

    Raises
    ------
    OverdueError
        If `work` goes on for :data:`GRACE` seconds after the deadline. Its thread is left behind, asked to stop; what
        it says from then on is for the caller to ignore.
    """
    failure: list[BaseException] = []
    finished = threading.Event()
    overdue = False

    def guarded() -> None:
        try:
            work()
        except BaseException as error:  # handed to the waiting thread
            failure.append(error)
        finally:
            finished.set()

    with interrupts() as interrupted:
        thread = threading.Thread(target=guarded, daemon=True, name="remat-solver")
        thread.start()
        while not finished.is_set() and not overdue:
            try:
                left = 0.1 if deadline is None else min(0.1, max(0.01, deadline.remaining))
                finished.wait(left)
                late = deadline is not None and deadline.expired
                if (interrupted.is_set() or late) and not finished.is_set():
                    stop()
                overdue = deadline is not None and deadline.elapsed > deadline.seconds + GRACE
            except KeyboardInterrupt:  # somebody else's handler
                interrupted.set()
    if failure:
        raise failure[0]
    if not finished.is_set():
        _left_behind.append(thread)
        raise OverdueError("the solver did not stop at its deadline")
    return interrupted.is_set()


def left_behind() -> int:
    """How many solvers that missed their deadline are still winding down."""
    _left_behind[:] = [thread for thread in _left_behind if thread.is_alive()]
    return len(_left_behind)


@atexit.register
def _wait_for_them() -> None:
    """A native thread that calls back into an interpreter that is gone would crash the program."""
    for thread in _left_behind:
        thread.join(LAST_WAIT)


@contextlib.contextmanager
def time_limit(deadline: Deadline) -> Iterator[None]:
    """Break off the Python code in the ``with`` block when the deadline is over; steps in C are waited for.

    Raises
    ------
    OverdueError
        Out of the block, between two steps of Python.

    Examples
    --------
    >>> try:
    ...     with time_limit(Deadline.after(0.05)):
    ...         while True:
    ...             pass
    ... except OverdueError as error:
    ...     print(error)
    no time is left
    """
    if deadline.remaining == float("inf"):
        yield
        return
    if deadline.expired:
        raise OverdueError("no time is left")
    raise_in = ctypes.pythonapi.PyThreadState_SetAsyncExc
    target, lock, inside = ctypes.c_ulong(threading.get_ident()), threading.Lock(), True

    def strike() -> None:
        with lock:
            if inside:
                raise_in(target, ctypes.py_object(OverdueError))

    timer = threading.Timer(deadline.remaining, strike)
    timer.daemon = True
    timer.start()
    try:
        try:
            yield
        finally:
            timer.cancel()
            with lock:
                inside = False
                raise_in(target, None)  # takes back one that has not struck yet
    except OverdueError:
        raise OverdueError("no time is left") from None
