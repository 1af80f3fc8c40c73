"""Stage bound: peaks, increasing values, and stopping at a known cost."""

from itertools import islice, pairwise

import numpy as np
import pytest

from remat.bounds import best_bound, bounds_in_turn, stage_bound, stage_bounds
from remat.bounds.stage_relaxation import prominent_peaks
from remat.graphs import layered
from remat.graphs.families import unit_chain
from remat.problem import Problem


@pytest.mark.parametrize("seed", range(20))
def test_prominent_peaks_match_their_definition(seed):
    memory = np.random.default_rng(seed).integers(0, 9, 30)
    above = 4
    found = prominent_peaks(memory, above)

    def prominence(k):
        sides = []
        for side in (memory[k::-1], memory[k:]):
            higher = np.flatnonzero(side > memory[k])
            sides.append(int(side[: higher[0]].min()) if len(higher) else -1)
        return int(memory[k]) - max(sides)

    def is_peak(k):
        end = k
        while end < len(memory) and memory[end] == memory[k]:
            end += 1
        rises = k == 0 or memory[k - 1] < memory[k]
        return memory[k] > above and rises and (end == len(memory) or memory[end] < memory[k])

    assert sorted(found) == [k for k in range(len(memory)) if is_peak(k)]
    assert all(prominence(a) >= prominence(b) for a, b in pairwise(found))


def test_stage_bounds_increase():
    problem = Problem(layered(40, 0.35, 2), "85%")
    found = list(stage_bounds(problem, deadline=20, threads=1))
    assert found[0].value == problem.graph.base_cost
    assert all(a.value < b.value and a.seconds <= b.seconds for a, b in pairwise(found))
    assert len(found) > 2


def test_bounds_stop_at_a_known_cost():
    """Bounds are computed lazily, and never beyond the known cost."""
    problem = Problem(unit_chain(8), 4)
    assert stage_bound(problem, enough=26, threads=1).value == 26
    assert stage_bound(problem, enough=24, threads=1).value == 24
    assert [b.value for b in stage_bounds(problem, enough=17, threads=1)] == [17]
    kinds = [bound.kind for bound in islice(bounds_in_turn(problem), 3)]
    assert kinds == ["the structural bound", "the cut bound", "the joint bound"]
    assert best_bound(problem, enough=20, threads=1).kind == "the joint bound"
    assert best_bound(problem, enough=17, threads=1).kind == "computing each op once"
    seen = []
    stopped = best_bound(problem, threads=1, on_bound=lambda bound: seen.append(bound) or True)
    assert seen == [stopped]
    assert stopped.value == 23


def test_stage_bound_without_steps_over_the_budget():
    graph = unit_chain(5)
    for budget in (None, graph.reference_peak):
        assert [b.value for b in stage_bounds(Problem(graph, budget))] == [graph.base_cost]
