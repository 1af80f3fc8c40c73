"""Child processes: forked by a process of `multiprocessing` that has imported what they need, and free of our state.

The standard library's fork server does the work: one for each set of modules, started when the first child wants it.
It runs one thread and no solver, so that a fork copies nothing that is half done; a child sees neither our threads nor
our locks nor our open files. Three things are not as `multiprocessing` has them:

* The program is never run a second time: the standard library imports ``__main__`` in every child, which runs a script
  without the guard ``if __name__ == "__main__"`` once more. What children are told to do is found by its name.
* A server belongs to this package alone: a program's own use of `multiprocessing` is as it was.
* Servers and children have sessions of their own: the terminal's Ctrl-C comes to the program alone.
* A child lets go of the pipe by whose end its server sees that the program is gone: otherwise a child that goes on
  keeps the server, and the two outlive the program. On Linux it then ends with its server.
"""

from __future__ import annotations

import io
import multiprocessing
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from multiprocessing import context, forkserver, popen_forkserver, process, reduction, spawn, util
from typing import Any, ClassVar, cast

from remat.backends.processes import guard
from remat.errors import BackendError

#: Imported by every server before anything else.
FIRST = "remat.backends.processes.server_settings"

#: How often a child is tried to be had: a server that was killed takes some milliseconds to be seen as ended.
TRIES = 10

_lock = threading.Lock()
_servers: dict[tuple[str, ...], forkserver.ForkServer] = {}


def _forget() -> None:
    """In a fork of this process: the servers are the parent's, and end with it if nobody else holds their pipes."""
    global _lock  # noqa: PLW0603 - it may be held by a thread that the fork does not have
    for server in _servers.values():
        alive = cast(Any, server)._forkserver_alive_fd
        if alive is not None:
            os.close(alive)
    _servers.clear()
    _lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


def _server(modules: tuple[str, ...]) -> forkserver.ForkServer:
    with _lock:
        if modules not in _servers:
            _servers[modules] = forkserver.ForkServer()
            _servers[modules].set_forkserver_preload([FIRST, *modules])
            inherited = cast(Any, process.current_process())._config.get("tempdir")  # a fork's is its parent's
            if inherited is None:
                guard.guard_folder(util.get_temp_dir())  # where the server's socket will be
        return _servers[modules]


class _Popen(popen_forkserver.Popen):
    """As the standard library's, but for the server and for what is said about ``__main__``."""

    _fds: list[int]

    def _launch(self, process_obj: Any) -> None:
        data = spawn.get_preparation_data(process_obj.name)
        for key in ("init_main_from_name", "init_main_from_path"):
            data.pop(key, None)
        message = io.BytesIO()
        context.set_spawning_popen(self)
        try:
            reduction.dump(data, message)
            reduction.dump(process_obj, message)
        finally:
            context.set_spawning_popen(None)
        fault: Exception | None = None
        for _ in range(TRIES):
            try:
                self._fork(process_obj.modules, message)
                return
            except (OSError, EOFError) as error:
                fault = error
                time.sleep(0.05)
        raise BackendError(f"no child process can be started: {fault}")

    def _fork(self, modules: tuple[str, ...], message: io.BytesIO) -> None:
        server = _server(modules)
        self.sentinel, into = server.connect_to_new_process(self._fds)
        guard.watch(cast(Any, server)._forkserver_pid)  # it ends by itself, but first it may import for seconds
        alive = os.dup(into)  # the child takes the end of this pipe for the end of its parent
        self.finalizer = util.Finalize(self, cast(Any, util).close_fds, (alive, self.sentinel))
        try:
            with os.fdopen(into, "wb") as stream:
                # A server that has just been started imports for seconds before it forks.
                self.pid = forkserver.read_signed(self.sentinel)
                stream.write(message.getbuffer())
        except (OSError, EOFError):
            self.finalizer()
            raise


def _depend_on_server() -> None:
    """In a child: end when its server does, which ends when the program does."""
    told = cast(Any, forkserver)._forkserver
    if told._forkserver_alive_fd is not None:
        os.close(told._forkserver_alive_fd)
        told._forkserver_alive_fd = None
    guard.end_with_parent()
    server = getattr(sys.modules.get(FIRST), "server", None)
    if server is not None and os.getppid() != server:  # it ended just before
        os._exit(1)


class ForkedProcess(context.ForkServerProcess):
    """A process with `modules` imported."""

    modules: tuple[str, ...] = ()

    def start(self) -> None:
        """As the standard library's, but in the workers of pools too (which call themselves daemons)."""
        cast(Any, process)._cleanup()
        self._popen = self._Popen(self)
        self._sentinel = self._popen.sentinel
        cast(Any, process)._children.add(self)

    def _bootstrap(self, parent_sentinel: Any = None) -> int:
        """What the child does first."""
        _depend_on_server()
        return int(cast(Any, super())._bootstrap(parent_sentinel))

    @staticmethod
    def _Popen(process_obj: Any) -> _Popen:  # noqa: N802 - the standard library's name
        return _Popen(process_obj)


class ForkedContext(context.ForkServerContext):
    """For executors and queues of the standard library; its processes have `modules` imported."""

    Process: ClassVar[Any] = ForkedProcess


def child(target: Callable[..., object], arguments: Sequence[Any], modules: Sequence[str] = ()) -> Any:
    """A process that is to call `target`, a function that can be imported, with `arguments`; not yet started.

    Where the system has no fork server, it is one that is started afresh (which takes seconds and needs the guard
    ``if __name__ == "__main__"`` in scripts).

    Parameters
    ----------
    modules : sequence of str
        What it has imported from the start; none may start a thread on import. One that cannot be imported is
        imported by the child when it needs it, or not found there.
    """
    if not possible():
        return multiprocessing.get_context("spawn").Process(target=target, args=tuple(arguments), daemon=True)
    made = ForkedProcess(target=target, args=tuple(arguments), daemon=True)
    made.modules = tuple(modules)
    return made


def possible() -> bool:
    """Whether this system has a fork server."""
    return "forkserver" in multiprocessing.get_all_start_methods() and sys.platform != "darwin"
