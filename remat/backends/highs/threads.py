"""The threads of HiGHS, which all solves of a process share."""

from __future__ import annotations

import threading
from typing import Any


class Scheduler:
    """HiGHS's pool of threads, one per process, which has to be made anew for another number of threads.

    While a solve is running the pool must stay, so a second one at the same time takes the number that there is.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._threads: int | None = None
        self._running = 0

    def enter(self, highspy: Any, threads: int) -> int:
        """Begin a solve; the number of threads to solve with."""
        with self._lock:
            if not self._running and self._threads != threads:
                highspy.Highs.resetGlobalScheduler(True)
                self._threads = threads
            self._running += 1
            return self._threads or threads

    def leave(self) -> None:
        """End a solve, in whichever thread it ends."""
        with self._lock:
            self._running -= 1


SCHEDULER = Scheduler()
