"""Backends: more tiny models than the conformance kit has, stop reasons, invalid options and Ctrl-C."""

import os
import signal
import time

import numpy as np
import pytest
from helpers import few, options, usable
from refusals import refused

from remat.backends.cp_sat import CpSat
from remat.backends.highs import Highs
from remat.backends.isolated import Isolated
from remat.backends.minizinc import MiniZinc
from remat.backends.pyomo import Pyomo
from remat.backends.pyomo.run import PyomoRun
from remat.modeling import Linear, Model, violations
from remat.runtime.solve_options import Status, StopReason
from remat.testing import BACKEND_CHECKS, Effort
from remat.testing.backend_checks import knapsack
from remat.testing.raw_models import KINDS

CHECKS = {check.__name__: check for check in BACKEND_CHECKS}
#: Backends with kinds of records and the number of models of each. HiGHS stands for all linear solvers behind bridges.
#: Its models and those of CP-SAT are slow: the conformance kit has some of each kind.
CASES = [
    (Highs(), KINDS, 12),
    (CpSat(), KINDS, 12),
    (Isolated(Highs()), ["linear"], 4),
    (Isolated(CpSat()), ["reservoir"], 4),
    *((PyomoRun(solver), ["linear", "equality", "enforced"], 3) for solver in ("cbc", "highs", "glpk", "scip")),
    *((Pyomo(solver), ["clauses"], 1) for solver in ("cbc", "highs", "glpk")),
]


def named(cases):
    """Make parameters whose ids name the backend, which is the first part of each case."""
    words = [[type(case[0]).__name__, case[0].full_name, *(x for x in case if isinstance(x, str))] for case in cases]
    return [pytest.param(*case, id="-".join(parts)) for case, parts in zip(cases, words, strict=True)]


@pytest.mark.parametrize(
    ("backend", "kind", "number"),
    few(named([(backend, kind, number) for backend, kinds, number in CASES[:2] for kind in kinds]), 2)
    + named([(backend, kind, number) for backend, kinds, number in CASES[2:] for kind in kinds]),
)
def test_tiny_models(backend, kind, number):
    CHECKS[kind.replace(" ", "_")](usable(backend), Effort(cases=number))


def lp():
    """Maximise x + y: 2.5 at (2, 0.5)."""
    model = Model("lp")
    x = model.continuous("x", 2, 0, [2, np.inf])
    model.add(Linear.rows("row", [0, 0], x.index, [1, 2], upper=[3]))
    model.minimize(x.index, -1, 10.0)
    return model


def mixed():
    """Rows over continuous and integer variables."""
    model = Model("mixed")
    both = np.concatenate([model.integers("x", 1, 0, 9).index, model.continuous("z", 1, 0.25).index])
    model.add(
        Linear.rows("row", [0, 0], both, [2, 4], upper=[15.5]),
        Linear.rows("half", [0, 0], both, [1, -2], lower=1.5, upper=1.5),
    )
    model.minimize(both, [-1, -0.5])
    return model


def loose():
    """Variables without rows and costs."""
    model = Model("loose")
    x = model.integers("x", 4, [-2, 1, 0, 3], [2, 5, 9, 3])
    model.add(Linear.rows("row", [0, 0], x[:2], 1, lower=[2], upper=[2]))
    model.minimize(x[:1], 1)
    return model


@pytest.mark.parametrize(
    "backend", named([(Highs(),), *((PyomoRun(name),) for name in ("cbc", "highs", "glpk")), (MiniZinc("highs"),)])
)
def test_continuous_and_loose_variables(backend):
    usable(backend)
    for model, objective, values in ((lp(), 7.5, [2, 0.5]), (mixed(), -4.625, [4.0, 1.25]), (loose(), -2, None)):
        raw = backend.solve(model, options(60, relative_gap=0.0))
        assert raw.status is Status.OPTIMAL
        assert raw.objective == raw.bound == pytest.approx(objective)
        assert raw.values == pytest.approx(values) if values else violations(model, raw.values) == []


@pytest.mark.parametrize(
    ("backend", "limits", "stop"),
    named([
        (Highs(), {"relative_gap": 0.2}, StopReason.GAP),
        (Highs(), {"solver": {"mip_max_nodes": 1}}, StopReason.OTHER),
        (CpSat(), {"relative_gap": 0.5}, StopReason.GAP),
        (CpSat(), {"solver": {"stop_after_first_solution": True}}, StopReason.OTHER),
        (PyomoRun("cbc"), {"relative_gap": 0.2}, StopReason.GAP),
        (PyomoRun("highs"), {"relative_gap": 0.2}, StopReason.GAP),
        (PyomoRun("highs"), {"solver": {"mip_max_improving_sols": 1}}, StopReason.OTHER),
    ]),
)  # fmt: skip
def test_stop_reasons(backend, limits, stop):
    raw = backend.solve(knapsack(120), options(60, **limits))
    assert (raw.status, raw.stop) == (Status.FEASIBLE, stop)
    assert raw.bound < raw.objective
    assert stop is not StopReason.GAP or raw.objective - raw.bound <= limits["relative_gap"] * abs(raw.objective)


@pytest.mark.parametrize(
    ("backend", "name", "value", "kind"),
    named([
        (Highs(), "mip_presolve", 1, "no-option"),
        (Highs(), "mip_max_nodes", "many", "option-value"),
        (Highs(), "threads", "all", "option-value"),
        (CpSat(), "nonsense", 1, "no-option"),
        (Isolated(CpSat()), "nonsense", 1, "no-option"),
        (MiniZinc("gecode"), "restart", "sometimes", "option-value"),
        (MiniZinc("gecode"), "node", 1.5, "option-value"),
        (MiniZinc("gecode"), "nogoods", "yes", "option-value"),
        (MiniZinc("gecode"), "generic", 3, "option-value"),
    ]),
)  # fmt: skip
def test_invalid_solver_options(backend, name, value, kind):
    usable(backend)
    with refused(f"backend.{kind}", culprit=name):
        backend.solve(knapsack(6), options(solver={name: value}))


@pytest.mark.skipif(os.name != "posix", reason="sends SIGINT")
@pytest.mark.parametrize(("backend", "size"), named([(Highs(), 120), (MiniZinc("gecode"), 60)]))
def test_ctrl_c_keeps_the_incumbent(backend, size):
    usable(backend)
    sent = []

    def interrupt(incumbent):
        sent.append(time.monotonic())
        os.kill(os.getpid(), signal.SIGINT)

    raw = backend.solve(knapsack(size), options(100), on_incumbent=lambda found: None if sent else interrupt(found))
    assert time.monotonic() - sent[0] < 20
    assert (raw.status, raw.stop) == (Status.FEASIBLE, StopReason.INTERRUPTED)
    assert raw.objective == raw.incumbents[-1].objective
