"""Start of the background process that compiles kernels (:mod:`remat.runtime.compiled.child`)."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence


def start(sets: Sequence[tuple[str, str]], locks: Sequence[int]) -> bool:
    """Start the process for sets, each a module and a name, with the descriptors of their locks; return success."""
    if not sys.executable or not hasattr(os, "fork"):
        return False
    # The child imports what this process can import, and nothing else from the current folder.
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    try:
        return subprocess.run(
            [sys.executable, "-P", "-m", "remat.runtime.compiled.child", *(word for one in sets for word in one)],
            env=environment, pass_fds=tuple(locks), start_new_session=True, check=False, timeout=30,
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        ).returncode == 0  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return False
