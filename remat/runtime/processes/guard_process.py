"""Guard: a small process that terminates what its parent has started, once the parent has ended.

It runs as a script in an interpreter without packages (``python -I -S``): it starts in 10 ms and holds 8 MB. Standard
input has lines of JSON: ``["+session", pid]`` adds a process with a session of its own, ``["+folder", path]`` a folder,
and ``-`` removes them. When the input ends, however the parent ended, it kills every process of these sessions with
all descendants, and removes the folders. It also kills every process that was started with one of these folders as its
``TMPDIR``: the parent may have exited before registering its process ID.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Collection

#: Rounds of killing, to reach processes that were started during the previous one.
ROUNDS = 20


def processes() -> dict[int, tuple[int, int]]:
    """Return parent and session of every process; empty on systems without ``/proc``."""
    found: dict[int, tuple[int, int]] = {}
    with contextlib.suppress(OSError):
        for name in filter(str.isdigit, os.listdir("/proc")):  # noqa: PTH208 - pathlib takes twice as long to import
            with contextlib.suppress(OSError, ValueError), open(f"/proc/{name}/stat", "rb") as file:  # noqa: PTH123
                state, parent, _, session = file.read().rpartition(b")")[2].split()[:4]
                if state not in b"ZX":
                    found[int(name)] = (int(parent), int(session))
    return found


def started(pid: int) -> bytes:
    """Return the start time of a process as the kernel prints it; empty if it has ended or is unreadable."""
    with contextlib.suppress(OSError, IndexError), open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123
        return file.read().rpartition(b")")[2].split()[19]
    return b""


def members(leaders: Collection[int]) -> set[int]:
    """Return all processes in the sessions of `leaders`, and all their descendants."""
    table = processes()
    found = {pid for pid, (_, session) in table.items() if session in leaders}
    size = 0
    while size < len(found):
        size = len(found)
        found |= {pid for pid, (parent, _) in table.items() if parent in found}
    return found


def working_in(folders: Collection[str]) -> set[int]:
    """Return processes that were started with one of the folders as ``TMPDIR``."""
    words = {b"TMPDIR=" + os.fsencode(folder) for folder in folders}
    found = set()
    for pid in processes():
        with contextlib.suppress(OSError), open(f"/proc/{pid}/environ", "rb") as file:  # noqa: PTH123
            if not words.isdisjoint(file.read().split(b"\0")):
                found.add(pid)
    return found


def is_guard(pid: int) -> bool:
    """Return True if a process runs this program."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/cmdline", "rb") as file:  # noqa: PTH123
        return os.fsencode(__file__) in file.read().split(b"\0")
    return False


def kill(leaders: Collection[int]) -> None:
    """Kill all :func:`members` except guards, which remove folders of other processes and then end.

    Without ``/proc``, kill the process groups of that number.
    """
    for _ in range(ROUNDS):
        if not sys.platform.startswith("linux"):
            for leader in leaders:
                with contextlib.suppress(OSError):
                    os.killpg(leader, signal.SIGKILL)
            return
        found = {pid for pid in members(leaders) if not is_guard(pid)} - {os.getpid()}
        if not found:
            return
        for pid in found:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)


def main() -> None:
    """Read standard input to its end, then clean up."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    known: dict[str, dict] = {"session": {}, "folder": {}}
    for line in sys.stdin.buffer:
        with contextlib.suppress(ValueError, KeyError):
            what, value = json.loads(line)
            if what[0] == "+":
                known[what[1:]][value] = started(value) if what == "+session" else b""
            else:
                known[what[1:]].pop(value, None)
    leaders = known["session"]
    if leaders:
        kill(leaders)
    for pid, start in leaders.items():  # those without a session of their own yet
        if start and started(pid) == start:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
    for pause in (0.0, 0.1) if known["folder"] else ():  # a process being started has our environment for a moment
        time.sleep(pause)
        for pid in working_in(known["folder"]):
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
    for folder in known["folder"]:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
