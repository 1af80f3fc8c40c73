"""Supervision of one child process: messages, deadline, memory limit, Ctrl-C and descendants."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import queue
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any

from remat.errors import BackendError
from remat.runtime.deadline import Deadline
from remat.runtime.interruption import interrupted, since
from remat.runtime.processes import children, guard, guard_process, process_trees, wire
from remat.runtime.processes.process_trees import memory_of, too_large
from remat.runtime.solve_options import StopReason

#: Seconds that a child may take to end after a request to stop, and after Ctrl-C.
PATIENCE, INTERRUPTED_PATIENCE = 10.0, 1.0
#: Seconds between two checks of a child.
TICK = 0.02


@dataclass(frozen=True)
class Ending:
    """Reason for killing a child, phrased to follow "the process"."""

    stop: StopReason
    reason: str


class Supervised:
    """A child process that sends messages; a context manager that kills it with all its descendants.

    Parameters
    ----------
    serve : callable
        Importable function that the child calls with its connection and `arguments`. It must begin with
        :func:`remat.runtime.processes.guard.enter_child`.
    arguments : sequence
        Connections among them are closed here once the child has inherited them.
    modules : sequence of str
        See :func:`remat.runtime.processes.children.child`.
    deadline : Deadline
        The child is killed `grace` seconds later.
    memory_limit : int or None
        Bytes that its process tree may hold before it is killed.
    passes_interrupt : bool
        True: Ctrl-C is passed on, and the child gets time to end. False: it is killed at once.
    """

    def __init__(
        self,
        serve: Callable[..., object],
        arguments: Sequence[Any],
        modules: Sequence[str],
        deadline: Deadline,
        memory_limit: int | None,
        *,
        grace: float,
        passes_interrupt: bool = True,
    ) -> None:
        self.deadline, self.memory_limit, self.grace = deadline, memory_limit, grace
        self.passes_interrupt = passes_interrupt
        self.ending: Ending | None = None
        """Why it was killed; None if it ended on its own."""
        self.failure: Exception | None = None
        """Why it could not be started."""
        self.most_memory = 0
        """Largest observed memory in bytes."""
        self._asked: float | None = None  # time of the request to stop
        self._killed_at = self._memory_seen = 0.0
        self._started, self._over = threading.Event(), threading.Event()
        self._inbox: queue.SimpleQueue[wire.Message | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._here, there = multiprocessing.Pipe(duplex=False)
        self._theirs = [there, *(each for each in arguments if isinstance(each, Connection))]
        self.process = children.child(serve, (there, *arguments), modules)

    def __enter__(self) -> Supervised:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._kill_family()
        if self._started.is_set():  # otherwise the threads end it as soon as it has started
            for thread in self._threads:
                thread.join(1)
            self.process.join(1)
            guard.forget(self.process.pid)

    def messages(self) -> Iterator[wire.Message]:
        """Start the child and yield its messages until it ends."""
        for work in (self._start, self._listen):
            thread = threading.Thread(target=work, daemon=True, name=f"remat{work.__name__}")
            self._threads.append(thread)
            thread.start()
        while self.failure is None:
            with contextlib.suppress(queue.Empty):
                message = self._inbox.get(timeout=TICK)
                if message is None:
                    return
                yield message
                if not self._inbox.empty():
                    continue
            if self.ending is None:
                self._watch()
            # Until the pipe is empty, since messages in transit count; a process that escaped may hold it open.
            elif not self._started.is_set() or time.monotonic() > self._killed_at + self.grace:
                return

    def request_stop(self) -> None:
        """Send the child SIGINT, but only once: a second signal would end it before its last solutions."""
        if self._asked is None and self._started.is_set():
            self._asked = time.monotonic()
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.process.pid, signal.SIGINT)

    def kill(self, stop: StopReason, reason: str) -> None:
        """Kill the process tree; the first reason is kept."""
        if self.ending is None:
            self.ending, self._killed_at = Ending(stop, reason), time.monotonic()
        self._kill_family()

    def _watch(self) -> None:
        """Kill the child if it is late or too large; one that has not started yet ends as soon as it has."""
        if not self._started.is_set() and self.deadline.expired:
            stop = StopReason.INTERRUPTED if interrupted() else StopReason.DEADLINE
            self.kill(stop, "was not ready in time")
            return
        if interrupted() and self._asked is None:
            if not self.passes_interrupt:
                self.kill(StopReason.INTERRUPTED, "was killed after Ctrl-C")
                return
            self.request_stop()
        if self.deadline.elapsed > self.deadline.seconds + self.grace:
            self.kill(StopReason.DEADLINE, "did not stop at the deadline and was killed")
        elif since() > INTERRUPTED_PATIENCE:
            self.kill(StopReason.INTERRUPTED, "did not stop after Ctrl-C and was killed")
        elif self._asked is not None and time.monotonic() > self._asked + PATIENCE:
            self.kill(StopReason.INTERRUPTED, f"did not stop within {PATIENCE:g} seconds when asked to and was killed")
        elif (
            self.memory_limit is not None
            and self._started.is_set()
            and time.monotonic() > self._memory_seen + process_trees.INTERVAL
        ):
            self._memory_seen = time.monotonic()
            self.most_memory = max(self.most_memory, memory_of(self.process.pid))
            if self.most_memory > self.memory_limit:
                self.kill(StopReason.OTHER, f"was killed: {too_large(self.memory_limit)}")

    def _kill_family(self) -> None:
        if self._started.is_set():
            guard_process.kill([self.process.pid])  # first, while its descendants are known
            self.process.kill()

    # -- in threads that end with the child ----------------------------------------------------------------------------

    def _start(self) -> None:
        """Start the child (its server may import for seconds), and guard it until its end."""
        try:
            self.process.start()
        except Exception as error:
            self.failure = error if isinstance(error, BackendError) else BackendError(f"no child process: {error}")
            self._inbox.put(None)
            return
        finally:
            for end in self._theirs:
                end.close()
        guard.watch(self.process.pid)
        self._started.set()
        if self._over.is_set():
            self._kill_family()

    def _listen(self) -> None:
        while (message := wire.read(self._here)) is not None:
            self._inbox.put(message)
        self._inbox.put(None)
        self._here.close()
