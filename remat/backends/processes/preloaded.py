"""Children that start at once: forked from a process that has imported what they need.

A solver that is reached through large packages costs its process a second or two of imports. The *nursery* is a process
that imports them once, and forks a child whenever it is asked to. It runs one thread and no solver, so that a fork
copies nothing that is half done. It ends with the process that made it, or when nobody has asked for a while.

Run as ``python -m remat.backends.processes.preloaded SOCKET MODULE...`` by :func:`start`, where SOCKET is a file
descriptor.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

from remat.backends.processes.wire import Message
from remat.errors import BackendError

#: Seconds after which a nursery that nobody asks anything ends by itself.
IDLE = 300.0
#: Seconds that it may take to import its modules and fork.
PATIENCE = 60.0
_NUMBER = struct.Struct("<q")
#: Descriptors that come with each request: the child's standard input, output and error, and where to report on it.
_ENDS = 4


def possible() -> bool:
    """Whether children can be forked here: on Linux, whose libraries are made for it."""
    return sys.platform == "linux"


class Child:
    """A child of the nursery, with what is needed of :class:`subprocess.Popen`.

    Attributes
    ----------
    pid : int
    stdin, stdout : binary files
        Ends of its pipes.
    returncode : int or None
        Negative: the signal that ended it. None: it runs, or nobody has looked.
    """

    def __init__(self, pid: int, stdin: BinaryIO, stdout: BinaryIO, report: int) -> None:
        self.pid, self.stdin, self.stdout = pid, stdin, stdout
        self.returncode: int | None = None
        self._report = report

    def poll(self) -> int | None:
        """Its exit code if it has ended."""
        if self.returncode is None and select.select([self._report], [], [], 0)[0]:
            return self.wait()
        return self.returncode

    def wait(self) -> int:
        """Its exit code, once it has ended."""
        if self.returncode is None:
            self.returncode = _number(self._report, otherwise=-signal.SIGKILL)  # the nursery was killed, and it too
            os.close(self._report)
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send it a signal, if it runs."""
        if self.poll() is None:
            os.kill(self.pid, number)


def _number(pipe: int, otherwise: int) -> int:
    data = os.read(pipe, _NUMBER.size)
    return int(_NUMBER.unpack(data)[0]) if len(data) == _NUMBER.size else otherwise


class _Nursery:
    """The process that forks, and the way to it."""

    def __init__(self, modules: Sequence[str], environment: Mapping[str, str]) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "remat.backends.processes.preloaded", str(theirs.fileno()), *modules],
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=dict(environment),
                pass_fds=[theirs.fileno()], start_new_session=True,
            )  # fmt: skip

    def child(self, limit: int, errors: int) -> Child | None:
        """A new child; None where the nursery has ended."""
        inbound, outbound, report = os.pipe(), os.pipe(), os.pipe()
        try:
            with contextlib.suppress(OSError):
                socket.send_fds(self._socket, [_NUMBER.pack(limit)], [inbound[0], outbound[1], errors, report[1]])
        finally:
            for end in (inbound[0], outbound[1], report[1]):
                os.close(end)
        pid = _number(report[0], otherwise=0) if select.select([report[0]], [], [], PATIENCE)[0] else 0
        if pid:
            return Child(pid, os.fdopen(inbound[1], "wb"), os.fdopen(outbound[0], "rb"), report[0])
        for end in (inbound[1], outbound[0], report[0]):
            os.close(end)
        return None

    def end(self) -> None:
        """End it, and wait for that."""
        self._socket.close()
        self._process.kill()
        self._process.wait()


_nurseries: dict[tuple[str, ...], _Nursery] = {}
_lock = threading.Lock()


def start(modules: Sequence[str], limit: int, errors: BinaryIO, environment: Mapping[str, str]) -> Child:
    """A child that has imported `modules` and serves a job of :mod:`remat.backends.processes.isolated_worker`.

    Parameters
    ----------
    modules : sequence of str
        None of them may start a thread when it is imported.
    limit : int
        Bytes of memory that it may hold; 0: no limit.
    errors : file
        Its standard error.
    environment : mapping
        Variables for a nursery that has to be started; the child is told its own with the job.

    Raises
    ------
    BackendError
        If no child comes of it.
    """
    key = tuple(modules)
    with _lock:
        for _ in range(2):  # the one that is there may just have ended
            if key not in _nurseries:
                _nurseries[key] = _Nursery(key, environment)
            if child := _nurseries[key].child(limit, errors.fileno()):
                return child
            _nurseries.pop(key).end()
    raise BackendError(f"no process could be started that imports {', '.join(modules)}")


def with_surroundings(job: Message, environment: Mapping[str, str]) -> Message:
    """`job` with what a child of its own would inherit: environment, current folder, and where modules are found."""
    path = [folder or str(Path.cwd()) for folder in sys.path]
    surroundings = {"environment": dict(environment), "folder": str(Path.cwd()), "path": path}
    return Message(job.kind, {**job.head, "surroundings": surroundings}, job.arrays)


@atexit.register
def end_all() -> None:
    """End all nurseries of this process."""
    with _lock:
        while _nurseries:
            _nurseries.popitem()[1].end()


def _forget() -> None:
    """A fork of this process has no nurseries: they are its parent's."""
    global _lock  # noqa: PLW0603 - it may be held by a thread that the fork does not have
    _nurseries.clear()
    _lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


# -- in the nursery ----------------------------------------------------------------------------------------------------


def serve(control: socket.socket) -> None:
    """Fork a child for each request, and report its end."""
    reports: dict[int, int] = {}
    woken, waker = os.pipe()
    os.set_blocking(waker, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)  # a child that ends writes a byte, and nothing happens in between
    signal.set_wakeup_fd(waker)
    while True:
        readable, _, _ = select.select([control.fileno(), woken], [], [], IDLE)
        if woken in readable:
            os.read(woken, 4096)
            for pid in list(reports):
                ended, status = os.waitpid(pid, os.WNOHANG)
                if ended:
                    _tell(reports.pop(pid), os.waitstatus_to_exitcode(status), last=True)
        if control.fileno() in readable:
            data, ends, _, _ = socket.recv_fds(control, _NUMBER.size, _ENDS)
            if not data:
                return
            pid = os.fork()
            if not pid:
                signal.set_wakeup_fd(-1)
                control.close()
                for other in (woken, waker, *reports.values()):
                    os.close(other)
                _become_child(_NUMBER.unpack(data)[0], ends)
            for end in ends[:3]:
                os.close(end)
            reports[pid] = ends[3]
            _tell(ends[3], pid)
        elif not readable and not reports:
            return


def _tell(pipe: int, number: int, *, last: bool = False) -> None:
    with contextlib.suppress(OSError):  # nobody listens any more
        os.write(pipe, _NUMBER.pack(number))
    if last:
        os.close(pipe)


def _become_child(limit: int, ends: Sequence[int]) -> None:
    """Serve one job; never returns."""
    from remat.backends.processes import isolated_worker

    code = 1
    try:
        os.setsid()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.close(ends[3])
        for number, end in enumerate(ends[:3]):
            os.dup2(end, number)
            os.close(end)
        code = isolated_worker.main(limit)
    finally:
        os._exit(code)


if __name__ == "__main__":
    number, *names = sys.argv[1:]
    for name in names:
        importlib.import_module(name)
    with socket.socket(fileno=int(number)) as ours:
        serve(ours)
