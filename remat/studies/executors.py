"""Executors of studies: processes of this machine, or a Dask cluster."""

from __future__ import annotations

import os
import queue
from abc import ABC, abstractmethod
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from remat.errors import RematError
from remat.studies.solving import GRACE, Outcome, Task, solve_cell


class StudyExecutor(ABC):
    """Solves cells somewhere; a context manager.

    Attributes
    ----------
    slots : int
        Number of cells to submit at the same time.
    """

    slots: int

    @abstractmethod
    def submit(self, task: Task) -> Future[Outcome]:
        """Submit a cell. An exception of the future means that the cell is lost, not that its solve failed."""

    @abstractmethod
    def close(self) -> None:
        """End the executor; running cells have ended or are abandoned."""

    def __enter__(self) -> StudyExecutor:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()


class Processes(StudyExecutor):
    """Child processes of this one.

    If the processors suffice, each of the `slots` has `threads` of its own, to which its children are pinned.
    """

    def __init__(self, slots: int, threads: int = 1, *, grace: float = GRACE) -> None:
        self.slots, self.grace = slots, grace
        self._pool = ThreadPoolExecutor(slots, "remat-cell")
        cpus = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
        pinned = slots * threads <= len(cpus)
        self._cpus: queue.SimpleQueue[frozenset[int]] = queue.SimpleQueue()
        for slot in range(slots):
            self._cpus.put(frozenset(cpus[slot * threads : (slot + 1) * threads] if pinned else ()))

    def submit(self, task: Task) -> Future[Outcome]:
        return self._pool.submit(self._solve, task)

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)

    def _solve(self, task: Task) -> Outcome:
        cpus = self._cpus.get()
        try:
            return solve_cell(task, cpus, grace=self.grace)
        finally:
            self._cpus.put(cpus)


class Dask(StudyExecutor):
    """Workers of a Dask cluster, each of whose threads runs a child process at a time.

    Dask runs cells of a lost worker on others; a cell that loses several workers is lost.

    Parameters
    ----------
    address : str
        Of the scheduler, ``host:port``.
    """

    def __init__(self, address: str) -> None:
        try:
            from distributed import Client as _Client
        except ImportError:
            raise RematError(
                "the executor dask:// needs the package distributed: pip install 'remat[dask]'", "unavailable", "dask"
            ) from None
        client: Any = _Client
        try:
            self._client: Any = client(f"tcp://{address}", timeout=20)
        except OSError as error:
            raise RematError(f"dask://{address} cannot be reached: {error}", "executor", f"dask://{address}") from None
        self._executor = self._client.get_executor(pure=False)

    @property
    def slots(self) -> int:  # type: ignore[override]
        """Two cells for each thread of the cluster, which may grow: one runs, one waits."""
        return max(2, 2 * sum(self._client.nthreads().values()))

    def submit(self, task: Task) -> Future[Outcome]:
        future: Future[Outcome] = self._executor.submit(solve_cell, task)
        return future

    def close(self) -> None:
        self._executor.shutdown(wait=False)
        self._client.close()


def make_executor(text: str, threads: int = 1) -> StudyExecutor:
    """Return the executor that ``processes``, ``processes:4`` or ``dask://host:port`` names.

    `threads`: threads of each cell. ``processes`` has as many slots as the processors allow.

    Raises
    ------
    RematError
        If it names none, or cannot be used.
    """
    from remat.runtime.resources import available_cpus

    word, _, rest = text.partition(":")
    if word == "processes" and not rest:
        return Processes(max(1, available_cpus() // threads), threads)
    if word == "processes" and rest.isascii() and rest.isdigit() and 0 < int(rest) < 10_000:
        return Processes(int(rest), threads)
    if word == "dask" and rest.startswith("//") and rest[2:]:
        return Dask(rest[2:])
    raise RematError(f"executor {text!r} is neither processes:N nor dask://host:port", "executor", text)
