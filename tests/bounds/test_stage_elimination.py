"""Elimination of ops: the optimum of the integer programme, whatever the prices, and only valid claims when cut."""

import math
import random
from collections.abc import Iterator

import numpy as np
import pytest
from generators import training_graph
from helpers import some_slow

from remat.backends.highs import Highs
from remat.bounds import stage_elimination
from remat.bounds.stage_elimination import StageElimination
from remat.bounds.stage_relaxation import StageRelaxation
from remat.modeling import Linear
from remat.problem import Problem
from remat.runtime.deadline import Deadline, OverdueError
from remat.runtime.solve_options import SolveOptions
from remat.testing import random_graph

EXACT = SolveOptions(threads=1, relative_gap=0)


@pytest.mark.parametrize("seeds", some_slow([range(10), *(range(20 * k, 20 * k + 20) for k in range(60))], 1))
def test_elimination_finds_the_optimum(seeds: range, monkeypatch: pytest.MonkeyPatch) -> None:
    decided = 0
    for seed in seeds:
        rng = random.Random(seed)
        graph = training_graph(seed, 8) if seed % 2 else random_graph(seed, 16)
        least, most = graph.structural_bound.peak, graph.reference_peak
        limit = 2 if seed % 5 == 0 else None
        problem = Problem(graph, int(least + rng.random() * 0.5 * (most - least)), max_computes=limit)
        relaxation = StageRelaxation(problem, rng.sample(range(len(graph.ops)), rng.choice([1, 1, 2, 3])), slim=True)
        model = relaxation.build()
        whole = Highs().solve(model, EXACT)
        prices = np.array([rng.choice([0.0, 0.1, 1.0]) * rng.random() for _ in relaxation.events])
        search = StageElimination(relaxation, prices)
        found = search.run(None, Deadline())
        if whole.bound is None:
            assert found == (math.inf, None, None)
            continue
        if found == (0, None, None):  # too many states
            continue
        assert whole.objective is not None and found.cost is not None and found.live is not None
        assert found.bound <= round(whole.objective) <= found.cost
        if found.bound < found.cost:  # cut short
            assert len(relaxation.events) > stage_elimination.MOST_EVENTS
            continue
        decided += found.cost > 0
        assert search.run(found.cost - 1, Deadline()).bound == math.inf
        size, ops = graph.arrays.size, graph.arrays.order[relaxation.events]
        assert (found.live @ size + graph.arrays.op_bytes[ops]).max() <= (problem.budget_bytes or 0)
        other = search.live(np.random.default_rng(seed))
        assert (other @ size == found.live @ size).all()
        columns, held = np.array(relaxation.live), other.astype(float)
        index, value = columns[columns >= 0], held[columns >= 0]
        model.add(Linear.rows("held", np.arange(len(index)), index, 1, lower=value, upper=value))
        assert Highs().solve(model, EXACT).objective == pytest.approx(found.cost)
        with monkeypatch.context() as patch:
            patch.setattr(stage_elimination, "MOST_PARTIAL", 2)
            patch.setattr(stage_elimination, "BEAM", 1)
            cut = StageElimination(relaxation, prices).run(None, Deadline())
        assert cut.bound <= found.cost <= (cut.cost or found.cost)
    assert decided > len(seeds) / 5


@pytest.mark.parametrize("seed", range(3, 14, 2))
def test_elimination_continues_after_deadlines(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = training_graph(seed, 8)
    relaxation = StageRelaxation(Problem(graph, "60%"), [len(graph.ops) // 2], slim=True)
    relaxation.build()
    whole = StageElimination(relaxation, np.zeros(1)).run(None, Deadline())
    search, calls = StageElimination(relaxation, np.zeros(1)), 0
    while True:
        calls += 1
        stops = iter([*[None] * calls, OverdueError()])

        def check(_: Deadline, stops: Iterator[OverdueError | None] = stops) -> None:
            if (stop := next(stops)) is not None:
                raise stop

        with monkeypatch.context() as patch:
            patch.setattr(Deadline, "check", check)
            found = search.run(None, Deadline())
        assert whole.cost is not None
        assert found.bound <= whole.bound <= whole.cost <= (found.cost or whole.cost)
        if found.bound == found.cost:
            break
    assert found.cost == whole.cost
    assert calls > 1
    assert not search.pending


def test_elimination_gives_up_where_states_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    relaxation = StageRelaxation(Problem(training_graph(1, 8), "70%"), [8], slim=True)
    relaxation.build()
    assert StageElimination.applies(relaxation)
    monkeypatch.setattr(stage_elimination, "MOST_TRANSITIONS", 1)
    assert StageElimination(relaxation, np.zeros(1)).run(None, Deadline()) == (0, None, None)
