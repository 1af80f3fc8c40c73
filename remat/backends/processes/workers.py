"""A process pool whose tasks can be interrupted like work in this process, and that leaves nothing behind."""

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

from remat.backends.processes import children, guard
from remat.errors import ProblemError

#: Seconds that workers have to end by themselves when the pool is left by an exception, before they are killed.
GRACE = 5.0

_T = TypeVar("_T")


class WorkerPool(ProcessPoolExecutor):
    """Fresh processes for :func:`remat.experiments.frontier.frontier`; use it as a context manager.

    One that has the imports forks them (:mod:`remat.backends.processes.children`); they share nothing with this one.
    Ctrl-C at a terminal does not reach the workers, but :meth:`interrupt` does: a task that runs may still return what
    it has, and workers without a task take no notice. Left by an exception, the pool ends its workers, and a worker
    ends when its parent is gone. When a worker dies, all tasks fail; the next one starts new workers.

    Parameters
    ----------
    workers : int
        How many tasks run at the same time.

    Raises
    ------
    ProblemError
        For fewer than one worker.
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
        """As for every executor; the task runs where Ctrl-C is heard."""
        job = (_run, time.monotonic(), task, *arguments)
        try:
            future = super().submit(*job, **options)
        except BrokenProcessPool:  # a worker died, or all did with the server that forked them
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
        """Ctrl-C for every task that runs, and for those whose worker is still starting or importing."""
        self._interrupted.value = time.monotonic()
        for process in self._mine():
            if _has_begun(process):  # the signal would kill another one, and break the pool
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process.pid or 0, signal.SIGINT)

    def stop(self, grace: float = GRACE) -> None:
        """End the workers, whatever they do; first gently, and after `grace` seconds by killing them."""
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


#: In a worker: the moment of the pool's last interruption, by the monotonic clock, which all processes share.
_interrupted: Any = None


def _begin(interrupted: Any) -> None:
    """In a worker, before its first task."""
    global _interrupted  # noqa: PLW0603 - a fact of the process
    _interrupted = interrupted
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with contextlib.suppress(OSError):
        os.setsid()  # out of reach of the terminal: only the parent decides who is interrupted, and does it once


def _has_begun(process: multiprocessing.process.BaseProcess) -> bool:
    """Return whether a worker is past the start, during which SIGINT kills it."""
    try:
        return not hasattr(os, "getsid") or os.getsid(process.pid or 0) == process.pid
    except ProcessLookupError:
        return False


def _run(submitted: float, task: Callable[..., _T], *arguments: Any, **options: Any) -> _T:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # the one that solvers know how to replace
    try:
        if _interrupted.value > submitted:
            raise KeyboardInterrupt
        return task(*arguments, **options)
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
