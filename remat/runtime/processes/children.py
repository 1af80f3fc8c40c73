"""Child processes, forked by a `multiprocessing` fork server that has imported their modules.

There is one server for each set of modules, started with the first child that needs it. It runs one thread and no
solver, so a fork copies no half-finished work; a child inherits none of our threads, locks and open files. Four things
differ from `multiprocessing`:

* ``__main__`` is not imported in children: the standard library would rerun scripts without the guard
  ``if __name__ == "__main__"``. Functions that children call are found by name.
* Servers belong to this package: a program's own use of `multiprocessing` is unaffected.
* Servers and children have sessions of their own, so the terminal's Ctrl-C reaches the program only.
* Children close the pipe whose end signals to the server that the program has ended. Otherwise a running child would
  keep the server alive, and both would outlive the program. On Linux a child ends with its server.
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

from remat.errors import BackendError
from remat.runtime.processes import guard

#: Imported by every server before anything else.
FIRST = "remat.runtime.processes.server_settings"

#: Attempts to start a child process: a server that was killed takes some milliseconds to be recognised as ended.
TRIES = 10

_lock = threading.Lock()
_servers: dict[tuple[str, ...], forkserver.ForkServer] = {}


def _forget() -> None:
    """Discard the parent's servers in a fork, and close their pipes so that they end with the parent."""
    global _lock  # noqa: PLW0603 - a thread that the fork lacks may hold it
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
            inherited = cast(Any, process.current_process())._config.get("tempdir")  # a fork shares its parent's
            if inherited is None:
                guard.guard_folder(util.get_temp_dir())  # will hold the server's socket
        return _servers[modules]


class _Popen(popen_forkserver.Popen):
    """The standard library's class, with this package's server and without ``__main__``."""

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
        guard.watch(cast(Any, server)._forkserver_pid)  # it ends on its own, but may import for seconds first
        alive = os.dup(into)  # the child treats the end of this pipe as the end of its parent
        self.finalizer = util.Finalize(self, cast(Any, util).close_fds, (alive, self.sentinel))
        try:
            with os.fdopen(into, "wb") as stream:
                # A new server imports for seconds before it forks.
                self.pid = forkserver.read_signed(self.sentinel)
                stream.write(message.getbuffer())
        except (OSError, EOFError):
            self.finalizer()
            raise


def _depend_on_server() -> None:
    """End this child with its server, which ends with the program."""
    inherited = cast(Any, forkserver)._forkserver
    if inherited._forkserver_alive_fd is not None:
        os.close(inherited._forkserver_alive_fd)
        inherited._forkserver_alive_fd = None
    guard.end_with_parent()
    server = getattr(sys.modules.get(FIRST), "server", None)
    if server is not None and os.getppid() != server:  # it ended just before
        os._exit(1)


class ForkedProcess(context.ForkServerProcess):
    """A process with `modules` imported."""

    modules: tuple[str, ...] = ()

    def start(self) -> None:
        """Start the process, also from workers of pools, which are daemons."""
        cast(Any, process)._cleanup()
        self._popen = self._Popen(self)
        self._sentinel = self._popen.sentinel
        cast(Any, process)._children.add(self)

    def _bootstrap(self, parent_sentinel: Any = None) -> int:
        """Bind the child to its server, then run it."""
        _depend_on_server()
        return int(cast(Any, super())._bootstrap(parent_sentinel))

    @staticmethod
    def _Popen(process_obj: Any) -> _Popen:  # noqa: N802 - the standard library's name
        return _Popen(process_obj)


class ForkedContext(context.ForkServerContext):
    """Context for executors and queues of the standard library; its processes have `modules` imported."""

    Process: ClassVar[Any] = ForkedProcess


def child(target: Callable[..., object], arguments: Sequence[Any], modules: Sequence[str] = ()) -> Any:
    """Return a process, not yet started, that calls the importable function `target` with `arguments`.

    On systems without a fork server it is spawned, which takes seconds and needs the guard
    ``if __name__ == "__main__"`` in scripts.

    `modules`: modules to import before forking; none may start a thread on import. A module that fails to import there
    is imported by the child when it needs it.
    """
    if not possible():
        return multiprocessing.get_context("spawn").Process(target=target, args=tuple(arguments), daemon=True)
    made = ForkedProcess(target=target, args=tuple(arguments), daemon=True)
    made.modules = tuple(modules)
    return made


def possible() -> bool:
    """Return True if this system has a fork server."""
    return "forkserver" in multiprocessing.get_all_start_methods() and sys.platform != "darwin"
