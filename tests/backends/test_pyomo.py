"""Pyomo: answers against brute force, statuses, hints, deadlines, exported files."""

import re
import time
import warnings

import highspy
import numpy as np
import pytest
from test_highs import best_by_hand, hard, tiny

from remat.backends import pyomo as module
from remat.backends.base import AvailabilityState, SolveOptions, Status, StopReason
from remat.backends.pyomo import Pyomo, export
from remat.backends.pyomo_run import PyomoRun
from remat.errors import BackendError, FormatError, ModelError
from remat.modeling import Linear, Model, violations
from remat.timing import Deadline

pytest.importorskip("pyomo")
SOLVERS = ["cbc", "highs", "glpk", "scip"]


def backend(name, kind=PyomoRun):
    """That solver; the test is skipped, with the reason, where it is not there. CBC and HiGHS always are."""
    made = kind(name)
    state = made.ready()
    if not state.ready and name not in {"cbc", "highs"}:
        pytest.skip(f"{made.full_name}: {state.reason}")
    return made


def options(seconds=None, **other):
    return SolveOptions(deadline=Deadline.after(seconds), threads=1, **other)


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("name", SOLVERS)
def test_tiny_models_against_brute_force(name, seed):
    model, expected = tiny(seed), best_by_hand(seed)
    raw = backend(name).solve(model, options(60))
    if expected is None:
        assert (raw.status, raw.stop) == (Status.INFEASIBLE, StopReason.FINISHED)
        assert raw.objective is raw.bound is raw.values is None
        return
    assert (raw.status, raw.stop) == (Status.OPTIMAL, StopReason.FINISHED), raw.message
    assert raw.objective == raw.bound == expected
    assert violations(model, raw.values) == []
    assert raw.incumbents[-1].objective == expected
    assert set(raw.versions) == {"pyomo", name}
