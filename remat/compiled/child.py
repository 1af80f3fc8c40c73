"""Background process that compiles kernels; it outlives its parent, so that the next run finds them compiled.

``python -m remat.compiled.child MODULE SET [MODULE SET ...]`` compiles sets one after the other, for at most
:data:`LIMIT` seconds. It inherits a lock for each set, by which other processes see that it is running.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Sequence

#: Seconds after which it terminates.
LIMIT = 600
#: Allocations between two runs of the garbage collector. Compiling makes many objects and few cycles; with Python's
#: default the collector takes a tenth of the time.
COLLECT = 200_000


def start(sets: Sequence[tuple[str, str]], locks: Sequence[int]) -> bool:
    """Start the process for sets, each a module and a name, with the descriptors of their locks; return success."""
    if not sys.executable or not hasattr(os, "fork"):
        return False
    # The child imports what this process can import, and nothing else from the current folder.
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    try:
        return subprocess.run(
            [sys.executable, "-P", "-m", "remat.compiled.child", *(word for one in sets for word in one)],
            env=environment, pass_fds=tuple(locks), start_new_session=True, check=False, timeout=30,
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        ).returncode == 0  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return False


def main() -> None:
    """Detach from the parent and compile the sets; skip those that fail."""
    import gc
    import importlib
    import signal

    if os.fork():
        os._exit(0)
    signal.alarm(LIMIT)
    gc.set_threshold(COLLECT)
    from remat.compiled.sets import KernelSet

    for module, name in zip(sys.argv[1::2], sys.argv[2::2], strict=True):
        with contextlib.suppress(Exception):
            importlib.import_module(module)
            KernelSet.known[name].compile()


if __name__ == "__main__":
    main()
