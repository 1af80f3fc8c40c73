"""Command line: ``remat COMMAND``. Every error is one line on standard error and exit code 2.

This module imports little: signal handlers must exist before slow imports.
"""

from __future__ import annotations

import atexit
import contextlib
import io
import os
import sys
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code; without `arguments`, use those of the process and handle signals."""
    if arguments is not None:
        from remat.cli.shell import run

        return run(list(arguments))
    from remat.cli import clock
    from remat.cli.signals import SignalHandler

    # numba imports colorama to colour its errors, which writes an escape sequence to standard output at exit.
    os.environ.setdefault("NUMBA_DISABLE_ERROR_MESSAGE_HIGHLIGHTING", "1")
    clock.begin()
    _fill_closed_streams()
    codes: list[int] = []
    atexit.register(_end, codes)  # registered first, called last
    handler = SignalHandler()
    handler.listen()
    from remat.cli.shell import run

    codes.append(handler.leave(run(sys.argv[1:])))
    running = sys.modules.get("remat.runtime.processes.running")
    if running is not None and running.left_behind():
        # A solver that ignored its request to stop is still running in this process; do not wait for it.
        _end(codes)
    return codes[0]


def _fill_closed_streams() -> None:
    """Connect closed standard streams to the null device.

    The next opened file would otherwise get the number of the closed stream, and output of libraries would end up in
    it. A connected stream is refused as an output (``-o -``) and, since it is empty, as an input.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            null = os.open(os.devnull, os.O_RDWR)
            if null != number:  # another descriptor has this number
                os.close(null)
                continue
            os.set_inheritable(null, True)
            if number:
                setattr(sys, name, io.StringIO())


def _end(codes: Sequence[int]) -> None:
    """End the process with its exit code, if known.

    The interpreter would otherwise free every object separately, which takes 0.2 s for a large graph.
    """
    if codes:
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(codes[0])
