"""Thread pool of HiGHS, shared by all solves of a process."""

from __future__ import annotations

import threading
from typing import Any


class Scheduler:
    """Owner of HiGHS's thread pool, one per process, which must be recreated to change its size.

    The pool must stay while a solve is running, so a concurrent solve uses the current number of threads.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._threads: int | None = None
        self._running = 0

    def enter(self, highspy: Any, threads: int) -> int:
        """Register a solve; return the number of threads to use."""
        with self._lock:
            if not self._running and self._threads != threads:
                highspy.Highs.resetGlobalScheduler(True)
                self._threads = threads
            self._running += 1
            return self._threads or threads

    def leave(self) -> None:
        """Unregister a solve, from any thread."""
        with self._lock:
            self._running -= 1


SCHEDULER = Scheduler()
