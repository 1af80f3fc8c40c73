"""Backends in child processes: streams of results, faults of the child, limits and Ctrl-C."""

import contextlib
import multiprocessing
import os
import signal
import time
from pathlib import Path

import numpy as np
import psutil
import pytest
from fragile_backend import Fragile, small_model
from helpers import options
from refusals import refused
from shell import finish, start

from remat.backends import isolated_worker
from remat.backends.highs import Highs
from remat.backends.isolated import Isolated
from remat.errors import BackendError, ModelError
from remat.modeling import violations
from remat.runtime.processes import wire
from remat.runtime.solve_options import Status, StopReason
from remat.testing.backend_checks import knapsack

#: Takes more than a few seconds, with several incumbents.
HARD = knapsack(120)
pytestmark = pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads /proc")


def children():
    """Return descendants, without the guard and the processes of the standard library that fork others."""
    stay = ("guard_process.py", "multiprocessing.forkserver import main", "multiprocessing.resource_tracker")
    found = set()
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            command, parent = process.cmdline(), process.parent()
            forked = parent is not None and parent.pid != os.getpid() and parent.cmdline() == command
            if forked or not any(word in " ".join(command) for word in stay):
                found.add(process.pid)
    return found


@pytest.fixture(autouse=True)
def no_processes_left():
    before = children()
    yield
    deadline = time.monotonic() + 5
    while children() - before and time.monotonic() < deadline:
        time.sleep(0.05)
    assert children() <= before


def test_incumbents_bounds_log_and_options_cross_the_process():
    lines, bounds = [], []
    given = options(2, log=lines.append, solver={"mip_heuristic_effort": 0.5})
    raw = Isolated(Highs()).solve(HARD, given, np.zeros(120), on_bound=lambda _, bound: bounds.append(bound))
    assert (raw.status, raw.stop) == (Status.FEASIBLE, StopReason.DEADLINE)
    assert raw.incumbents[0].objective == 0  # the hint
    assert raw.objective == raw.incumbents[-1].objective < 0
    assert bounds == sorted(bounds) and bounds[-1] <= raw.bound <= raw.objective
    assert 0 < raw.build_seconds < 2 and 0 < raw.solve_seconds < 2.5
    assert any("HiGHS" in line for line in lines)
    assert "highspy" in raw.versions


@pytest.mark.parametrize(
    ("variant", "seconds", "words"),
    [
        ("segfault", None, "was killed by signal SIGSEGV"),
        ("exit", None, "ended with exit code 7"),
        ("raise", None, "failed: RuntimeError: something broke"),
        ("hang_with_child", 1.2, "did not stop at the deadline and was killed"),
        ("first_abort", None, "was killed by signal SIGABRT"),
    ],
)
def test_incumbent_survives_a_failing_child(variant, seconds, words):
    """The fixture `no_processes_left` checks that the grandchild ends, too."""
    seen, family = [], []
    began = time.monotonic()

    def report(incumbent):
        seen.append(incumbent.objective)
        family.extend(children())

    raw = Isolated(Fragile(variant)).solve(small_model(), options(seconds), on_incumbent=report)
    message = f"the process of backend 'fragile:{variant}' {words}"
    if variant == "first_abort":  # no solution yet
        assert (raw.status, raw.stop, raw.values, raw.bound) == (Status.ERROR, StopReason.OTHER, None, None)
        assert raw.message == message
        return
    stop = StopReason.DEADLINE if seconds else StopReason.OTHER
    assert (raw.status, raw.stop, raw.objective, raw.bound) == (Status.FEASIBLE, stop, 9.0, 1.0)
    assert (raw.values.tolist(), seen) == ([3, 3, 3], [9.0])
    assert raw.message.startswith(message)
    assert raw.message.endswith("the best solution before that is kept")
    if seconds:
        assert family
        assert seconds <= time.monotonic() - began < 60  # left alone, it hangs for a day


def test_errors_keep_their_class():
    with pytest.raises(ModelError, match="record 'r' is too odd"):
        Isolated(Fragile("first_refuse")).solve(small_model(), options())


@pytest.mark.parametrize("variant", ["exhaust_memory", "first_exhaust_memory"])
def test_memory_limit(variant):
    raw = Isolated(Fragile(variant)).solve(small_model(), options(60, memory_limit=300 * 2**20))
    assert raw.stop is StopReason.OTHER
    assert raw.status is (Status.FEASIBLE if variant == "exhaust_memory" else Status.UNKNOWN)
    assert raw.objective == (9.0 if variant == "exhaust_memory" else None)
    assert "it needs more memory than its limit of 300 MiB" in raw.message


