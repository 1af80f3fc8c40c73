"""CP-SAT: seeds, hints and unsupported models."""

import gc

import numpy as np
from helpers import options
from refusals import refused

from remat.backends.cp_sat import CpSat
from remat.backends.cp_sat.run import CpSatRun
from remat.modeling import Domain, Linear, Model
from remat.runtime.solve_options import Status
from remat.testing.backend_checks import knapsack


def test_same_seed_same_answer():
    first, second = (CpSat().solve(knapsack(20), options(seed=3)) for _ in range(2))
    assert np.array_equal(first.values, second.values)
    assert first.bound == second.bound


def test_unsupported_models_are_refused():
    model = Model("m")
    x = model.continuous("flow", 1, 0, 1)
    with refused("model.continuous", culprit="flow"):
        CpSat().solve(model, options())
    model = Model("m")
    x = model.integers("x", 1, 0, 5)
    model.add(Linear.rows("half", [0], x.index, 0.5, upper=1))
    with refused("model.not-whole", culprit="half"):
        CpSat().solve(model, options())
    with refused("backend.no-variants", culprit="cp-sat:other"):
        CpSat("other")


def test_empty_domain_is_infeasible():
    model = Model("m")
    x = model.integers("x", 1, 0, 5)
    model.add(Domain("nothing left", x.index, np.array([0, 1]), np.array([9])))
    assert CpSat().solve(model, options()).status is Status.INFEASIBLE


def test_runs_and_their_models_are_released():
    """The engine keeps its callbacks, and is not seen by the garbage collector."""
    CpSat().solve(knapsack(10), options())
    gc.collect()
    assert not [each for each in gc.get_objects() if type(each) is CpSatRun]
