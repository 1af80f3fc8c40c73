"""Answers to more tiny models than the conformance kit has, against enumeration, and what Ctrl-C leaves."""

import os
import signal
import time

import pytest
from helpers import options

from remat.backends.base import Status, StopReason
from remat.backends.cp_sat import CpSat
from remat.backends.highs import Highs
from remat.backends.processes.isolated import Isolated
from remat.backends.pyomo import Pyomo
from remat.backends.pyomo.run import PyomoRun
from remat.modeling import violations
from remat.registry import make_backend
from remat.testing.backend_checks import knapsack
from remat.testing.raw_models import KINDS, tiny_models

#: Backends with kinds of records and the number of models of each. The bridges before linear solvers are HiGHS's task.
CASES = [
    (Highs(), KINDS, 12),
    (CpSat(), KINDS, 12),
    (Isolated(Highs()), ["linear"], 4),
    (Isolated(CpSat()), ["reservoir"], 4),
    *((PyomoRun(solver), ["linear", "equality", "enforced"], 3) for solver in ("cbc", "highs", "glpk", "scip")),
    *((Pyomo(solver), ["clauses"], 1) for solver in ("cbc", "highs", "glpk")),
]


@pytest.mark.parametrize(
    ("backend", "kind", "number"),
    [
        pytest.param(backend, kind, number, id=f"{type(backend).__name__}-{backend.full_name}-{kind}")
        for backend, kinds, number in CASES
        for kind in kinds
    ],
)
def test_tiny_models(backend, kind, number):
    if not backend.ready().ready and backend.variant not in {"cbc", "highs"}:
        pytest.skip(backend.ready().reason)
    for tiny in tiny_models(kind, number):
        seen = []
        raw = backend.solve(tiny.model, options(60, relative_gap=0.0), on_incumbent=seen.append)
        assert raw.stop is StopReason.FINISHED, raw.message
        assert seen == list(raw.incumbents)
        assert raw.versions
        if tiny.optimum is None:
            assert raw.status is Status.INFEASIBLE
            assert raw.objective is raw.bound is raw.values is None
        else:
            assert raw.status is Status.OPTIMAL
            assert raw.objective == raw.bound == raw.incumbents[-1].objective == tiny.optimum
            assert violations(tiny.model, raw.values) == []
            assert raw.values.shape == (tiny.model.num_vars,)


@pytest.mark.skipif(os.name != "posix", reason="sends SIGINT")
@pytest.mark.parametrize(("name", "size"), [("highs", 120), ("minizinc:gecode", 60)])
def test_ctrl_c_keeps_the_best(name, size):
    backend, told = make_backend(name), []
    if not backend.ready().ready:
        assert not os.environ.get("REMAT_CI"), backend.ready().reason
        pytest.skip(f"{name} is {backend.ready().state}")

    def interrupt(incumbent):
        told.append(time.monotonic())
        os.kill(os.getpid(), signal.SIGINT)

    raw = backend.solve(knapsack(size), options(100), on_incumbent=lambda found: None if told else interrupt(found))
    assert time.monotonic() - told[0] < 20
    assert (raw.status, raw.stop) == (Status.FEASIBLE, StopReason.INTERRUPTED)
    assert raw.objective == raw.incumbents[-1].objective
