"""Background process that compiles kernels; it outlives its parent, so that the next run finds them compiled.

``python -m remat.runtime.compiled.child MODULE SET [MODULE SET ...]`` compiles sets one after the other, for at most
:data:`LIMIT` seconds. :mod:`remat.runtime.compiled.launcher` starts it. It inherits a lock for each set, by which other
processes see that it is running.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import signal
import sys

from remat.runtime.compiled.sets import KernelSet

#: Seconds after which it terminates.
LIMIT = 600
#: Allocations between two runs of the garbage collector. Compiling makes many objects and few cycles; with Python's
#: default the collector takes a tenth of the time.
COLLECT = 200_000


def main() -> None:
    """Detach from the parent and compile the sets; skip those that fail."""
    if os.fork():
        os._exit(0)
    signal.alarm(LIMIT)
    gc.set_threshold(COLLECT)
    for module, name in zip(sys.argv[1::2], sys.argv[2::2], strict=True):
        with contextlib.suppress(Exception):
            importlib.import_module(module)
            KernelSet.known[name].compile()


if __name__ == "__main__":
    main()
