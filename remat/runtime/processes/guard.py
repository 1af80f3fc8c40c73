"""Clean-up of child processes and temporary folders when this process ends, however it ends."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO

#: Prefix of temporary folders.
PREFIX = "remat-run-"
#: File in each folder that its owner locks.
LOCK = ".owner"
#: Seconds before a folder without that file counts as abandoned: its owner may be about to create it.
YOUNG = 60.0


class _Guard:
    """Handle of the process :mod:`remat.runtime.processes.guard_process`, started with the first thing to guard."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self.known: set[tuple[str, int | str]] = set()

    def update(self, sign: str, what: str, value: int | str) -> None:
        """Add (``+``) or remove (``-``) a session or folder."""
        with self._lock:
            (self.known.add if sign == "+" else self.known.discard)((what, value))
            if self._process is None or self._process.poll() is not None:  # not started, or killed
                if sign == "+":
                    self._start()
                return
            try:
                self._send(sign, what, value)
            except OSError:
                self._start()

    def _start(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(Path(__file__).with_name("guard_process.py"))],
            stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=os.sep,
            start_new_session=True, bufsize=0,
        )  # fmt: skip
        for what, value in self.known:
            self._send("+", what, value)

    def _send(self, sign: str, what: str, value: int | str) -> None:
        assert self._process is not None
        stream: IO[bytes] | None = self._process.stdin
        assert stream is not None
        line = memoryview(json.dumps([sign + what, value]).encode() + b"\n")
        while line:
            line = line[stream.write(line) :]

    def end(self) -> None:
        """Let the guard clean up, and wait for it."""
        with self._lock:
            if self._process is not None:
                with contextlib.suppress(OSError, subprocess.TimeoutExpired):
                    for what, value in self.known:
                        if what == "folder" and not Path(str(value)).name.startswith(PREFIX):
                            self._send("-", what, value)  # its owner removes it
                    self._process.communicate(timeout=5)
                self._process = None

    def forget(self) -> None:
        """Detach a fork of this process: the guard, its pipe and its list belong to the parent."""
        if self._process is not None and self._process.stdin is not None:
            with contextlib.suppress(OSError):  # an open copy would keep the guard waiting after the parent's end
                self._process.stdin.close()
            self._process.returncode = 0
        self.__init__()  # type: ignore[misc]


_guard = _Guard()
atexit.register(_guard.end)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_guard.forget)


def watch(leader: int) -> None:
    """Terminate the session of process `leader` when this process ends."""
    _guard.update("+", "session", leader)


def forget(leader: int) -> None:
    """Stop guarding the session of process `leader`, which has ended."""
    _guard.update("-", "session", leader)


def guard_folder(path: str) -> None:
    """Remove `path` when this process ends."""
    _guard.update("+", "folder", path)


@contextlib.contextmanager
def temporary_folder() -> Iterator[Path]:
    """Create a private folder, removed afterwards by this process, by the guard if that dies, or by the next run.

    The owner locks a file in it. The system releases the lock when the owner ends, in any container, so the first such
    folder of a process can detect and remove abandoned ones.

    Examples
    --------
    >>> with temporary_folder() as path:
    ...     existed = path.is_dir()
    >>> existed, path.exists()
    (True, False)
    """
    _sweep_once(tempfile.gettempdir())
    path = Path(tempfile.mkdtemp(prefix=PREFIX))
    _guard.update("+", "folder", str(path))
    try:
        with (path / LOCK).open("wb") as file:
            _locked(file)
            yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
        _guard.update("-", "folder", str(path))


def _locked(file: IO[bytes]) -> bool:
    """Try to lock `file`; return success. On systems without such locks every folder counts as owned."""
    try:
        import fcntl
    except ImportError:
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


_swept: set[tuple[int, str]] = set()


def _sweep_once(parent: str) -> None:
    if (os.getpid(), parent) not in _swept:
        _swept.add((os.getpid(), parent))
        sweep(parent)


def sweep(parent: str) -> None:
    """Remove temporary folders in `parent` that belong to this user and to no running process."""
    with contextlib.suppress(OSError), os.scandir(parent) as entries:
        for entry in entries:
            if entry.name.startswith(PREFIX) and entry.is_dir(follow_symlinks=False):
                with contextlib.suppress(OSError):
                    _remove_abandoned(entry)


def _remove_abandoned(entry: os.DirEntry[str]) -> None:
    state = entry.stat(follow_symlinks=False)
    if hasattr(os, "getuid") and state.st_uid != os.getuid():
        return
    path = Path(entry.path) / LOCK
    if not path.exists():
        if time.time() - state.st_mtime > YOUNG:
            shutil.rmtree(entry.path, ignore_errors=True)
        return
    with path.open("rb+") as file:
        if _locked(file):
            shutil.rmtree(entry.path, ignore_errors=True)


def enter_child(environment: Mapping[str, str]) -> None:
    """Set up a child of :class:`remat.runtime.processes.supervised.Supervised`: its own session and environment.

    `environment`: variables of the parent's environment now; the server that forks the child may have older ones.
    """
    with contextlib.suppress(OSError):  # already the leader of a session
        os.setsid()
    end_with_parent()
    os.environ.clear()
    os.environ.update(environment)


def end_with_parent() -> None:
    """Have the kernel kill this process when its parent ends; on Linux only.

    The parent must have one thread: the signal is sent when the thread that forked ends.
    """
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
