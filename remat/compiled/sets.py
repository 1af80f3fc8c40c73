"""Kernels that are needed together: whether they are ready, and who compiles them."""

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

from remat.compiled import child, places
from remat.deadline import Deadline, OverdueError
from remat.interruption import interrupted

#: Seconds between two looks at whether somebody has compiled what is waited for.
PAUSE = 0.02
#: What is said while compiled code is waited for.
COMPILING = "compiling, first time only"

#: Held while anything is compiled or loaded in this process: numba's own lock does not cover all of it.
_LOCK = threading.RLock()
if hasattr(os, "register_at_fork"):
    # A child that is forked while another thread compiles would wait for ever for a thread that it does not have.
    os.register_at_fork(before=_LOCK.acquire, after_in_parent=_LOCK.release, after_in_child=_LOCK.release)


class CompilingRemark(UserWarning):
    """What is to be known of compiled code, and is no error."""


class KernelSet:
    """Kernels that are needed together.

    The first time on a machine they are compiled by a process of its own, which goes on to the end whatever becomes of
    this one, and puts them into a folder (:mod:`remat.compiled.places`); this process loads them from there. Where no
    folder can be used, they are compiled here, each time.

    Parameters
    ----------
    name : str
    module : str
        The module whose import makes this set, for the process that compiles it.
    example : callable
        Calls every kernel of the set, with arguments of the very types that are used, as cheaply as possible.

    Attributes
    ----------
    loaded : bool
        Whether calls are quick from now on.

    Examples
    --------
    >>> called = []
    >>> KernelSet("nothing", "remat.compiled", lambda: called.append(1)).compile()
    >>> called
    [1]
    """

    known: ClassVar[dict[str, KernelSet]] = {}

    def __init__(self, name: str, module: str, example: Callable[[], None]) -> None:
        self.name, self.module, self._example = name, module, example
        self.loaded = False
        self._starting = threading.Lock()
        self._here: threading.Thread | None = None
        self._failure: BaseException | None = None
        KernelSet.known[name] = self

    def compiled(self) -> Path | None:
        """The folder where the set lies compiled; None: nowhere."""
        return next((folder for folder in places.readable() if (folder / f"{self.name}.ready").exists()), None)

    def begin(self) -> bool:
        """Have the set compiled by another process, if it is not; whether one is at it. Returns at once."""
        return _begin([self])

    def ready(self, deadline: Deadline | None = None, on_wait: Callable[[], None] | None = None) -> bool:
        """Wait until calls of the kernels are quick, but not longer than to the deadline; whether they are.

        Parameters
        ----------
        deadline : Deadline, optional
        on_wait : callable, optional
            Called once if there is something to wait for.

        Raises
        ------
        Exception
            What `example` raises.
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
                if self._nobody_compiles(folder):
                    break
        here = self._start_here()
        while here.is_alive() and not clock.expired:
            here.join(PAUSE)
        if self._failure is not None:
            raise self._failure
        return self.loaded

    def _start_here(self) -> threading.Thread:
        """The thread that loads or compiles in this process; it goes on where nobody waits any longer."""
        with self._starting:
            if self._here is None or (not self._here.is_alive() and not self.loaded):
                self._failure = None
                self._here = threading.Thread(target=self._compile, daemon=True, name=f"compile {self.name}")
                self._here.start()
            return self._here

    def _nobody_compiles(self, folder: Path) -> bool:
        try:
            lock = _locked(folder / f"{self.name}.lock")
        except OSError:
            return True
        if lock is not None:
            lock.close()
        return lock is not None

    def compile(self) -> None:
        """Compile or load in this process, and keep it for others where a folder can be written."""
        with _LOCK:
            if self.loaded:
                return
            self._example()
            if interrupted():  # and so it may have ended before it had called them all
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
    """Have several sets compiled beside what this process does, as far as they are not. Returns at once.

    Parameters
    ----------
    processes : int, optional
        At most so many at a time, the first sets first; default: each in a process of its own. Those that come one
        after the other in one process take less time together, and the first is ready sooner where processors are few.
    """
    number = max(1, len(sets) if processes is None else processes)
    for first in range(min(number, len(sets))):
        _begin(sets[first::number])


def _begin(sets: Sequence[KernelSet]) -> bool:
    """Have sets compiled by one other process, one after the other; whether some process is at the last one."""
    with contextlib.ExitStack() as locks:
        mine: list[tuple[KernelSet, int]] = []
        at_it = False
        for one in sets:
            at_it = False
            if one.loaded or one.compiled() is not None or (folder := places.writable()) is None:
                continue
            try:
                lock = _locked(folder / f"{one.name}.lock")
            except OSError:  # not on every file system
                continue
            at_it = lock is None
            if lock is not None:  # the other process has it, too, and so it stays locked as long as that one runs
                locks.enter_context(lock)
                if one.compiled() is None:
                    mine.append((one, lock.fileno()))
        if not mine:
            return at_it
        started = child.start([(one.module, one.name) for one, _ in mine], [lock for _, lock in mine])
        return at_it or (started and mine[-1][0] is sets[-1])


def _locked(path: Path) -> IO[str] | None:
    """The file, locked for whoever has it open; None if somebody else has it locked.

    Raises
    ------
    OSError
        If files cannot be locked.
    """
    try:
        import fcntl
    except ImportError as error:
        raise OSError("no locks of files on this system") from error
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
    """Warn, once in a process."""
    warnings.warn(
        "compiled code can be kept nowhere, so it is compiled anew each time: no folder for it can be written, or "
        "others may write to all of them; NUMBA_CACHE_DIR may name one",
        CompilingRemark,
        stacklevel=3,
    )
