"""The shell: ``remat COMMAND``. Every error is one line on standard error and exit code 2.

Light on purpose: signals are listened to before anything that takes long is imported.
"""

from __future__ import annotations

import atexit
import contextlib
import io
import os
import sys
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the shell with `arguments` (default: those of the process, which then listens to signals); the exit code."""
    if arguments is not None:
        from remat.cli.shell import run

        return run(list(arguments))
    from remat.cli import clock
    from remat.cli.signals import Listener

    # colorama, which numba imports to colour its errors, writes an escape sequence to standard output at exit.
    os.environ.setdefault("NUMBA_DISABLE_ERROR_MESSAGE_HIGHLIGHTING", "1")
    clock.begin()
    _fill_closed_streams()
    codes: list[int] = []
    atexit.register(_end, codes)  # the first that is registered is the last that is called
    listener = Listener()
    listener.listen()
    from remat.cli.shell import run

    codes.append(listener.leave(run(sys.argv[1:])))
    running = sys.modules.get("remat.backends.processes.running")
    if running is not None and running.left_behind():
        # A solver that did not stop when it was asked to winds down in this process: there is nothing to wait for.
        _end(codes)
    return codes[0]


def _fill_closed_streams() -> None:
    """Let what goes to a standard stream that was closed before we began go nowhere.

    Left closed, the next file that is opened would get its number, and what a library prints would stand in that file.
    Without bytes of its own, such a stream is refused as an output (``-o -``), as standard input is as an input.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            null = os.open(os.devnull, os.O_RDWR)
            if null != number:  # something else is there by now
                os.close(null)
                continue
            os.set_inheritable(null, True)
            if number:
                setattr(sys, name, io.StringIO())


def _end(codes: Sequence[int]) -> None:
    """End the process with its exit code, where it is known.

    Otherwise the interpreter would take apart, object by object, what the system takes back at once: a fifth of a
    second where a graph is large.
    """
    if codes:
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(codes[0])
