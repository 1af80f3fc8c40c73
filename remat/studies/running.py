"""Running of a study: claims cells, hands them to an executor and stores what comes back."""

from __future__ import annotations

import os
import platform
import secrets
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass

from remat.experiments.running import RunnerLoop
from remat.runtime.interruption import interrupts
from remat.runtime.text import one_line
from remat.studies.executors import StudyExecutor
from remat.studies.heartbeat import Heartbeat
from remat.studies.plan import Cell
from remat.studies.solving import Outcome
from remat.studies.store import STALE, Store

#: Attempts to solve a cell whose executor loses it.
ATTEMPTS = 3
#: Seconds between two searches for cells that other runners have lost.
PAUSE = 1.0


@dataclass(frozen=True)
class Event:
    """A finished cell.

    Attributes
    ----------
    cell : Cell
    outcome : Outcome
    done, total : int
        Finished cells of the study, and all.
    seconds_left : float or None
        Estimate from the cells of this runner; None before the first.
    """

    cell: Cell
    outcome: Outcome
    done: int
    total: int
    seconds_left: float | None


class Runner(RunnerLoop[tuple[Cell, int], Outcome]):
    """One of possibly many runners of a study.

    Parameters
    ----------
    on_event : callable
        Receives an :class:`Event` for each finished cell.
    stale : float
        Seconds without a heartbeat after which cells of other runners are taken over.
    """

    def __init__(
        self, store: Store, study: str, executor: StudyExecutor, on_event: Callable[[Event], object] = lambda _: None,
        *, stale: float = STALE,
    ) -> None:  # fmt: skip
        super().__init__()
        self.store, self.study, self.executor, self.on_event, self.stale = store, study, executor, on_event, stale
        self.owner = f"{platform.node()}:{os.getpid()}:{secrets.token_hex(4)}"
        self.heartbeat = Heartbeat(store, self.owner, stale)
        self._began = time.monotonic()
        self._finished = 0
        self._place, self._searched = -1, -PAUSE
        self._counts, self._counted = dict[str, int](), -PAUSE

    def run(self) -> bool:
        """Solve cells until none is left, also none of other runners; return False after Ctrl-C."""
        with interrupts(), self.heartbeat:
            try:
                self.loop()
            except KeyboardInterrupt:
                return False
        return True

    def fill(self) -> None:
        """Claim cells for free slots: those behind the last one, and at intervals those that others gave back."""
        free = self.executor.slots - len(self.running)
        while free > 0 and time.monotonic() > self._searched + PAUSE:
            claimed = self.store.claim(self.study, self.owner, stale=self.stale, limit=free, after=self._place)
            for cell, attempt, position in claimed:
                self._place = position
                self.heartbeat.hold(cell.digest)
                self.running[self.executor.submit(self.store.task(cell))] = cell, attempt
            free -= len(claimed)
            if free > 0:
                if self._place < 0:
                    self._searched = time.monotonic()
                self._place = -1

    def ended(self) -> bool:
        """Return True if no cell waits or runs, here or elsewhere."""
        self._count()
        return not self._counts["waiting"] and not self._counts["running"]

    def take(self, job: tuple[Cell, int], future: Future[Outcome]) -> None:
        """Store the outcome of a cell; one that the executor has lost is given back a few times."""
        cell, attempt = job
        try:
            outcome = future.result()
        except Exception as error:
            if attempt < ATTEMPTS:
                self.give_back(job)
                return
            why = f"lost {attempt} times by the executor: {type(error).__name__}: {error}"
            outcome = Outcome({"status": "failed", "message": one_line(why)})
        if outcome.interrupted:
            self.give_back(job)
            return
        self.heartbeat.drop(cell.digest)
        if self.store.finish(cell, self.owner, outcome):
            self._finished += 1
            self._report(cell, outcome)

    def give_back(self, job: tuple[Cell, int]) -> None:
        """Release a cell for any runner."""
        self.heartbeat.drop(job[0].digest)
        self.store.release(job[0], self.owner)

    def _report(self, cell: Cell, outcome: Outcome) -> None:
        if time.monotonic() > self._counted + PAUSE:
            self._count()
        else:
            self._counts["failed" if outcome.row["status"] == "failed" else "done"] += 1
            self._counts["running"] -= 1
        done, total = self._counts["done"] + self._counts["failed"], sum(self._counts.values())
        left = (time.monotonic() - self._began) / self._finished * (total - done)
        self.on_event(Event(cell, outcome, done, total, left))

    def _count(self) -> None:
        self._counts, self._counted = self.store.counts(self.study), time.monotonic()
