"""Ctrl-C while something works: a flag for all calls that run, and every one of them ends with the best that it has."""

import os
import signal
import threading
import time
from collections.abc import Iterator

import pytest
from helpers import ONE

from remat import Problem, solve
from remat.graphs.families import unit_chain
from remat.graphs.layered import layered
from remat.heuristics.annealing import Annealing
from remat.runtime.deadline import Deadline
from remat.runtime.interruption import SAME, interrupted, interrupts, request, since
from remat.solving.min_peak import minimize


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    yield
    assert not interrupted()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def later(seconds: float) -> threading.Timer:
    """Ctrl-C after a while."""
    timer = threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGINT))
    timer.daemon = True
    timer.start()
    return timer


def test_a_call_that_ends_by_itself_does_not_take_the_flag_away() -> None:
    deadline = Deadline.after(100)
    with interrupts():
        with interrupts():
            signal.raise_signal(signal.SIGINT)
            assert deadline.expired
        assert interrupted() and since() >= 0
        assert deadline.expired and deadline.remaining == 0 and Deadline().expired
        with interrupts():  # one that begins now is to end, too
            assert interrupted()
    assert not interrupted() and not deadline.expired and since() < 0


def test_nobody_looks_so_it_is_raised() -> None:
    assert not request()
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)


def test_a_second_one_is_raised_and_a_double_is_not() -> None:
    with interrupts():
        for _ in range(3):
            signal.raise_signal(signal.SIGINT)
        time.sleep(SAME + 0.05)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def test_somebody_elses_handler_stays() -> None:
    heard = []
    signal.signal(signal.SIGINT, lambda *_: heard.append(1))
    try:
        with interrupts():
            signal.raise_signal(signal.SIGINT)
            assert not interrupted()
        assert heard == [1]
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def test_calls_in_other_threads_install_nothing_and_end_too() -> None:
    there, go, seen = threading.Event(), threading.Event(), []

    def work() -> None:
        with interrupts():
            there.set()
            go.wait(20)
            seen.append(interrupted())

    thread = threading.Thread(target=work)
    thread.start()
    assert there.wait(20)
    with interrupts():
        signal.raise_signal(signal.SIGINT)
    assert interrupted()  # it has not ended yet
    go.set()
    thread.join(20)
    assert seen == [True]


@pytest.mark.parametrize("method", ["lns", "auto", "annealing", "least-peak"])
def test_a_search_ends_at_ctrl_c(method: str) -> None:
    """Nothing here ends by itself within the minute, and sub-models end all the time while the signal is on its way."""
    Annealing().prepared(Deadline())  # compiling is not what is looked at here
    timer = later(1.0)
    began = time.monotonic()
    if method == "least-peak":
        result = minimize(unit_chain(200), stop=60, options=ONE)
    else:
        result = solve(Problem(layered(120, seed=1), "80%", "free"), method, stop=60, options=ONE)
    assert (result.stop, result.schedule is not None) == ("interrupted", True)
    assert time.monotonic() - began < 1.0 + 2 + 8  # the last for a busy machine
    timer.cancel()
