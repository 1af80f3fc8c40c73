"""Imported first by the processes that fork ours (see :mod:`remat.backends.processes.children`), and by nothing else.

There it leaves the terminal, whose Ctrl-C is for the program alone, closes the standard streams, and keeps numerical
libraries from starting threads, whose memory nobody would use and which a fork would lose.
"""

from __future__ import annotations

import os
import sys

#: The number of the process that forks; None in a program that is none.
server: int | None = None


def settle() -> None:
    """Do all that."""
    global server  # noqa: PLW0603 - a fact of the process
    server = os.getpid()
    os.environ["OPENBLAS_NUM_THREADS"] = "1"
    os.setsid()
    nowhere = os.open(os.devnull, os.O_RDWR)
    for number in range(3):
        os.dup2(nowhere, number)
    os.close(nowhere)


if any("multiprocessing.forkserver import main" in word for word in sys.orig_argv):
    settle()
