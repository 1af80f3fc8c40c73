"""Naive and two-phase rounding of relaxations."""

from dataclasses import replace

import numpy as np
import pytest
from helpers import ONE
from refusals import refused

from remat import Problem
from remat.errors import FormatError
from remat.experiments.feasible_roundings import _Rounding, round_relaxation
from remat.graphs.families import unit_chain
from remat.graphs.zoo import vgg16
from remat.schedule.certificate import Verdict
from remat.schedule.formats.checkmate import schedule_from_matrices


def test_consistent_matrices_are_valid_schedules():
    """All 2^6 matrices R and S of a chain of one layer: R[t,t] = 1, S[0] = 0."""
    graph = unit_chain(1)
    problem = Problem(replace(graph, outputs=[*graph.outputs, graph.ops[0].outputs[0]]), "100%")
    rounding, kinds = _Rounding(problem), set()
    lower = np.tril_indices(3, -1)
    for bits in range(2**6):
        word = np.array([bits >> k & 1 for k in range(6)], dtype=bool)
        R, S = np.eye(3, dtype=bool), np.zeros((3, 3), dtype=bool)
        R[lower], S[lower] = word[:3], word[3:]
        try:
            valid = problem.validate(schedule_from_matrices(problem.graph, R, S)).verdict is not Verdict.INVALID
        except FormatError:
            valid = False
        consistent = rounding.broken_rows(R[None], S[None])[0] == 0
        assert consistent == valid, (R, S)
        kinds.add(consistent)
    assert kinds == {True, False}


@pytest.mark.parametrize(
    ("graph", "budget", "feasible"), [(unit_chain(16), 6, 1), pytest.param(vgg16(), "90%", 0, marks=pytest.mark.slow)]
)
def test_roundings_of_figure_7(graph, budget, feasible):
    """No naive rounding is feasible; all two-phase ones are schedules, and that at 0.5 is cheaper than their mean."""
    fixed, drawn, two, many = round_relaxation(Problem(graph, budget), 100, options=ONE)
    assert (fixed.feasible, drawn.consistent, drawn.feasible, drawn.samples) == (0, 0, 0, 100)
    assert drawn.broken > 5
    assert (two.consistent, two.broken, many.consistent, many.broken) == (1, 0, 100, 0)
    assert two.feasible == two.share == feasible
    assert 20 < many.feasible < 100
    assert not feasible or two.costs[0] < np.mean(many.costs)


def test_problems_without_a_relaxation_are_refused():
    with refused("problem.no-budget"):
        round_relaxation(Problem(unit_chain(4)))
    with refused("problem.no-relaxation"):
        round_relaxation(Problem(unit_chain(4), 1), options=ONE)


@pytest.mark.parametrize("budget", [10, 12])
def test_integral_relaxation_is_its_own_rounding(budget):
    """With an ample budget R* and S* are a schedule, which rounding at 0.5 reproduces."""
    fixed, _, two, _ = round_relaxation(Problem(unit_chain(8), budget), 1, allowance=0.0, options=ONE)
    assert fixed.costs == two.costs == (17,)
