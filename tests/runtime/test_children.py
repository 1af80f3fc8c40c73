"""Children forked from a process that has the imports: fast, free of our state, and gone with the program."""

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
from fragile_backend import ForkedFragile
from helpers import options, wait_for_end, wait_for_files
from shell import start
from test_isolated import small

from remat.backends.isolated import Isolated
from remat.errors import BackendError
from remat.runtime.processes import children
from remat.runtime.processes.workers import WorkerPool
from remat.runtime.status import Status, StopReason

pytestmark = pytest.mark.skipif(not children.possible(), reason="needs a fork server")


def run(variant, seconds=60, **other):
    return Isolated(ForkedFragile(variant)).solve(small(), options(seconds, **other))


def server():
    """The number of the process that forks."""
    if ForkedFragile.preload not in children._servers:
        run("exit")
    return children._servers[ForkedFragile.preload]._forkserver_pid


def test_the_surroundings_are_those_of_now(monkeypatch, tmp_path):
    """Not those in which the server was started."""
    with pytest.raises(BackendError, match="RuntimeError: None"):
        run("first_environment")
    monkeypatch.setenv("SEEN", "seen")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path / "modules"))
    with pytest.raises(BackendError, match=f"RuntimeError: seen {tmp_path} {tmp_path}/modules$"):
        run("first_environment")


def test_the_server_has_one_thread_and_stays():
    before = server()
    with pytest.raises(BackendError, match="1 thread in the parent"):
        run("first_threads")
    assert server() == before


def test_a_server_that_was_killed_is_replaced():
    before = server()
    os.kill(before, signal.SIGKILL)
    assert run("exit").objective == 9.0
    assert server() != before


def test_ctrl_c_while_a_worker_starts_does_not_break_the_pool():
    with WorkerPool(2) as pool:
        pool.submit(int).result()
        jobs = [pool.submit(time.sleep, 60) for _ in range(2)]  # the second is for a new worker
        pool.interrupt()
        assert [type(job.exception(30)) for job in jobs] == [KeyboardInterrupt] * 2


def test_several_at_once():
    before = server()
    with ThreadPoolExecutor(8) as pool:
        solves = [pool.submit(run, "exit", memory_limit=2**31) for _ in range(8)]
        assert [solve.result().objective for solve in solves] == [9.0] * 8
    assert server() == before


def test_a_program_of_its_own_use_is_as_it_was():
    """Servers are ours alone: the standard library's own one has other modules, and imports the program."""
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


@pytest.mark.parametrize("how", ["input", "die", "fork"])
def test_nothing_is_left_and_the_program_runs_once(how, tmp_path):
    """However it ends; without any guard, from a file or from standard input; forks of it have servers of their own."""
    script = tmp_path / "program.py"
    script.write_text(PROGRAM)
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parent), "TMPDIR": str(tmp_path)}
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


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel ends them")
def test_children_end_without_a_guard_too(tmp_path):
    """Killed together with the program, it ends nobody; a child must not keep the server that it would end with."""
    program = start("", ALONE, env=os.environ | {"TMPDIR": str(tmp_path)}, stderr=None)
    child, forking, guardian = map(int, program.stdout.readline().split())
    os.kill(guardian, signal.SIGKILL)
    program.kill()
    program.wait()
    program.stdout.close()
    wait_for_end([child, forking])


def test_a_server_that_is_not_ready_is_not_waited_for_beyond_the_deadline():
    """As one that has just been started, which imports for seconds; the child that comes too late ends at once."""
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
