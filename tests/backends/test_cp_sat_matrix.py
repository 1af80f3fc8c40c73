"""CP-SAT's door for matrices: the same answers as the other one."""

import re

import numpy as np
import pytest
from test_highs import best_by_hand, hard, tiny

from remat.backends.base import SolveOptions, Status, StopReason
from remat.backends.cp_sat import CpSat
from remat.deadline import Deadline
from remat.errors import BackendError, ModelError
from remat.formulations.checkmate import Checkmate
from remat.graphs.families import unit_chain
from remat.modeling import Clauses, Linear, Model, PlainLinear, lower, violations
from remat.problem import Problem


def options(seconds=60.0, **solver):
    return SolveOptions(deadline=Deadline.after(seconds), threads=1, solver={"door": "matrix", **solver})


@pytest.mark.parametrize("seed", range(10))
def test_tiny_models_against_brute_force(seed):
    model, expected = lower(tiny(seed), {PlainLinear}).model, best_by_hand(seed)
    raw = CpSat().solve(model, options())
    if expected is None:
        assert (raw.status, raw.stop, raw.bound) == (Status.INFEASIBLE, StopReason.FINISHED, None)
    else:
        assert (raw.status, raw.stop) == (Status.OPTIMAL, StopReason.FINISHED)
        assert raw.objective == raw.bound == expected
        assert violations(model, raw.values) == []


def test_checkmate():
    raw = CpSat().solve(Checkmate(Problem(unit_chain(6), 4)).build(), options())
    assert raw.objective == raw.bound == 18


def test_the_deadline_keeps_the_best_and_a_bound():
    raw = CpSat().solve(hard(), options(3))
    assert (raw.status, raw.stop) == (Status.FEASIBLE, StopReason.DEADLINE)
    assert violations(hard(), raw.values) == []
    assert raw.bound <= raw.objective < -1500


def test_a_hint_survives():
    start = CpSat().solve(hard(), options(3)).values
    seen = []
    raw = CpSat().solve(hard(), options(3), start, seen.append)
    assert seen[0].values.tolist() == start.tolist()
    assert raw.objective <= seen[0].objective
    raw = CpSat().solve(hard(), options(0), start)
    assert (raw.status, raw.stop, raw.bound) == (Status.FEASIBLE, StopReason.DEADLINE, None)


def test_parameters_are_passed_on():
    raw = CpSat().solve(hard(), options(60, stop_after_first_solution=True))
    assert raw.status is Status.FEASIBLE
    with pytest.raises(BackendError, match="CP-SAT has no parameter 'nonsense'"):
        CpSat().solve(hard(), options(nonsense=1))


def test_what_it_does_not_take():
    with pytest.raises(BackendError, match="CP-SAT has the doors 'proto' and 'matrix', not 'back'"):
        CpSat().solve(hard(), SolveOptions(solver={"door": "back"}))
    model = Model("clauses")
    x = model.booleans("x", 2)
    model.add(Clauses.pairs("either", x[:1], x[1:]))
    with pytest.raises(ModelError, match=r"record 'either' .* is not linear"):
        CpSat().solve(model, options())
    model = Model("halves")
    x = model.booleans("x", 2)
    model.add(Linear.rows("row", [0, 0], x.index, [0.5, 1], lower=[1]))
    with pytest.raises(ModelError, match=re.escape("a coefficient of 'row' is 0.5")):
        CpSat().solve(model, options())
    model = Model("reals")
    model.continuous("y", 1)
    with pytest.raises(ModelError, match="block 'y' is continuous"):
        CpSat().solve(model, options(), np.zeros(1))
