"""Executors of studies: processes of this machine, a Dask cluster, or jobs of SLURM."""

from __future__ import annotations

import os
import queue
import re
import shutil
from abc import ABC, abstractmethod
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from remat.errors import RematError
from remat.studies.cell_process import GRACE, CellProcess, solve_cell
from remat.studies.solving import Outcome, Task

_NAMES = re.compile(r"processes(:[1-9][0-9]{0,3})?|dask://.+|slurm:[1-9][0-9]{0,3}(,[^,=]+=[^,]*)*")

#: Options of ``slurm:``.
SLURM_OPTIONS = ("queue", "account", "walltime", "memory", "interface", "log_directory")


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
    """Child processes of this one, each for many cells.

    If the processors suffice, each of the `slots` has `threads` of its own, to which its child is pinned.
    """

    def __init__(self, slots: int, threads: int = 1, *, grace: float = GRACE) -> None:
        self.slots = slots
        self._pool = ThreadPoolExecutor(slots, "remat-cell")
        cpus = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
        pinned = slots * threads <= len(cpus)
        self._idle: queue.SimpleQueue[CellProcess] = queue.SimpleQueue()
        for slot in range(slots):
            mine = cpus[slot * threads : (slot + 1) * threads] if pinned else ()
            self._idle.put(CellProcess(frozenset(mine), grace=grace))

    def submit(self, task: Task) -> Future[Outcome]:
        return self._pool.submit(self._solve, task)

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)
        for _ in range(self.slots):
            self._idle.get().close()

    def _solve(self, task: Task) -> Outcome:
        process = self._idle.get()
        try:
            return process.solve(task)
        finally:
            self._idle.put(process)


class Dask(StudyExecutor):
    """Workers of a Dask cluster, each of whose threads has a child process for its cells.

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


class Slurm(Dask):
    """Jobs of SLURM, each of which is a worker of a Dask cluster and solves a cell at a time.

    The scheduler of the cluster runs in this process, so the nodes must reach this machine. A lost job is replaced.

    Parameters
    ----------
    jobs : int
        Number of jobs.
    threads : int
        Processors of each job.
    options : mapping of str to str
        As :class:`dask_jobqueue.SLURMCluster` takes them: ``queue``, ``account``, ``walltime``, ``memory``,
        ``interface``, ``log_directory``.

    Raises
    ------
    RematError
        If a package is not installed, or naming an option that SLURM or the cluster refuses.
    """

    def __init__(self, jobs: int, threads: int = 1, options: Mapping[str, str] | None = None) -> None:
        try:
            from dask_jobqueue.slurm import SLURMCluster, SLURMJob
        except ImportError:
            raise RematError(
                "the executor slurm: needs dask-jobqueue: pip install 'remat[slurm]'",
                "unavailable",
                "slurm",
            ) from None
        for name in options or {}:
            if name not in SLURM_OPTIONS:
                known = ", ".join(SLURM_OPTIONS)
                raise RematError(f"slurm has no option {name!r}; there are {known}", "executor", name)
        if shutil.which(SLURMJob.submit_command) is None:
            raise RematError(
                f"the executor slurm: needs the program {SLURMJob.submit_command}; start it where SLURM's jobs are "
                "submitted", "unavailable", "slurm",
            )  # fmt: skip
        given: dict[str, Any] = {"memory": "4GiB", "log_directory": "slurm-logs", **(options or {})}
        self._cluster = SLURMCluster(
            cores=1, processes=1, job_cpu=threads, scheduler_options={"dashboard": False}, **given
        )  # fmt: skip
        self._cluster.adapt(minimum_jobs=jobs, maximum_jobs=jobs)
        super().__init__(self._cluster.scheduler_address.removeprefix("tcp://"))

    def close(self) -> None:
        super().close()
        self._cluster.close()


def make_executor(text: str, threads: int = 1) -> StudyExecutor:
    """Return the executor that a text names.

    ``processes``, ``processes:4``, ``dask://host:port``, or ``slurm:JOBS[,OPTION=VALUE...]``.

    `threads`: threads of each cell. ``processes`` has as many slots as the processors allow.

    Raises
    ------
    RematError
        If it names none, or cannot be used.
    """
    from remat.runtime.resources import available_cpus

    check_executor(text)
    word, _, rest = text.partition(":")
    if word == "dask":
        return Dask(rest[2:])
    number, *more = rest.split(",")
    if word == "slurm":
        return Slurm(int(number), threads, dict(each.split("=", 1) for each in more))
    return Processes(int(number) if number else max(1, available_cpus() // threads), threads)


def check_executor(text: str) -> None:
    """Raise RematError if a text names no executor."""
    if not _NAMES.fullmatch(text):
        raise RematError(
            f"executor {text!r} is none of processes:N, dask://host:port and slurm:JOBS,OPTION=VALUE", "executor", text
        )
