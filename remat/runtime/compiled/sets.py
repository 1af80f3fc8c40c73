"""Sets of kernels that are needed together, and their compilation in the background."""

from __future__ import annotations

import contextlib
import os
import threading
import time
import warnings
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import IO, ClassVar

from remat.runtime.compiled import launcher, places
from remat.runtime.deadline import Deadline, OverdueError
from remat.runtime.interruption import interrupted

#: Seconds between two checks for compiled kernels.
PAUSE = 0.02
#: Progress text while kernels compile.
COMPILING = "compiling, first time only"

#: Held while this process compiles or loads kernels: numba's own lock does not cover all of it.
_LOCK = threading.RLock()
if hasattr(os, "register_at_fork"):
    # A child forked while another thread compiles would wait forever for a thread that it does not have.
    os.register_at_fork(before=_LOCK.acquire, after_in_parent=_LOCK.release, after_in_child=_LOCK.release)


class CompilingRemark(UserWarning):
    """Warning about the cache of compiled code."""


class KernelSet:
    """Kernels that are needed together.

    Once per machine a background process compiles them, even if this process ends, and stores them in a folder
    (:mod:`remat.runtime.compiled.places`) from which this process loads them. Without a usable folder this
    process compiles them, every time.

    `module`: module whose import defines this set, for the background process. `example`: calls every kernel of the set
    once with arguments of the types in use, as cheaply as possible.

    Examples
    --------
    >>> called = []
    >>> KernelSet("nothing", "remat.runtime.compiled", lambda: called.append(1)).compile()
    >>> called
    [1]
    """

    known: ClassVar[dict[str, KernelSet]] = {}

    def __init__(self, name: str, module: str, example: Callable[[], None]) -> None:
        self.name, self.module, self._example = name, module, example
        self.loaded = False
        """True once calls no longer compile or load anything."""
        self._starting = threading.Lock()
        self._here: threading.Thread | None = None
        self._failure: BaseException | None = None
        KernelSet.known[name] = self

    def compiled(self) -> Path | None:
        """Return the folder with the compiled set, or None."""
        return next((folder for folder in places.readable() if (folder / f"{self.name}.ready").exists()), None)

    def begin(self) -> bool:
        """Start compiling in the background if needed; return at once whether a process is compiling the set."""
        return _begin([self])

    def ready(self, deadline: Deadline | None = None, on_wait: Callable[[], None] | None = None) -> bool:
        """Wait until the kernels are loaded, at most until the deadline; return whether they are.

        `on_wait`: called once if it has to wait.

        Raises
        ------
        Exception
            Any exception of `example`.
        """
        if self.loaded:
            return True
        clock = Deadline() if deadline is None else deadline
        if self.compiled() is None and on_wait is not None:
            on_wait()
        if self.begin():
            folder = places.writable()
            while self.compiled() is None and folder is not None:
                if clock.expired:
                    return False
                time.sleep(PAUSE)
                if self._is_unlocked(folder):
                    break
        earlier = self._here
        here = self._start_here()
        while here.is_alive() and not clock.expired:
            here.join(PAUSE)
        if here is earlier and not self.loaded and not clock.expired:  # begun by a call that was interrupted
            return self.ready(clock)
        if self._failure is not None:
            raise self._failure
        return self.loaded

    def _start_here(self) -> threading.Thread:
        """Return the thread that loads or compiles in this process; it continues after the wait ends."""
        with self._starting:
            if self._here is None or (not self._here.is_alive() and not self.loaded):
                self._failure = None
                self._here = threading.Thread(target=self._compile, daemon=True, name=f"compile {self.name}")
                self._here.start()
            return self._here

    def _is_unlocked(self, folder: Path) -> bool:
        try:
            lock = _locked(folder / f"{self.name}.lock")
        except OSError:
            return True
        if lock is not None:
            lock.close()
        return lock is not None

    def compile(self) -> None:
        """Compile or load in this process, and store the result if a folder is writable."""
        with _LOCK:
            if self.loaded:
                return
            self._example()
            if interrupted():  # the example may have stopped before calling all kernels
                return
            self.loaded = True
            if self.compiled() is not None:
                return
            folder = places.writable()
            if folder is None:
                _remark()
                return
            with contextlib.suppress(OSError):
                (folder / f"{self.name}.ready").touch()
                places.sweep(folder)

    def _compile(self) -> None:
        try:
            self.compile()
        except OverdueError as error:
            self._failure = None if interrupted() else error
        except BaseException as error:
            self._failure = error


def begin(*sets: KernelSet, processes: int | None = None) -> None:
    """Start compiling several sets in the background, except those already compiled; return at once.

    `processes`: largest number of processes, the first sets first; default: one per set. Sets that share a process take
    less time in total, and with few processors the first one is ready sooner.
    """
    number = max(1, len(sets) if processes is None else processes)
    for first in range(min(number, len(sets))):
        _begin(sets[first::number])


def _begin(sets: Sequence[KernelSet]) -> bool:
    """Start one process that compiles sets in turn; return whether some process is compiling the last one."""
    with contextlib.ExitStack() as locks:
        mine: list[tuple[KernelSet, int]] = []
        in_progress = False
        for one in sets:
            in_progress = False
            if one.loaded or one.compiled() is not None or (folder := places.writable()) is None:
                continue
            try:
                lock = _locked(folder / f"{one.name}.lock")
            except OSError:  # some file systems have no locks
                continue
            in_progress = lock is None
            if lock is not None:  # inherited by the child, so it stays locked while that runs
                locks.enter_context(lock)
                if one.compiled() is None:
                    mine.append((one, lock.fileno()))
        if not mine:
            return in_progress
        started = launcher.start([(one.module, one.name) for one, _ in mine], [lock for _, lock in mine])
        return in_progress or (started and mine[-1][0] is sets[-1])


def _locked(path: Path) -> IO[str] | None:
    """Open and lock a file; None if another process holds the lock.

    Raise OSError if the system or file system cannot lock files.
    """
    try:
        import fcntl
    except ImportError as error:
        raise OSError("this system has no file locks") from error
    file = path.open("a", encoding="utf-8")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        return None
    except OSError:
        file.close()
        raise
    return file


@cache
def _remark() -> None:
    """Warn once per process."""
    warnings.warn(
        "kernels are compiled in every run, since there is no folder to cache them: none is writable, or other users "
        "can write to all of them; set NUMBA_CACHE_DIR to a private folder",
        CompilingRemark,
        stacklevel=3,
    )
