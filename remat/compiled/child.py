"""The process that compiles: it goes on to the end when the one that began it is gone, so the next run finds all done.

``python -m remat.compiled.child MODULE SET`` compiles one set. It is nice to others and ends after some minutes at the
latest. A lock that it inherits tells the others that it is at work.
"""

from __future__ import annotations

import os
import subprocess
import sys

#: Seconds after which it ends, whatever happens, and how nice it is.
LIMIT, NICE = 600, 2


def start(module: str, name: str, lock: int) -> bool:
    """Start the process; `lock` is a descriptor that it is to hold. Whether that was possible."""
    if not sys.executable or not hasattr(os, "fork"):
        return False
    # What this process can import the other one must be able to, and nothing from the current folder besides.
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    try:
        return subprocess.run(
            [sys.executable, "-P", "-m", "remat.compiled.child", module, name],
            env=environment, pass_fds=(lock,), start_new_session=True, check=False, timeout=30,
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        ).returncode == 0  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return False


def main() -> None:
    """Compile a set in a process that nobody waits for."""
    import importlib
    import signal

    module, name = sys.argv[1:]
    if os.fork():
        os._exit(0)
    signal.alarm(LIMIT)
    os.nice(NICE)
    from remat.compiled.sets import KernelSet

    importlib.import_module(module)
    KernelSet.known[name].compile()


if __name__ == "__main__":
    main()
