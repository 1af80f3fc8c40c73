"""Solvers of stage programmes: CP-SAT and HiGHS agree, and another optimum holds as little as possible."""

from __future__ import annotations

import random

import numpy as np
import pytest
from generators import training_graph

from remat.backends.highs import Highs
from remat.bounds.stage_relaxation import StageRelaxation
from remat.bounds.stage_solvers import holding_less, in_whole_numbers, solve_programme
from remat.modeling.check import violations
from remat.modeling.rows import rows_from
from remat.problem import Problem
from remat.runtime.solve_options import SolveOptions, Status

EXACT = SolveOptions(threads=1, relative_gap=0.0)
SEEDS = [*range(4), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(4, 60))]


@pytest.mark.parametrize("seed", SEEDS)
def test_another_optimum_holds_as_little_as_possible(seed: int) -> None:
    rng = random.Random(seed)
    graph = training_graph(seed, 8)
    least, most = graph.structural_bound.peak, graph.reference_peak
    problem = Problem(graph, int(least + rng.random() * 0.5 * (most - least)))
    events = rng.sample(range(len(graph.ops)), rng.randint(2, 6))
    relaxation = StageRelaxation(problem, events, True, rng.choice(events))
    model = relaxation.build()
    expected, found = Highs().solve(model, EXACT), solve_programme(relaxation, model, EXACT, -1)
    assert found.status is expected.status
    assert found.objective == expected.objective
    if found.status is Status.INFEASIBLE:
        return
    assert not violations(in_whole_numbers(relaxation, model), found.values)
    live, size = np.array(relaxation.live), graph.arrays.size
    event, tensor = np.nonzero(live >= 0)
    columns, weights = live[event, tensor], size[tensor]
    less = model.copy("least memory")
    terms = (0, model.objective.index, model.objective.coefficient)
    less.add(rows_from("cost", terms, num_rows=1, upper=found.objective))
    less.minimize(columns, weights)
    values = holding_less(relaxation, model, found.values, EXACT, lambda _: False)
    assert not violations(less, values)
    assert weights @ values[columns] == Highs().solve(less, EXACT).objective
    assert np.array_equal(holding_less(relaxation, model, values, EXACT, lambda _: True), values)
