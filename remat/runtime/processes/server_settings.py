"""Settings of fork servers (see :mod:`remat.runtime.processes.children`), which import this module first.

A server leaves the terminal, whose Ctrl-C is meant for the program only, and closes the standard streams. It keeps
numerical libraries from starting threads, which would waste memory and not survive a fork.
"""

from __future__ import annotations

import os
import sys

#: Process id of the fork server; None in other processes.
server: int | None = None


def configure_server() -> None:
    """Detach this process from the terminal and its streams, and limit its threads."""
    global server  # noqa: PLW0603 - a fact of the process
    server = os.getpid()
    os.environ["OPENBLAS_NUM_THREADS"] = "1"
    os.setsid()
    nowhere = os.open(os.devnull, os.O_RDWR)
    for number in range(3):
        os.dup2(nowhere, number)
    os.close(nowhere)


if any("multiprocessing.forkserver import main" in word for word in sys.orig_argv):
    configure_server()
