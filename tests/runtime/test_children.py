"""Children forked from a server with the imports: speed, isolation, clean-up."""

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest
from fragile_backend import ForkedFragile, small_model
from helpers import options, wait_for_end, wait_for_files
from shell import start

from remat.backends.isolated import Isolated
from remat.errors import BackendError
from remat.runtime.processes import children
from remat.runtime.processes.workers import WorkerPool
from remat.runtime.solve_options import Status, StopReason

pytestmark = pytest.mark.skipif(not children.possible(), reason="needs a fork server")


def run(variant, seconds=60, **other):
    return Isolated(ForkedFragile(variant)).solve(small_model(), options(seconds, **other))


def server():
    """Return the process ID of the fork server."""
    if ForkedFragile.preload not in children._servers:
        run("exit")
    return children._servers[ForkedFragile.preload]._forkserver_pid


def test_children_have_the_current_environment(monkeypatch, tmp_path):
    """Not the environment at the start of the server."""
    with pytest.raises(BackendError, match="RuntimeError: None"):
        run("first_environment")
    monkeypatch.setenv("SEEN", "seen")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path / "modules"))
    with pytest.raises(BackendError, match=f"RuntimeError: seen {tmp_path} {tmp_path}/modules$"):
        run("first_environment")


def test_server_has_one_thread_and_persists():
    before = server()
    with pytest.raises(BackendError, match="1 thread in the parent"):
        run("first_threads")
    assert server() == before


def test_killed_server_is_replaced():
    before = server()
    os.kill(before, signal.SIGKILL)
    assert run("exit").objective == 9.0
    assert server() != before


def test_ctrl_c_during_the_start_of_a_worker():
    with WorkerPool(2) as pool:
        pool.submit(int).result()
        jobs = [pool.submit(time.sleep, 60) for _ in range(2)]  # the second needs a new worker
        pool.interrupt()
        assert [type(job.exception(30)) for job in jobs] == [KeyboardInterrupt] * 2


def test_concurrent_children():
    before = server()
    with ThreadPoolExecutor(8) as pool:
        solves = [pool.submit(run, "exit", memory_limit=2**31) for _ in range(8)]
        assert [solve.result().objective for solve in solves] == [9.0] * 8
    assert server() == before


def test_standard_fork_server_is_unchanged():
    """The standard library's server has other modules and imports the main program."""
    run("exit")
    assert multiprocessing.forkserver._forkserver._preload_modules == ["__main__"]
    assert multiprocessing.get_start_method() in {"fork", "spawn", "forkserver"}
    assert children._servers[ForkedFragile.preload] is not multiprocessing.forkserver._forkserver


PROGRAM = """
import multiprocessing, os, sys
print("program", flush=True)
from fragile_backend import ForkedFragile
from remat.runtime.processes import children
from remat.runtime.solve_options import SolveOptions
from remat.backends.isolated import Isolated
from remat.modeling import Model

def run():
    model = Model("one")
    model.minimize(model.integers("x", 1, 0, 3).index, 1)
    assert Isolated(ForkedFragile("exit")).solve(model, SolveOptions()).objective == 3
    print(children._servers[ForkedFragile.preload]._forkserver_pid, flush=True)

run()
if sys.argv[1] == "fork" and os.fork() == 0:
    run()
    sys.exit()
if sys.argv[1] == "fork":
    os.wait()
    worker = multiprocessing.get_context("fork").Process(target=run, daemon=True)
    worker.start()
    worker.join()
    assert worker.exitcode == 0
if sys.argv[1] == "die":
    os.kill(os.getpid(), 9)
"""


@pytest.mark.parametrize("how", ["input", pytest.param("die", marks=pytest.mark.slow), "fork"])
def test_main_program_runs_once_and_leaves_nothing(how, tmp_path):
    """Ends normally, killed, or after forks that have their own servers; without a main guard."""
    script = tmp_path / "program.py"
    script.write_text(PROGRAM)
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[1]), "TMPDIR": str(tmp_path)}
    program = subprocess.run(
        [sys.executable, "-" if how == "input" else str(script), how], capture_output=True, text=True, timeout=60,
        env=environment, input=PROGRAM if how == "input" else None, check=False,
    )  # fmt: skip
    first, *pids = program.stdout.split()
    assert first == "program"
    assert program.stdout.count("program") == 1
    assert len(set(pids)) == (3 if how == "fork" else 1), program.stderr
    assert program.stderr == ""
    wait_for_end(map(int, pids))
    wait_for_files(tmp_path, ["program.py"])


ALONE = """
import os, time
from remat.runtime.processes import children, guard

if __name__ == "__main__":
    sleeper = children.child(time.sleep, [100])
    sleeper.start()
    print(sleeper.pid, children._servers[()]._forkserver_pid, guard._guard._process.pid, flush=True)
    time.sleep(100)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="needs Linux's parent-death signal")
def test_children_end_without_the_guard(tmp_path):
    """A child must not keep the server alive."""
    program = start("", ALONE, env=os.environ | {"TMPDIR": str(tmp_path)}, stderr=None)
    child, forking, guard = map(int, program.stdout.readline().split())
    os.kill(guard, signal.SIGKILL)
    program.kill()
    program.wait()
    program.stdout.close()
    wait_for_end([child, forking])


def test_deadline_while_the_server_is_not_ready():
    """A new server imports for seconds; a child that starts after the deadline exits."""
    stopped = server()
    os.kill(stopped, signal.SIGSTOP)
    began = time.monotonic()
    try:
        raw = run("hang", 0.2)
    finally:
        os.kill(stopped, signal.SIGCONT)
    assert time.monotonic() - began < 2
    assert (raw.status, raw.stop) == (Status.UNKNOWN, StopReason.DEADLINE)
    assert "was not ready in time" in raw.message
    assert run("exit").objective == 9.0
    assert server() == stopped
    wait_for_end([child.pid for child in psutil.Process(stopped).children()], 20)