def test_incumbent_survives_an_external_kill():
    before = children()

    def kill(_):
        for pid in children() - before:
            os.kill(pid, signal.SIGKILL)

    raw = Isolated(Highs()).solve(HARD, options(60), on_incumbent=kill)
    assert raw.status is Status.FEASIBLE
    assert violations(HARD, raw.values) == []
    assert (
        "was killed by signal SIGKILL (by another process, or by the system because it is out of memory)" in raw.message
    )


@pytest.mark.parametrize("backend", [Fragile("wait"), Highs()])
def test_callback_stops_the_child(backend):
    raw = Isolated(backend).solve(HARD, options(60), on_incumbent=lambda _: True)
    assert (raw.status, raw.stop, raw.message) == (Status.FEASIBLE, StopReason.INTERRUPTED, "")


def test_callback_stops_the_child_with_one_signal():
    """Regression: each further solution sent a signal, and the second ended a child that still had better ones."""
    isolated = Isolated(Fragile("improve"))
    raw = isolated.solve(small_model(), options(60), on_incumbent=lambda found: found.objective < 9)
    assert (raw.stop, raw.objective, raw.message) == (StopReason.INTERRUPTED, 5, "")


def test_error_in_a_callback_ends_the_child():
    def fail(_):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        Isolated(Fragile("hang")).solve(small_model(), options(60), on_incumbent=fail)


def test_output_of_the_child_is_discarded(capfd):
    lines = []
    raw = Isolated(Fragile("print")).solve(small_model(), options(log=lines.append))
    assert lines == ["a line"]
    assert raw.message == "no solution"
    # the status of the child is unknown, but its incumbent counts
    assert (raw.status, raw.objective) == (Status.FEASIBLE, 9.0)
    assert capfd.readouterr() == ("", "")


def test_local_backend_is_refused():
    class Local(Fragile):
        pass

    with refused("model.not-importable"):
        Isolated(Local("exit")).solve(small_model(), options())


def test_unpicklable_options_are_refused():
    with pytest.raises(BackendError, match=r"no child process: Can't (pickle|get local object)"):
        Isolated(Highs()).solve(small_model(), options(solver={"time_limit": lambda: 1}))


PARENT = """
import sys
from fragile_backend import Fragile
from remat.runtime.solve_options import SolveOptions
from remat.backends.isolated import Isolated
from remat.modeling import Model

def report(incumbent):
    print("incumbent", flush=True)

model = Model("one")
model.minimize(model.integers("x", 1, 0, 9).index, 1)
raw = Isolated(Fragile(sys.argv[1])).solve(model, SolveOptions(), on_incumbent=report)
print("result", raw.status, raw.stop, raw.objective, flush=True)
"""


def test_ctrl_c_waits_for_the_end_of_a_message():
    """Regression: a truncated message took bytes of the next one for its array, a solution of 1e252."""
    here, there = multiprocessing.Pipe()

    class Interrupted:
        def send_bytes(self, data):
            there.send_bytes(data)
            signal.raise_signal(signal.SIGINT)

    worker = isolated_worker._Worker(Interrupted())
    with pytest.raises(KeyboardInterrupt):
        worker.send("incumbent", {"objective": 3}, values=np.arange(3.0))
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    with pytest.raises(KeyboardInterrupt):
        worker.send("result", {"objective": 2}, values=np.arange(4.0))
    for kind, length in (("incumbent", 3), ("result", 4)):
        message = wire.read(here)
        assert (message.kind, message.arrays["values"].tolist()) == (kind, list(range(length)))


@pytest.mark.parametrize(("variant", "times"), [("wait", 1), ("hang", 2)])
def test_second_ctrl_c_kills_a_child_that_ignores_the_first(variant, times):
    process = start(variant, PARENT, env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])})
    assert process.stdout.readline() == "incumbent\n"
    assert finish(process, *[signal.SIGINT] * times, seconds=30).out == "result feasible interrupted 9.0\n"


def test_hint_survives_a_child_without_messages():
    """The deadline may expire while the process starts."""
    isolated = Isolated(Fragile("first_abort"))
    raw = isolated.solve(small_model(), options(60), np.array([3.0, 1.0, 0.0]))
    assert (raw.status, raw.objective, raw.values.tolist()) == (Status.FEASIBLE, 4, [3, 1, 0])
    assert raw.message.endswith("the best solution before that is kept")
    wrong = isolated.solve(small_model(), options(60), np.array([3.0, 0.0, 0.0]))
    assert (wrong.status, wrong.values) == (Status.ERROR, None)
