"""Path cuts: exact separation, the same integer optimum, and a linear relaxation that more events do not lower."""

import random
from collections.abc import Sequence

import numpy as np
import pytest
from generators import training_graph
from helpers import some_slow

from remat.backends.highs import Highs
from remat.bounds.path_cuts import PathCuts, tightened
from remat.bounds.stage_relaxation import StageRelaxation
from remat.graphs.families import unit_chain
from remat.problem import Problem
from remat.runtime.solve_options import SolveOptions
from remat.testing import random_graph

CALL = SolveOptions(threads=1)


def relaxation_of(seed: int, slim: bool) -> StageRelaxation:
    """Return that of a random problem without buffers, with three to eight events."""
    rng = random.Random(seed)
    graph = training_graph(seed, 8) if seed % 2 else random_graph(seed, 16)
    least, most = graph.structural_bound.peak, graph.reference_peak
    problem = Problem(graph, int(least + rng.random() * 0.5 * (most - least)))
    count = len(graph.ops)
    return StageRelaxation(problem, rng.sample(range(count), min(count, rng.randint(3, 8))), slim)


@pytest.mark.parametrize("block", some_slow(range(200), 1))
def test_path_cuts_keep_the_integer_optimum(block: int) -> None:
    """Integer solutions of graphs without buffers violate none, so only the linear relaxation rises."""
    for seed in range(6 * block, 6 * block + 6):
        for slim in (False, True):
            relaxation = relaxation_of(seed, slim)
            model = relaxation.build()
            linear, whole = Highs().relax(model, CALL), Highs().solve(model, CALL)
            cut = tightened(relaxation, model, CALL)
            if cut.linear.infeasible or linear.infeasible:
                assert whole.bound is None
                continue
            assert linear.bound - 1e-6 <= cut.linear.bound
            for each in (cut.full, cut.lean):
                assert Highs().solve(each, CALL).bound == pytest.approx(whole.bound)


@pytest.mark.parametrize("seeds", [(0, 5, 8, 13), pytest.param(range(24), marks=pytest.mark.slow)], ids=len)
def test_other_events_do_not_lower_the_relaxation_of_the_main_one(seeds: Sequence[int]) -> None:
    """They do without path cuts and a main event, on two graphs. Its rows keep the integer optimum."""
    lowered = 0
    for seed in seeds:
        several = relaxation_of(seed, True)
        main = several.events[len(several.events) // 2]
        alone = Highs().relax(StageRelaxation(several.problem, [main], True).build(), CALL)
        plain = several.build()
        before = Highs().relax(plain, CALL)
        if before.infeasible:
            continue
        lowered += before.bound < alone.bound - 1
        assert tightened(several, plain, CALL).linear.bound >= alone.bound - 1e-6
        several.main = main
        model = several.build()
        assert Highs().relax(model, CALL).bound >= alone.bound - 1e-6
        assert Highs().solve(model, CALL).bound == pytest.approx(Highs().solve(plain, CALL).bound)
    assert lowered == 2


def test_separation_names_the_tensors_and_runs_of_a_path() -> None:
    """A stage in which nothing runs again, and an event at which nothing is live, violate the longest cut."""
    relaxation = StageRelaxation(Problem(unit_chain(3), 4), [3, 6])
    model = relaxation.build()
    cuts = PathCuts(relaxation)
    found = cuts.separate(np.zeros(model.num_vars))
    assert found == cuts.cuts
    assert all(cut.lower == 1 and set(cut.coefficients) == {1} for cut in found)
    assert cuts.separate(np.zeros(model.num_vars)) == []
    assert cuts.separate(np.ones(model.num_vars)) == []
