"""Ctrl-C: a flag that ends all running calls with their best results."""

import os
import signal
import threading
import time
from collections.abc import Iterator

import pytest
from helpers import ONE, few

from remat import Problem, solve
from remat.graphs.families import unit_chain
from remat.graphs.layered import layered
from remat.heuristics.annealing import Annealing
from remat.runtime.deadline import Deadline
from remat.runtime.interruption import SAME, interrupted, interrupts, request, since
from remat.solving.min_peak import minimize
from remat.solving.progress import Progress


@pytest.fixture(autouse=True)
def _no_flag_remains() -> Iterator[None]:
    yield
    assert not interrupted()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def later(seconds: float) -> threading.Timer:
    """Send Ctrl-C after some seconds."""
    timer = threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGINT))
    timer.daemon = True
    timer.start()
    return timer


def test_flag_remains_until_the_outermost_call_ends() -> None:
    deadline = Deadline.after(100)
    with interrupts():
        with interrupts():
            signal.raise_signal(signal.SIGINT)
            assert deadline.expired
        assert interrupted() and since() >= 0
        assert deadline.expired and deadline.remaining == 0 and Deadline().expired
        with interrupts():  # a new call ends, too
            assert interrupted()
    assert not interrupted() and not deadline.expired and since() < 0


def test_ctrl_c_raises_outside_calls() -> None:
    assert not request()
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)


def test_second_ctrl_c_raises_unless_immediate() -> None:
    with interrupts():
        for _ in range(3):
            signal.raise_signal(signal.SIGINT)
        time.sleep(SAME + 0.05)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def test_foreign_handlers_are_kept() -> None:
    received = []
    signal.signal(signal.SIGINT, lambda *_: received.append(1))
    try:
        with interrupts():
            signal.raise_signal(signal.SIGINT)
            assert not interrupted()
        assert received == [1]
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def test_calls_in_other_threads_end_too() -> None:
    started, go, seen = threading.Event(), threading.Event(), []

    def work() -> None:
        with interrupts():
            started.set()
            go.wait(20)
            seen.append(interrupted())

    thread = threading.Thread(target=work)
    thread.start()
    assert started.wait(20)
    with interrupts():
        signal.raise_signal(signal.SIGINT)
    assert interrupted()  # the call in the thread still runs
    go.set()
    thread.join(20)
    assert seen == [True]


@pytest.mark.parametrize("method", few(["auto", "lns", "least-peak", "annealing"], 2))
def test_searches_end_at_ctrl_c(method: str) -> None:
    """No search ends within the minute otherwise; sub-models end all the time during the signal."""
    Annealing().prepared(Deadline())  # compile first
    timers: list[tuple[threading.Timer, float]] = []

    def on_progress(progress: Progress) -> None:
        if progress.schedule is not None and not timers:
            timers.append((later(0.3), time.monotonic()))

    if method in ("least-peak", "lns"):  # their first schedules are not reported
        timers.append((later(1.0), time.monotonic() + 0.7))
    if method == "least-peak":
        result = minimize(unit_chain(200), stop=60, options=ONE)
    else:
        problem = Problem(layered(120, seed=1), "80%", "free")
        result = solve(problem, method, stop=60, on_progress=on_progress, options=ONE)
    ((timer, began),) = timers
    assert (result.stop, result.schedule is not None) == ("interrupted", True)
    assert time.monotonic() - began < 0.3 + 2 + 8  # 8 s for a busy machine
    timer.cancel()
