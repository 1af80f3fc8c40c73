"""Fixtures of the tests of comparisons, frontiers and largest batches."""

import pytest
from scripted import ABSENT, register

from remat.backends.base import Availability
from remat.backends.results import RawResult
from remat.runtime.solve_options import Status, StopReason


@pytest.fixture
def faulty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Register solver `faulty`, whose variants crash, are unavailable, are interrupted or find nothing."""
    register(
        monkeypatch, "faulty", crash=ZeroDivisionError("in the middle of it"), **{"ctrl-c": KeyboardInterrupt()},
        absent=Availability(ABSENT, "pip install\nfaulty"),
        stopped=RawResult(Status.UNKNOWN, StopReason.INTERRUPTED),
        silent=RawResult(Status.UNKNOWN, StopReason.DEADLINE),
    )  # fmt: skip
