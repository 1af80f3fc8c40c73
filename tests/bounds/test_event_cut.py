"""Minimum cuts of the stage relaxation with one event: the optimum of its linear relaxation, and a choice that fits."""

from __future__ import annotations

import random

import numpy as np
import pytest
from generators import training_graph

from remat.backends.highs import Highs
from remat.bounds.event_cut import EventCut
from remat.bounds.stage_relaxation import StageRelaxation
from remat.graphs.zoo import gpt
from remat.modeling import Linear
from remat.problem import Problem
from remat.runtime.solve_options import SolveOptions
from remat.testing import random_graph

CALL = SolveOptions(threads=1)


def relaxation_of(seed: int) -> StageRelaxation:
    """Return that of a random problem at a random event: with buffers, several outputs, kept tensors and limits."""
    rng = random.Random(seed)
    graph = training_graph(seed, 12, full=True) if seed % 2 else random_graph(seed, 20)
    least, most = graph.structural_bound.peak, graph.reference_peak
    problem = Problem(graph, int(least + rng.random() * (most - least)), max_computes=rng.choice([None, 2, 1]))
    return StageRelaxation(problem, [rng.randrange(len(graph.ops))], slim=True)


@pytest.mark.parametrize(
    ("first", "count"), [(0, 20), *(pytest.param(first, 140, marks=pytest.mark.slow) for first in range(20, 1000, 140))]
)
def test_cuts_solve_the_linear_relaxation_of_one_event(first: int, count: int) -> None:
    """HiGHS agrees on the bound, and accepts the choice as a solution of the integer programme with its cost."""
    outcomes = set()
    for seed in range(first, first + count):
        relaxation = relaxation_of(seed)
        model = relaxation.build()
        linear, cut = Highs().relax(model, CALL), EventCut(relaxation)
        cut.solve()
        assert cut.infeasible == linear.infeasible
        if cut.infeasible:
            assert cut.best is None
            outcomes.add("infeasible")
            continue
        assert cut.best is not None and linear.bound is not None
        assert linear.bound * relaxation.unit == pytest.approx(cut.bound, abs=1)
        assert linear.bound * relaxation.unit <= cut.bound + 1e-6
        assert cut.bound <= cut.best.cost
        assert cut.best.held <= cut.room
        before, after = relaxation.stages
        chosen = model.copy("chosen")
        for columns, on in ((before.live, cut.best.live), (after.again, cut.best.again)):
            there = columns >= 0
            assert not on[~there].any()
            row, side = np.arange(int(there.sum())), on[there].astype(np.float64)
            chosen.add(Linear.rows("chosen", row, columns[there], 1, lower=side, upper=side))
        assert Highs().solve(chosen, CALL).objective == pytest.approx(cut.best.cost / relaxation.unit)
        outcomes.add("optimal" if cut.bound == cut.best.cost else "open")
    assert outcomes == {"infeasible", "optimal", "open"}


def test_as_many_layers_recompute_as_necessary() -> None:
    """All layers are alike, so the two choices differ in each of them; the solution changes just enough of them."""
    relaxation = StageRelaxation(Problem(gpt(layers=60), "50%"), [], slim=True)
    memory = relaxation.problem.graph.arrays.reference_memory
    relaxation = StageRelaxation(relaxation.problem, [int(np.argmax(memory))], slim=True)
    relaxation.build()
    cut = EventCut(relaxation)
    cut.solve()
    assert cut.best is not None
    assert cut.bound < cut.best.cost < 1.02 * cut.bound
    assert 0.98 * cut.room < cut.best.held <= cut.room
