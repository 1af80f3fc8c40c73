"""Pyomo: hints, deadlines, wrong answers of solvers, availability."""

import re
import time

import helpers
import numpy as np
import pytest
from refusals import refused
from test_answers import lp

from remat.backends.base import AvailabilityState
from remat.backends.highs import Highs
from remat.backends.pyomo import run
from remat.backends.pyomo import solvers as module
from remat.backends.pyomo.backend import Pyomo
from remat.backends.pyomo.run import PyomoRun
from remat.modeling import Linear, Model, violations
from remat.runtime.solve_options import Status, StopReason
from remat.testing.backend_checks import knapsack

#: Takes more than a few seconds.
HARD = knapsack(120)


@pytest.fixture(autouse=True, scope="module")
def warm_server():
    """Import Pyomo in the fork server, which takes seconds, before any test is timed."""
    Pyomo("cbc").solve(lp(), options(60))


def options(seconds=None, **other):
    return helpers.options(seconds, **{"relative_gap": 0.0, **other})


def test_cbc_solution_without_rows():
    """CBC drops implied rows; regression: its solution file then has columns only, which were read as rows."""
    model = Model("implied")
    x = model.booleans("x", 2)
    model.add(Linear.rows("rows", [0, 0, 1, 2, 2], x.index[[0, 1, 1, 0, 1]], [1, -1, 8, 4, -4], lower=[0, -9, -9],
                          upper=[9, 6, 2]))  # fmt: skip
    model.minimize([], [], 6)
    raw = PyomoRun("cbc").solve(model, options(60))
    assert (raw.status, raw.objective, raw.values.tolist()) == (Status.OPTIMAL, 6, [0, 0])


def test_deadline_keeps_the_incumbent_of_cbc():
    """With and without a hint; CBC logs that it starts from one."""
    start = Highs().solve(HARD, options(0.5), np.zeros(120)).values
    for hint in (None, start):
        for seconds in (1.5, 5, 48):  # a busy machine may find nothing in 1.5 s
            lines = []
            raw = Pyomo("cbc").solve(HARD, options(seconds, log=lines.append), hint)
            if raw.objective is not None and (hint is None or any("mip" in line.lower() for line in lines)):
                break
        assert (raw.status, raw.stop) == (Status.FEASIBLE, StopReason.DEADLINE)
        assert violations(HARD, raw.values) == []
        assert raw.bound is not None and -5100 < raw.bound < raw.objective
        assert raw.bound < -4919  # a value that HiGHS finds
        if hint is not None:
            assert raw.objective <= HARD.objective.value(start)
            assert raw.incumbents[0].values.tolist() == start.tolist()
            assert any(re.search(r"(?i)mip ?start", line) for line in lines)


def test_options_reach_the_solver_unchanged():
    lines = []
    PyomoRun("cbc").solve(knapsack(6), options(60, seed=7, solver={"maxNodes": 77}, log=lines.append))
    log = "\n".join(lines)
    assert "-maxNodes 77" in log and "-randomCbcSeed 7" in log and "-threads 1" in log


def test_wrong_solutions_are_errors(monkeypatch):
    genuine = run._Call._values
    monkeypatch.setattr(run._Call, "_values", lambda self: genuine(self) + 0.4)
    raw = PyomoRun("highs").solve(knapsack(6), options(60))
    assert raw.status is Status.ERROR
    assert re.match(r"highs gives a wrong solution: highs gives \S+ for integer variable number \d", raw.message)


def test_fractional_values_of_a_stopped_solver_are_discarded(monkeypatch):
    """CBC writes values of the relaxation when the deadline precedes its first solution."""
    monkeypatch.setattr(run._Call, "_values", lambda self: np.full(120, 0.5))
    for hint, status in ((np.zeros(120), Status.FEASIBLE), (None, Status.UNKNOWN)):
        raw = PyomoRun("cbc").solve(HARD, options(0.6), hint)
        assert (raw.status, raw.stop) == (status, StopReason.DEADLINE)
        assert raw.objective == (None if hint is None else 0)


def test_availability():
    assert Pyomo.availability().ready
    assert Pyomo("cbc").ready().ready and Pyomo("highs").ready().ready
    assert {"cbc", "highs", "glpk", "gurobi"} <= set(Pyomo.variants())
    unknown = Pyomo("no-such-solver").ready()
    assert unknown.state is AvailabilityState.NOT_INSTALLED and "no-such-solver" in unknown.reason
    with refused("backend.unavailable", culprit="pyomo:no-such-solver"):
        Pyomo("no-such-solver").solve(lp(), options(5))


def test_missing_solver(monkeypatch):
    genuine = module.importlib.util.find_spec
    monkeypatch.setattr(
        module.importlib.util, "find_spec", lambda name: None if name in {"cbcbox", "highspy"} else genuine(name)
    )
    monkeypatch.setattr(module, "find_program", lambda name: None)
    assert Pyomo("cbc").ready().reason == "cbc is not installed: pip install cbcbox, or put a cbc program on the path"
    assert Pyomo("highs").ready().state is AvailabilityState.NOT_INSTALLED
    monkeypatch.setattr(module, "find_program", lambda name: f"/opt/{name}")
    assert "/opt/cbc" in Pyomo("cbc").ready().reason


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("most", [3, run.MANY_ROWS])
def test_warning_about_many_rows_is_in_result_and_log(monkeypatch, capfd, most):
    """Standard output and error stay empty."""
    monkeypatch.setattr(run, "MANY_ROWS", most)
    lines = []
    raw = PyomoRun("cbc").solve(knapsack(8), options(60, log=lines.append))
    assert raw.status is Status.OPTIMAL
    for text in (raw.message, "\n".join(lines)):
        assert ("more than Pyomo builds quickly" in text) is (most == 3)
    assert capfd.readouterr() == ("", "")


# -- files -------------------------------------------------------------------------------------------------------------


def test_building_stops_at_the_deadline():
    """Pyomo builds the model in half a minute."""
    model = Model("wide")
    x = model.booleans("x", 400_000)
    model.add(Linear.rows("row", np.arange(400_000), x.index, 1, upper=np.ones(400_000)))
    model.minimize(x.index, -1)
    began = time.monotonic()
    raw = Pyomo("cbc").solve(model, options(0.6))
    assert time.monotonic() - began < 1.6
    assert (raw.status, raw.stop) == (Status.UNKNOWN, StopReason.DEADLINE)
