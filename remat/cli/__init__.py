"""The shell: ``remat COMMAND``. Every error is one line on standard error and exit code 2.

Light on purpose: signals are listened to before anything that takes long is imported.
"""

from __future__ import annotations

import contextlib
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

    clock.begin()
    with Listener() as listener:
        from remat.cli.shell import run

        code = listener.leave(run(sys.argv[1:]))
    running = sys.modules.get("remat.backends.processes.running")
    if running is not None and running.left_behind():
        # A solver that did not stop when it was asked to winds down in this process: there is nothing to wait for.
        with contextlib.suppress(OSError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)
    return code
