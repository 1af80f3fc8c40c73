"""``kill -9`` and SIGTERM of the program and its guard: no process and no folder remains."""

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

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="finds processes as Linux has them")

#: Program that runs all backends with child processes, each in a thread.
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
#: Word in the command line of the solving process, by backend.
SOLVERS = {
    "isolated cp-sat": "multiprocessing.forkserver",
    "minizinc:gecode": "fzn-gecode",
    "minizinc:cp-sat": "fzn-cpsat",
    "pyomo:cbc": "bin/cbc",
}


def family(process):
    """Return process IDs and command lines of all descendants."""
    found = {}
    with contextlib.suppress(psutil.Error):
        for child in psutil.Process(process.pid).children(recursive=True):
            with contextlib.suppress(psutil.Error):
                found[child.pid] = " ".join(child.cmdline())
    return found


@pytest.fixture
def program(tmp_path, chosen):
    """Return the program while the solvers of the test run, with its own temporary folder."""
    available = {"isolated cp-sat"}
    available |= {f"minizinc:{name}" for name in ("gecode", "cp-sat") if MiniZinc(name).ready().ready}
    available |= {"pyomo:cbc"} if "pyomo:cbc" in chosen and Pyomo("cbc").ready().ready else set()
    assert available >= chosen or not os.environ.get("REMAT_CI")
    available &= chosen
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    process = subprocess.Popen([sys.executable, "-c", PROGRAM, *sorted(available)], env=environment)
    try:
        until = time.monotonic() + 60
        missing = available
        while missing and time.monotonic() < until:
            time.sleep(0.1)
            seen = family(process).values()
            missing = {name for name in available if not any(SOLVERS[name] in line for line in seen)}
        assert not missing
        yield process
    finally:
        for number in [*family(process), process.pid]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(number, signal.SIGKILL)
        process.wait()


@pytest.mark.parametrize(
    ("number", "chosen", "fewest"),
    [
        (signal.SIGKILL, {"isolated cp-sat", "minizinc:gecode"}, 5),
        pytest.param(signal.SIGKILL, set(SOLVERS), 6, marks=pytest.mark.slow),
        pytest.param(signal.SIGTERM, set(SOLVERS), 6, marks=pytest.mark.slow),
    ],
    ids=["kill", "kill all", "terminate all"],
)
def test_children_and_folders_are_removed(program, tmp_path, number, fewest):
    members = list(family(program))
    assert len(members) >= fewest, family(program)
    assert list(tmp_path.iterdir())
    os.kill(program.pid, number)
    program.wait()
    wait_for_end(members)
    wait_for_files(tmp_path, [])


#: Program that holds a temporary folder; prints it with the process ID of its guard.
OWNER = """
import os, signal, sys, time
from remat.runtime.processes import guard

with guard.temporary_folder() as path:
    (path / "data").write_text("something")
    print(path, guard._guard._process.pid, flush=True)
    time.sleep(60)
"""
#: Program whose worker holds such a folder.
POOL = f"""
from remat.runtime.processes.workers import WorkerPool
WorkerPool(1).submit(exec, {OWNER!r}).result()
"""
#: Program killed after starting a solver, before registering it with the guard.
UNREGISTERED = """
import os, subprocess, time
from remat.runtime.processes import guard

with guard.temporary_folder() as path:
    own = {"env": {"TMPDIR": str(path)}, "stdout": subprocess.DEVNULL}
    new = subprocess.Popen(["sleep", "60"], start_new_session=True, **own)
    print(new.pid, flush=True)
    os.kill(os.getpid(), 9)
"""


def test_unregistered_process_is_terminated(tmp_path):
    done = finish(start("", UNREGISTERED, env=os.environ | {"TMPDIR": str(tmp_path)}))
    wait_for_end([int(done.out)])
    wait_for_files(tmp_path, [])


def test_folders_of_workers_are_removed(tmp_path):
    process = start("", POOL, env=os.environ | {"TMPDIR": str(tmp_path)})
    until = time.monotonic() + 30
    while not list(tmp_path.glob("remat-run-*/data")) and time.monotonic() < until:
        time.sleep(0.05)
    finish(process, signal.SIGKILL)
    wait_for_files(tmp_path, [])


def test_only_folders_of_dead_owners_are_swept(tmp_path):
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    owners, folders = [], []
    for _ in range(2):
        owner = start("", OWNER, env=environment)
        path, guard_pid = owner.stdout.readline().split()
        owners.append(owner)
        folders.append(Path(path))
        os.kill(int(guard_pid), signal.SIGKILL)
    fresh, old, foreign = (tmp_path / f"{name}" for name in ("remat-run-fresh", "remat-run-old", "remat-other"))
    for path in (fresh, old, foreign):
        path.mkdir()
    (tmp_path / "target").mkdir()
    (tmp_path / "remat-run-link").symlink_to(tmp_path / "target")
    os.utime(old, (0, 0))
    try:
        owners[0].kill()
        owners[0].wait()
        assert all(folder.is_dir() for folder in folders)  # no guard removed them
        guard.sweep(str(tmp_path))
        left = {path.name for path in tmp_path.iterdir()}
        assert left == {folders[1].name, fresh.name, foreign.name, "target", "remat-run-link"}
        assert (folders[1] / "data").exists()
    finally:
        for owner in owners:
            finish(owner, signal.SIGKILL)


def test_killed_guard_is_replaced():
    """The new one has the registrations of the old one."""
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
