"""Interruptible threads for solvers, messages between processes."""

import os
import threading
import time
from multiprocessing.connection import Connection

import numpy as np
import pytest

from remat.runtime.deadline import Deadline, OverdueError
from remat.runtime.processes import wire
from remat.runtime.processes.running import GRACE, left_behind, run_interruptible


def test_stop_is_called_at_the_deadline():
    stopped = threading.Event()
    began = time.monotonic()
    assert run_interruptible(lambda: stopped.wait(10), stopped.set, Deadline.after(0.2)) is False
    assert 0.2 <= time.monotonic() - began < 0.2 + GRACE


def test_work_that_does_not_stop_is_left_behind():
    released = threading.Event()
    began = time.monotonic()
    with pytest.raises(OverdueError, match="did not stop at its deadline"):
        run_interruptible(lambda: released.wait(10), lambda: None, Deadline.after(0.2))
    assert 0.2 + GRACE <= time.monotonic() - began < 0.8 + GRACE
    assert left_behind() == 1
    released.set()
    for _ in range(100):
        if not left_behind():
            break
        time.sleep(0.01)
    assert left_behind() == 0


# -- messages ----------------------------------------------------------------------------------------------------------


def received(content):
    """Return a pipe that holds `content` and whose other end is closed."""
    reading, writing = os.pipe()
    with os.fdopen(writing, "wb") as stream:
        stream.write(content)
    return Connection(reading, writable=False)


def test_incomplete_message_is_none():
    reading, writing = os.pipe()
    with Connection(writing, readable=False) as connection:
        wire.write(connection, wire.Message("m", {"a": 1}, {"x": np.arange(9)}))
    with os.fdopen(reading, "rb") as stream:
        whole = stream.read()
    for end in (0, 3, 20, len(whole) - 1):
        assert wire.read(received(whole[:end])) is None
    assert wire.read(received(whole)).arrays["x"].tolist() == list(range(9))
