"""Process pool with interruptible tasks and complete clean-up."""

from __future__ import annotations

import contextlib
import multiprocessing
import multiprocessing.process
import os
import signal
import time
from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from types import TracebackType
from typing import Any, TypeVar

from remat.errors import ProblemError
from remat.runtime.processes import children, guard

#: Seconds that workers have to end when an exception leaves the pool; then they are killed.
GRACE = 5.0

_T = TypeVar("_T")


class WorkerPool(ProcessPoolExecutor):
    """Fresh processes for :func:`remat.experiments.frontier.frontier`; use it as a context manager.

    A fork server with the imports forks them (:mod:`remat.runtime.processes.children`); they share no state with this
    process. Ctrl-C at a terminal does not reach the workers, but :meth:`interrupt` does: a running task may still
    return a result, and idle workers ignore it. If an exception leaves the pool, its workers are terminated; a worker
    also ends with its parent. If a worker dies, all tasks fail; the next submission starts new workers.

    Parameters
    ----------
    workers : int
        Number of tasks that run at the same time.

    Raises
    ------
    ProblemError
        If `workers` is less than 1.
    """

    def __init__(self, workers: int) -> None:
        if workers < 1:
            raise ProblemError(f"the number of workers must be at least 1, not {workers}")
        self._others = set(multiprocessing.active_children())
        self._context: Any = children.ForkedContext() if children.possible() else multiprocessing.get_context("spawn")
        self._workers = workers
        self._interrupted = self._context.RawValue("d", -1.0)
        self._open()

    def _open(self) -> None:
        super().__init__(self._workers, mp_context=self._context, initializer=_begin, initargs=(self._interrupted,))

    def submit(self, task: Callable[..., _T], /, *arguments: Any, **options: Any) -> Future[_T]:
        """Submit a task as to any executor; Ctrl-C interrupts it."""
        job = (_run, time.monotonic(), task, *arguments)
        try:
            future = super().submit(*job, **options)
        except BrokenProcessPool:  # a worker died, or the server with all workers
            self._open()
            future = super().submit(*job, **options)
        for process in self._mine():
            guard.watch(process.pid or 0)
        return future

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.shutdown()
        else:
            self.stop()

    def interrupt(self) -> None:
        """Interrupt every running task, and those whose worker is still starting or importing."""
        self._interrupted.value = time.monotonic()
        for process in self._mine():
            if _has_begun(process):  # before that the signal would kill the worker and break the pool
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process.pid or 0, signal.SIGINT)

    def stop(self, grace: float = GRACE) -> None:
        """Terminate the workers: by interruption, and after `grace` seconds by SIGKILL."""
        mine = self._mine()
        self.shutdown(wait=False, cancel_futures=True)
        self.interrupt()
        until = time.monotonic() + grace
        for process in mine:
            if not _has_begun(process):
                process.kill()
            process.join(max(0.0, until - time.monotonic()))
            if process.is_alive():
                process.kill()

    def _mine(self) -> set[multiprocessing.process.BaseProcess]:
        return set(multiprocessing.active_children()) - self._others


#: In a worker: time of the pool's last interruption, by the monotonic clock, which all processes share.
_interrupted: Any = None


def _begin(interrupted: Any) -> None:
    """Set up a worker before its first task."""
    global _interrupted  # noqa: PLW0603 - a fact of the process
    _interrupted = interrupted
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with contextlib.suppress(OSError):
        os.setsid()  # detached from the terminal: only the parent interrupts, exactly once


def _has_begun(process: multiprocessing.process.BaseProcess) -> bool:
    """Return True if a worker is past the start, during which SIGINT kills it."""
    try:
        return not hasattr(os, "getsid") or os.getsid(process.pid or 0) == process.pid
    except ProcessLookupError:
        return False


def _run(submitted: float, task: Callable[..., _T], *arguments: Any, **options: Any) -> _T:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # the handler that solvers can replace
    try:
        if _interrupted.value > submitted:
            raise KeyboardInterrupt
        return task(*arguments, **options)
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
