"""Running a native solver in a thread of its own: Ctrl-C, and solvers that look at their clock too rarely."""

from __future__ import annotations

import atexit
import threading
from collections.abc import Callable

from remat import interruption
from remat.deadline import Deadline, OverdueError

#: Seconds after the deadline that a solver may take to return; then it is left to wind down by itself.
GRACE = 0.35
#: The same after Ctrl-C: some solvers look up a few times in a second only, and their last solution is worth it.
PATIENCE = 0.8
#: Seconds that the end of the program waits for solvers left behind.
LAST_WAIT = 30.0

_left_behind: list[threading.Thread] = []


class LeftBehindError(OverdueError):
    """A solver did not stop when it was asked to, and winds down by itself.

    Attributes
    ----------
    interrupted : bool
        Whether Ctrl-C was the reason to ask, and not the deadline.
    """

    def __init__(self, interrupted: bool) -> None:
        super().__init__("the solver did not stop " + ("when it was asked to" if interrupted else "at its deadline"))
        self.interrupted = interrupted


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
    LeftBehindError
        If `work` goes on for :data:`GRACE` seconds after the deadline, or for :data:`PATIENCE` after Ctrl-C. Its
        thread is left behind, asked to stop; what it says from then on is for the caller to ignore.
    """
    failure: list[BaseException] = []
    finished = threading.Event()
    overdue = stopped = False

    def guarded() -> None:
        try:
            work()
        except BaseException as error:  # handed to the waiting thread
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
            except KeyboardInterrupt:  # somebody else's handler, or the second Ctrl-C
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
    """How many solvers that missed their deadline are still winding down."""
    _left_behind[:] = [thread for thread in _left_behind if thread.is_alive()]
    return len(_left_behind)


@atexit.register
def _wait_for_them() -> None:
    """A native thread that calls back into an interpreter that is gone would crash the program."""
    for thread in _left_behind:
        thread.join(LAST_WAIT)
