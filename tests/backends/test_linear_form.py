"""Linear backends solve the linear form of a formulation and return values of its model."""

import numpy as np
import pytest
from helpers import few, options, usable

from remat.backends.cp_sat import CpSat
from remat.backends.highs import Highs
from remat.backends.isolated import Isolated
from remat.backends.minizinc import MiniZinc
from remat.backends.pyomo import Pyomo
from remat.errors import ModelError
from remat.formulations.retention_intervals import RetentionIntervals
from remat.graphs.families import unit_chain
from remat.modeling import violations
from remat.problem import Problem
from remat.runtime.solve_options import Status
from remat.schedule import Schedule

LINEAR = [Highs(), Isolated(Highs()), Pyomo("highs"), Pyomo("cbc"), MiniZinc("highs")]


@pytest.fixture
def given():
    formulation = RetentionIntervals(Problem(unit_chain(8), 6))
    return formulation, formulation.build()


@pytest.mark.parametrize("backend", few(LINEAR, 2), ids=repr)
def test_solutions_are_values_of_the_model(backend, given):
    formulation, model = given
    usable(backend)
    seen = []
    assert backend.takes_linear_form(model, options())
    raw = backend.solve(model, options(60, relative_gap=0.0), on_incumbent=lambda found: bool(seen.append(found)))
    assert (raw.status, raw.objective, raw.bound) == (Status.OPTIMAL, 21, 21)
    for values in (raw.values, *(found.values for found in (*seen, *raw.incumbents))):
        assert violations(model, values) == []
    assert seen
    assert seen[-1].objective == raw.objective
    assert formulation.problem.validate(formulation.decode(raw.values)).cost == raw.objective


def test_hints_for_the_linear_form(given):
    """A complete hint survives an expired deadline; partial hints are extended, wrong lengths refused."""
    formulation, model = given
    best = Highs().solve(model, options(60)).values
    for seconds in (0, 1e-3, 60):
        raw = Highs().solve(model, options(seconds), hint=best)
        assert raw.objective == 21
        assert violations(model, raw.values) == []
    partial = np.where(np.arange(model.num_vars) % 2, best, np.nan)
    assert Highs().solve(model, options(60), hint=partial).objective == 21
    with pytest.raises(ModelError):
        Highs().solve(model, options(60), hint=best[1:])
    over_budget = formulation.encode(Schedule.reference(formulation.problem.graph))
    assert Highs().solve(model, options(60), hint=over_budget).objective == 21


def test_other_backends_solve_the_records(given):
    _, model = given
    assert not CpSat().takes_linear_form(model, options())
    assert not Highs().takes_linear_form(model.copy("copy"), options())
    usable(MiniZinc("gecode"))
    assert not MiniZinc("gecode").takes_linear_form(model, options())
