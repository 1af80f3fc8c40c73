"""``kill -9`` and SIGTERM of the program, and of its guard too: nothing of ours goes on, and no folder stays."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from helpers import wait_for_end, wait_for_files
from shell import finish, start

from remat.backends.minizinc import MiniZinc
from remat.backends.pyomo import Pyomo
from remat.runtime.processes import guard

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks for processes as Linux has them")

#: One program, all backends that start processes, each in a thread of its own.
PROGRAM = """
import sys, threading
from remat.testing.backend_checks import knapsack
from remat.runtime.solve_options import SolveOptions
from remat.backends.isolated import Isolated
from remat.registry import make_backend

def solve(name):
    backend = make_backend(name.removeprefix("isolated "))
    if name.startswith("isolated"):
        backend = Isolated(backend)
    backend.solve(knapsack(120), SolveOptions(threads=1))

for name in sys.argv[1:]:
    threading.Thread(target=solve, args=[name], daemon=True).start()
threading.Event().wait()
"""
#: A word in the command line of the process that solves, by backend.
SOLVERS = {
    "isolated cp-sat": "multiprocessing.forkserver",
    "minizinc:gecode": "fzn-gecode",
    "minizinc:cp-sat": "fzn-cpsat",
    "pyomo:cbc": "bin/cbc",
}


def family(process):
    """Numbers and command lines of the processes that descend from one."""
    found = {}
    with contextlib.suppress(psutil.Error):
        for child in psutil.Process(process.pid).children(recursive=True):
            with contextlib.suppress(psutil.Error):
                found[child.pid] = " ".join(child.cmdline())
    return found


@pytest.fixture
def program(tmp_path):
    """The program while all its solvers run, with a temporary folder of its own."""
    there = {"isolated cp-sat"}
    there |= {f"minizinc:{name}" for name in ("gecode", "cp-sat") if MiniZinc(name).ready().ready}
    there |= {"pyomo:cbc"} if Pyomo("cbc").ready().ready else set()
    assert there == set(SOLVERS) or not os.environ.get("REMAT_CI")
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    process = subprocess.Popen([sys.executable, "-c", PROGRAM, *sorted(there)], env=environment)
    try:
        until = time.monotonic() + 60
        missing = there
        while missing and time.monotonic() < until:
            time.sleep(0.1)
            seen = family(process).values()
            missing = {name for name in there if not any(SOLVERS[name] in line for line in seen)}
        assert not missing
        yield process
    finally:
        for number in [*family(process), process.pid]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(number, signal.SIGKILL)
        process.wait()


@pytest.mark.parametrize("number", [signal.SIGKILL, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
def test_nothing_survives_the_program(program, tmp_path, number):
    members = list(family(program))
    assert len(members) >= 6
    assert list(tmp_path.iterdir())
    os.kill(program.pid, number)
    program.wait()
    wait_for_end(members)
    wait_for_files(tmp_path, [])


#: A program that holds a temporary folder, with the number of its guard.
OWNER = """
import os, signal, sys, time
from remat.runtime.processes import guard

with guard.temporary_folder() as path:
    (path / "data").write_text("something")
    print(path, guard._guard._process.pid, flush=True)
    time.sleep(60)
"""
#: One whose worker holds such a folder.
POOL = f"""
from remat.runtime.processes.workers import WorkerPool
WorkerPool(1).submit(exec, {OWNER!r}).result()
"""
#: One that is killed between starting a solver and telling the guard its number.
BEGINNER = """
import os, subprocess, time
from remat.runtime.processes import guard

with guard.temporary_folder() as path:
    own = {"env": {"TMPDIR": str(path)}, "stdout": subprocess.DEVNULL}
    new = subprocess.Popen(["sleep", "60"], start_new_session=True, **own)
    print(new.pid, flush=True)
    os.kill(os.getpid(), 9)
"""


def test_a_process_that_the_guard_has_not_heard_of_ends_too(tmp_path):
    done = finish(start("", BEGINNER, env=os.environ | {"TMPDIR": str(tmp_path)}))
    wait_for_end([int(done.out)])
    wait_for_files(tmp_path, [])


def test_folders_of_workers_are_removed_with_the_program(tmp_path):
    process = start("", POOL, env=os.environ | {"TMPDIR": str(tmp_path)})
    until = time.monotonic() + 30
    while not list(tmp_path.glob("remat-run-*/data")) and time.monotonic() < until:
        time.sleep(0.05)
    finish(process, signal.SIGKILL)
    wait_for_files(tmp_path, [])


def test_folders_of_dead_owners_are_swept_and_others_stay(tmp_path):
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    owners, folders = [], []
    for _ in range(2):
        owner = start("", OWNER, env=environment)
        path, guardian = owner.stdout.readline().split()
        owners.append(owner)
        folders.append(Path(path))
        os.kill(int(guardian), signal.SIGKILL)
    fresh, old, strange = (tmp_path / f"{name}" for name in ("remat-run-fresh", "remat-run-old", "remat-other"))
    for path in (fresh, old, strange):
        path.mkdir()
    (tmp_path / "target").mkdir()
    (tmp_path / "remat-run-link").symlink_to(tmp_path / "target")
    os.utime(old, (0, 0))
    try:
        owners[0].kill()
        owners[0].wait()
        assert all(folder.is_dir() for folder in folders)  # there was no guard any more
        guard.sweep(str(tmp_path))
        left = {path.name for path in tmp_path.iterdir()}
        assert left == {folders[1].name, fresh.name, strange.name, "target", "remat-run-link"}
        assert (folders[1] / "data").exists()
    finally:
        for owner in owners:
            finish(owner, signal.SIGKILL)


def test_a_guard_that_was_killed_is_replaced():
    """By one that knows all that the first one knew."""
    guard.watch(os.getpid() + 10**7)  # no such session
    first = guard._guard._process
    first.kill()
    first.wait()
    try:
        guard.watch(os.getpid() + 2 * 10**7)
        assert guard._guard._process is not first
        assert ("session", os.getpid() + 10**7) in guard._guard.known
    finally:
        guard.forget(os.getpid() + 10**7)
        guard.forget(os.getpid() + 2 * 10**7)
