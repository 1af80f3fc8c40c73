"""Child process that solves cells one after another, with pinned processors, memory limits and deadlines."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from multiprocessing.connection import Connection
from typing import Any

import psutil

from remat.backends.cp_sat import CpSat
from remat.backends.highs import Highs
from remat.errors import RematError
from remat.runtime.deadline import Deadline
from remat.runtime.processes import guard, wire
from remat.runtime.processes.process_trees import MIB, cap
from remat.runtime.processes.supervised import Supervised
from remat.runtime.solve_options import StopReason
from remat.runtime.text import one_line
from remat.studies.solving import Outcome, Task, solve_here, without_result

#: Seconds beyond the time limit until the process of a cell is killed.
GRACE = 10.0
#: Seconds until a child must have started: the first one waits for a fork server that imports for seconds.
START = 120.0
#: Bytes by which a child may grow before it is replaced.
GROWTH = 256 * MIB
#: Share of a cell's memory limit that a child may hold from earlier cells.
HELD = 1 / 8
#: Modules that the fork server imports once for all children.
PRELOAD = ("remat.studies.solving", *CpSat.preload, *Highs.preload, "numba", "remat.studies.preloading")


class CellProcess:
    """Child process for cells; a context manager.

    It is killed at the memory limit of a cell, or `grace` seconds after its time limit; the last schedule counts
    nevertheless. The next cell gets a new one, also after a cell that leaves threads, processes or much memory.

    Parameters
    ----------
    cpus : set of int
        Processors to which the child is pinned; empty: all.
    """

    def __init__(self, cpus: frozenset[int] = frozenset(), *, grace: float = GRACE) -> None:
        self.cpus, self.grace = cpus, grace
        self._child: Supervised | None = None
        self._messages: Iterator[wire.Message] = iter(())
        self._tasks: Connection | None = None
        self._graph = ""
        self._grown = 0

    def __enter__(self) -> CellProcess:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    @property
    def pid(self) -> int | None:
        """Process id of the child; None before the first cell, and after one that ended the child."""
        return None if self._child is None else self._child.process.pid

    def close(self) -> None:
        """Kill the child."""
        if self._child is not None:
            self._child.__exit__(None, None, None)
        if self._tasks is not None:
            self._tasks.close()
        self._child = self._tasks = None

    def solve(self, task: Task) -> Outcome:
        """Solve a cell; a child that dies or fails is an outcome with status ``failed``."""
        memory = task.memory_limit
        if self._grown > min(GROWTH, GROWTH if memory is None else memory * HELD):
            self.close()
        began = time.monotonic()
        for last in (False, True):
            child = self._child or self._open()
            if self._begins(child, task, memory) or child.ending is not None or child.failure is not None or last:
                break
            self.close()  # it died while idle
        try:
            outcome = self._outcome(child, task, began)
        except BaseException:
            self.close()
            raise
        return outcome

    def _open(self) -> Supervised:
        """Start a child, and wait until it is ready or has failed."""
        theirs, self._tasks = multiprocessing.Pipe(duplex=False)
        self._graph, self._grown = "", 0
        given = (theirs, self.cpus, dict(os.environ))
        child = self._child = Supervised(
            _serve, given, PRELOAD, Deadline.after(START), None, grace=self.grace, passes_interrupt=False
        )
        self._messages = child.messages()
        next(self._messages, None)
        return child

    def _begins(self, child: Supervised, task: Task, memory: int | None) -> bool:
        """Send a cell; return True once the child has begun with it."""
        assert self._tasks is not None
        child.deadline, child.memory_limit = Deadline.after(START), None
        content = asdict(task) | {"memory": memory}
        if task.graph == self._graph:
            del content["graph"]
        try:
            wire.write(self._tasks, wire.Message("task", content))
        except OSError:
            return False
        self._graph = task.graph
        begun = next(self._messages, None)
        child.deadline, child.memory_limit, child.most_memory = Deadline.after(task.wall_limit), memory, 0
        return begun is not None

    def _outcome(self, child: Supervised, task: Task, began: float) -> Outcome:
        """Return what the child sends, or the last schedule of a child that ended."""
        found: Mapping[str, Any] | None = None
        for message in self._messages:
            if message.kind == "incumbent":
                found = message.head
                continue
            self._grown = message.head["grown"]
            if not message.head["reusable"]:
                self.close()
            if message.kind == "result":
                return Outcome(**message.head["outcome"])
            return without_result(task, found, one_line(message.head["text"]), None, time.monotonic() - began)
        self.close()
        ending = child.ending
        if ending is not None and ending.stop is StopReason.INTERRUPTED:
            return Outcome({"status": "failed", "message": ending.reason}, interrupted=True)
        if child.failure is not None:
            why = str(child.failure)
        elif ending is not None:
            why = f"the process of the cell {ending.reason}"
        else:
            child.process.join(1)
            why = f"the process of the cell ended with exit code {child.process.exitcode}"
        stop = None if ending is None else str(ending.stop)
        return without_result(task, found, one_line(why), stop, time.monotonic() - began)


_mine = threading.local()


def solve_cell(task: Task) -> Outcome:
    """Solve a cell in the child process of this thread, which later cells of the thread reuse."""
    if not hasattr(_mine, "process"):
        _mine.process = CellProcess()
    process: CellProcess = _mine.process
    return process.solve(task)


# -- in the child ------------------------------------------------------------------------------------------------------


def _serve(connection: Connection, tasks: Connection, cpus: frozenset[int], environment: dict[str, str]) -> None:
    """Solve the cells that arrive until one leaves the process unfit for another, and exit."""
    guard.enter_child(environment)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles it
    if cpus and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, cpus)
    gc.freeze()  # so that collections between cells visit only what cells have made
    before, graph = _held(), ""
    try:
        wire.write(connection, wire.Message("ready"))
        while (message := wire.read(tasks)) is not None:
            content = dict(message.head)
            wire.write(connection, wire.Message("begun"))
            cap(os.getpid(), content.pop("memory"))
            graph = content.setdefault("graph", graph)
            kind, head = _solved(connection, Task(**content))
            gc.collect()
            failed = kind != "result" or head["outcome"]["row"]["status"] == "failed"
            reusable = not failed and threading.active_count() == 1 and not multiprocessing.active_children()
            state = {"grown": _held() - before, "reusable": reusable}
            wire.write(connection, wire.Message(kind, head | state))
            if not reusable:
                break
    except OSError:  # the parent has ended
        pass
    finally:
        os._exit(0)  # without the interpreter's cleanup: a solver past its deadline may still be running


def _solved(connection: Connection, task: Task) -> tuple[str, dict[str, Any]]:
    """Send schedules while the solve runs; return kind and head of the message that ends it."""
    try:
        outcome = solve_here(task, lambda head: wire.write(connection, wire.Message("incumbent", head)))
        return "result", {"outcome": asdict(outcome)}
    except Exception as error:
        return "failure", {"text": str(error) if isinstance(error, RematError) else f"{type(error).__name__}: {error}"}


def _held() -> int:
    return int(psutil.Process().memory_info().rss)
