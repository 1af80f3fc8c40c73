"""Native solvers in threads: handling of Ctrl-C, and of solvers that rarely check their deadline."""

from __future__ import annotations

import atexit
import threading
from collections.abc import Callable

from remat.runtime import interruption
from remat.runtime.deadline import Deadline, OverdueError

#: Seconds after the deadline that a solver may take to return; then it is abandoned.
GRACE = 0.35
#: The same after Ctrl-C: some solvers check only a few times per second, and their last solution is worth the wait.
PATIENCE = 0.8
#: Seconds that the program's exit waits for abandoned solvers.
LAST_WAIT = 30.0

_left_behind: list[threading.Thread] = []


class LeftBehindError(OverdueError):
    """A solver did not stop on request and was abandoned; its thread still runs.

    Attributes
    ----------
    interrupted : bool
        True if Ctrl-C was the reason, false for the deadline.
    """

    def __init__(self, interrupted: bool) -> None:
        super().__init__("the solver did not stop " + ("when it was asked to" if interrupted else "at its deadline"))
        self.interrupted = interrupted


def run_interruptible(work: Callable[[], None], stop: Callable[[], object], deadline: Deadline | None = None) -> bool:
    """Run `work` in a thread and wait; on Ctrl-C call `stop`, wait for `work` to end, and return True.

    Native solvers block the main thread, so that Python's signal handler cannot run. In a separate thread the solver
    can be stopped and its incumbent survives. An exception in `work` is raised here.

    `stop` is called repeatedly until `work` ends, since a solver that is still starting may miss the first call.

    Parameters
    ----------
    deadline : Deadline, optional
        `stop` is called when it passes, too.

    Raises
    ------
    LeftBehindError
        If `work` still runs :data:`GRACE` seconds after the deadline, or :data:`PATIENCE` after Ctrl-C. Its thread is
        abandoned after a request to stop; the caller must ignore its later callbacks.
    """
    failure: list[BaseException] = []
    finished = threading.Event()
    overdue = stopped = False

    def guarded() -> None:
        try:
            work()
        except BaseException as error:  # passed to the waiting thread
            failure.append(error)
        finally:
            finished.set()

    with interruption.interrupts():
        thread = threading.Thread(target=guarded, daemon=True, name="remat-solver")
        thread.start()
        while not finished.is_set() and not overdue:
            try:
                finished.wait(0.1 if deadline is None else min(0.1, max(0.01, deadline.remaining)))
                stopped = stopped or interruption.interrupted()
                late = deadline is not None and deadline.expired
                if (stopped or late) and not finished.is_set():
                    stop()
                overdue = deadline is not None and deadline.elapsed > deadline.seconds + GRACE
                overdue = overdue or interruption.since() > PATIENCE
            except KeyboardInterrupt:  # another handler, or the second Ctrl-C
                overdue = stopped
                stopped = interruption.request()
        stopped = stopped or interruption.interrupted()
    if failure:
        raise failure[0]
    if not finished.is_set():
        _left_behind.append(thread)
        raise LeftBehindError(stopped)
    return stopped


def left_behind() -> int:
    """Return the number of solvers that missed their deadline and still run."""
    _left_behind[:] = [thread for thread in _left_behind if thread.is_alive()]
    return len(_left_behind)


@atexit.register
def _wait_for_them() -> None:
    """Wait for native threads: one that calls back after the interpreter's end would crash the program."""
    for thread in _left_behind:
        thread.join(LAST_WAIT)
