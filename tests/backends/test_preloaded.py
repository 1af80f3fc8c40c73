"""Children forked from a process that has the imports: as good as those that are started, and sooner."""

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest
from fragile_backend import Sown
from test_isolated import small

from remat.backends.base import SolveOptions, Status, StopReason
from remat.backends.processes import preloaded
from remat.backends.processes.isolated import Isolated, family
from remat.deadline import Deadline
from remat.errors import BackendError

pytestmark = pytest.mark.skipif(not preloaded.possible(), reason="children are forked on Linux alone")


def options(seconds=60, **other):
    return SolveOptions(deadline=Deadline.after(seconds), threads=1, **other)


def run(variant, seconds=60, **other):
    return Isolated(Sown(variant)).solve(small(), options(seconds), **other)


def nursery():
    """The process that forks, of which there is one here."""
    if not preloaded._nurseries:
        run("exit")
    return preloaded._nurseries[Sown.preload]._process


@pytest.mark.parametrize(
    ("variant", "seconds", "stop", "words"),
    [
        ("segfault", 60, StopReason.OTHER, "was killed by signal SIGSEGV"),
        ("exit", 60, StopReason.OTHER, "ended with exit code 7"),
        ("raise", 60, StopReason.OTHER, "failed: RuntimeError: something broke"),
        ("hang", 1, StopReason.DEADLINE, "did not stop at the deadline and was killed"),
    ],
)
def test_what_was_found_survives(variant, seconds, stop, words):
    raw = run(variant, seconds)
    assert (raw.status, raw.stop, raw.objective) == (Status.FEASIBLE, stop, 9.0)
    assert raw.message.startswith(f"the process of backend 'fragile:{variant}' {words}")


def test_the_whole_family_is_killed():
    def offspring():
        return family(nursery().pid)[1:]

    found = []

    def watch(_):
        until = time.monotonic() + 5
        while len(offspring()) < 2 and time.monotonic() < until:
            time.sleep(0.05)
        found.extend(offspring())

    run("hang_with_child", 1, on_incumbent=watch)
    assert len(found) == 2
    until = time.monotonic() + 5
    while any(map(_runs, found)) and time.monotonic() < until:
        time.sleep(0.05)
    assert not any(map(_runs, found))


def test_the_surroundings_are_those_of_now(monkeypatch, tmp_path):
    """Not those in which the nursery was started."""
    with pytest.raises(BackendError, match="RuntimeError: None"):
        run("first_surroundings")
    monkeypatch.setenv("SEEN", "seen")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path / "modules"))
    with pytest.raises(BackendError, match=f"RuntimeError: seen {tmp_path} {tmp_path}/modules$"):
        run("first_surroundings")


def test_the_nursery_has_one_thread_and_stays():
    before = nursery().pid
    with pytest.raises(BackendError, match="1 thread in the parent"):
        run("first_threads")
    assert nursery().pid == before


def test_a_nursery_that_was_killed_is_replaced():
    before = nursery()
    before.send_signal(signal.SIGKILL)
    before.wait()
    assert run("exit").objective == 9.0
    assert nursery().pid != before.pid


def test_the_memory_limit():
    raw = Isolated(Sown("devour"), memory_limit=500 * 2**20).solve(small(), options())
    assert (raw.status, raw.stop, raw.objective) == (Status.FEASIBLE, StopReason.OTHER, 9.0)
    assert "it needs more memory than its limit of 500 MiB" in raw.message


def test_several_at_once():
    results = []
    before = nursery().pid
    threads = [threading.Thread(target=lambda: results.append(run("exit").objective)) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [9.0] * 16
    assert nursery().pid == before


def test_modules_that_are_not_there_are_one_error():
    with pytest.raises(BackendError, match=r"no process could be started that imports no\.such\.module"):
        preloaded.start(["no.such.module"], 0, sys.stderr.buffer, os.environ)


PROGRAM = textwrap.dedent(
    """
    import os, sys
    from fragile_backend import Sown
    from remat.backends.processes import preloaded
    from remat.backends.base import SolveOptions
    from remat.backends.processes.isolated import Isolated
    from remat.modeling import Model

    def run():
        model = Model("one")
        model.minimize(model.integers("x", 1, 0, 3).index, 1)
        assert Isolated(Sown("exit")).solve(model, SolveOptions()).objective == 3
        print(preloaded._nurseries[Sown.preload]._process.pid, flush=True)

    run()
    if sys.argv[1] == "fork" and os.fork() == 0:
        run()
        preloaded.end_all()
        os._exit(0)
    if sys.argv[1] == "fork":
        os.wait()
    if sys.argv[1] == "die":
        os.kill(os.getpid(), 9)
    """
)


@pytest.mark.parametrize("how", ["end", "die", "fork"])
def test_nothing_is_left_when_the_program_ends(how):
    """However it ends; a fork of it has a nursery of its own."""
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parent)}
    program = subprocess.run(
        [sys.executable, "-c", PROGRAM, how], capture_output=True, text=True, env=environment, timeout=60, check=False
    )
    pids = set(program.stdout.split())
    assert len(pids) == (2 if how == "fork" else 1), program.stderr
    until = time.monotonic() + 5
    while any(_runs(pid) for pid in pids) and time.monotonic() < until:
        time.sleep(0.05)
    assert not any(_runs(pid) for pid in pids)


def _runs(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False
