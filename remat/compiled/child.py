"""The process that compiles: it goes on to the end when the one that began it is gone, so the next run finds all done.

``python -m remat.compiled.child MODULE SET [MODULE SET ...]`` compiles sets, one after the other. It ends after some
minutes at the latest. A lock for each of them that it inherits tells the others that it is at work.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Sequence

#: Seconds after which it ends, whatever happens.
LIMIT = 600
#: Objects that are made between two looks for cycles: compiling makes many objects and few cycles, and looking for them
#: as often as Python does by default takes a tenth of the time.
COLLECT = 200_000


def start(sets: Sequence[tuple[str, str]], locks: Sequence[int]) -> bool:
    """Start the process for sets, each a module and a name; `locks` are descriptors to hold. Whether that went well."""
    if not sys.executable or not hasattr(os, "fork"):
        return False
    # What this process can import the other one must be able to, and nothing from the current folder besides.
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
    """Compile sets in a process that nobody waits for; one that cannot be compiled does not keep it from the others."""
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
