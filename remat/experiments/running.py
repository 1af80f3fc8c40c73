"""Loop that runs many cells by futures: keeps an executor busy, takes finished cells, stops at Ctrl-C."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import suppress
from typing import Generic, TypeVar

from remat.errors import BackendError
from remat.runtime.interruption import interrupted

#: Seconds between two checks for Ctrl-C.
TICK = 0.1
#: Seconds for running cells to finish after Ctrl-C.
GRACE = 1.2

Job = TypeVar("Job")
Answer = TypeVar("Answer")


class RunnerLoop(ABC, Generic[Job, Answer]):
    """Base of the runners of studies and frontiers."""

    def __init__(self) -> None:
        self.running: dict[Future[Answer], Job] = {}
        """Submitted jobs."""

    @abstractmethod
    def fill(self) -> None:
        """Submit jobs to free slots, and add them to `running`."""

    @abstractmethod
    def take(self, job: Job, future: Future[Answer]) -> None:
        """Take the result of a job."""

    def ended(self) -> bool:
        """Return True if no job can come after those that ran."""
        return True

    def tick(self) -> None:
        """Do what is due at intervals."""

    def interrupt(self) -> None:
        """Stop running jobs after Ctrl-C."""

    def give_back(self, job: Job) -> None:
        """Handle a job without a result when the loop ends."""

    def loop(self) -> None:
        """Run until no job is left; raise KeyboardInterrupt after Ctrl-C, once running jobs had time to finish."""
        try:
            while not interrupted():
                self.fill()
                if not self.running:
                    if self.ended():
                        return
                    time.sleep(TICK)
                for future in wait(self.running, TICK, FIRST_COMPLETED).done:
                    self.take(self.running.pop(future), future)
                self.tick()
            raise KeyboardInterrupt
        except KeyboardInterrupt:
            self.interrupt()
            for future in self.running:
                future.cancel()
            for future in [each for each in wait(self.running, GRACE).done if not each.cancelled()]:
                with suppress(BackendError, KeyboardInterrupt):  # lost, or interrupted
                    self.take(self.running.pop(future), future)
            raise
        finally:
            for future, job in self.running.items():
                future.cancel()
                self.give_back(job)
