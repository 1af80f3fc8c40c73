"""Bookkeeping of incumbents, bounds and verdicts during a solve."""

import time

import numpy as np
import pytest
from refusals import refused

from remat.backends.bookkeeping import Bookkeeping
from remat.modeling import Model
from remat.runtime.deadline import Deadline
from remat.runtime.solve_options import Status, StopReason


def bookkeeping_of_one(on_incumbent=None, on_bound=None):
    model = Model("one")
    x = model.integers("x", 1, 0, 9)
    model.minimize(x.index, 1)
    stopped = []
    return Bookkeeping(
        "S", model, Deadline(started=time.monotonic() - 5), on_incumbent, on_bound, lambda: stopped.append(1)
    ), stopped


def test_incumbents_and_bounds_only_improve():
    seen, bounds = [], []
    kept, stopped = bookkeeping_of_one(
        lambda found: seen.append(found.objective), lambda _, bound: bounds.append(bound)
    )
    for value in (5, 7, 5, 3):
        kept.found(np.array([float(value)]))
    for bound in (None, 0.0, -1.0, 2.0, 1.0):
        kept.raise_bound(bound)
    assert (seen, bounds, kept.best.objective, stopped) == ([5, 3], [0.0, 2.0], 3, [])
    assert kept.best.time == pytest.approx(5, abs=0.5)  # on the clock of the deadline
    kept.closed = True
    kept.found(np.array([1.0]))
    kept.raise_bound(3.0)
    assert (kept.best.objective, kept.bound) == (3, 2.0)


@pytest.mark.parametrize(
    ("claimed", "bound", "gap", "expected"),
    [
        (Status.OPTIMAL, 4.0, 0.1, (Status.OPTIMAL, StopReason.FINISHED, 4.0)),
        (Status.OPTIMAL, 9.0, 0.1, (Status.OPTIMAL, StopReason.FINISHED, 4.0)),
        (Status.OPTIMAL, 0.0, 0.1, (Status.FEASIBLE, StopReason.GAP, 0.0)),
        (Status.FEASIBLE, 2.0, 0.0, (Status.FEASIBLE, StopReason.DEADLINE, 2.0)),
        (Status.UNKNOWN, None, 0.0, (Status.FEASIBLE, StopReason.DEADLINE, None)),
    ],
)
def test_verdict_with_a_solution(claimed, bound, gap, expected):
    kept, _ = bookkeeping_of_one()
    kept.found(np.array([4.0]))
    kept.raise_bound(bound)
    assert kept.conclude(claimed, StopReason.DEADLINE, relative_gap=gap) == expected
    with refused("backend.not-infeasible"):
        kept.conclude(Status.INFEASIBLE, StopReason.OTHER, relative_gap=0)


def test_error_status_keeps_the_incumbent():
    kept, _ = bookkeeping_of_one()
    assert not kept.proved
    kept.found(np.array([4.0]), notify=False)
    kept.raise_bound(4.0 - 1e-7)
    assert kept.proved
    verdict = kept.conclude(Status.ERROR, StopReason.OTHER, relative_gap=0)
    result = kept.result(verdict, (1.0, 2.0), "why")
    assert (result.status, result.objective, result.values.tolist(), result.message) == (Status.ERROR, 4, [4.0], "why")
    assert (result.build_seconds, result.solve_seconds, len(result.incumbents)) == (1, 2, 1)
