"""Partial solutions that meet: the optimum of the integer programme, whatever the prices, and only valid claims."""

import math
import random

import numpy as np
import pytest
from generators import training_graph
from helpers import few

from remat.backends.highs import Highs
from remat.backends.results import RawResult
from remat.bounds import stage_demands, stage_meeting, stage_programmes
from remat.bounds.stage_meeting import StageMeeting
from remat.bounds.stage_programmes import StageProgrammes
from remat.bounds.stage_relaxation import StageRelaxation
from remat.modeling import Linear
from remat.problem import Problem
from remat.runtime.deadline import Deadline
from remat.runtime.solve_options import SolveOptions, Status, StopReason
from remat.testing import random_graph

EXACT = SolveOptions(threads=1, relative_gap=0)


@pytest.mark.parametrize("seeds", few((range(20 * k, 20 * k + 20) for k in range(60)), 1))
def test_meeting_finds_the_optimum(seeds: range, monkeypatch: pytest.MonkeyPatch) -> None:
    decided = 0
    for seed in seeds:
        rng = random.Random(seed)
        graph = training_graph(seed, 8) if seed % 2 else random_graph(seed, 16)
        least, peak = graph.structural_bound.peak, graph.reference_peak
        limit = 2 if seed % 5 == 0 else None
        problem = Problem(graph, int(least + rng.random() * 0.5 * (peak - least)), max_computes=limit)
        relaxation = StageRelaxation(
            problem, rng.sample(range(len(graph.ops)), min(len(graph.ops), rng.choice([2, 3, 3, 4]))), slim=True
        )
        model = relaxation.build()
        whole = Highs().solve(model, EXACT)
        prices = np.array([rng.choice([0.0, 0.1, 1.0]) * rng.random() for _ in relaxation.events])
        if not StageMeeting.applies(relaxation):
            continue
        most = 2 * relaxation.problem.graph.base_cost if whole.objective is None else round(whole.objective)
        found = StageMeeting(relaxation, prices).run(0, most + rng.choice([0, 1, 3]), Deadline())
        if whole.bound is None:
            assert found == (math.inf, None)
            continue
        assert found.again is not None and found.bound == most
        assert StageMeeting(relaxation, prices).run(0, most - 1, Deadline()) == (math.inf, None)
        columns = np.array([stage.again for stage in relaxation.stages[1:]])
        bits = found.again >> np.arange(len(columns))[:, None] & 1
        assert not bits[columns < 0].any()
        index, value = columns[columns >= 0], bits[columns >= 0].astype(float)
        model.add(Linear.rows("again", np.arange(len(index)), index, 1, lower=value, upper=value))
        assert Highs().solve(model, EXACT).objective == pytest.approx(most)
        decided += most > 0
        with monkeypatch.context() as patch:
            patch.setattr(stage_demands, "MOST_STATES", 8)
            patch.setattr(stage_meeting, "MOST_PARTIAL", 4)
            cut = StageMeeting(relaxation, prices).run(0, most, Deadline())
        assert cut.bound <= most
    assert decided > len(seeds) / 5


@pytest.mark.parametrize("seed", few(range(1, 41, 2), 2))
def test_programmes_are_decided_where_the_solver_finds_nothing(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = training_graph(seed, 10)
    problem = Problem(graph, (graph.structural_bound.peak + graph.reference_peak) // 2)
    values, nothing = [], RawResult(Status.UNKNOWN, StopReason.DEADLINE)
    for undecided in (False, True):
        programmes = StageProgrammes(problem)
        programmes.events |= {programmes.first - 1, min(programmes.first + 2, len(graph.ops) - 1)}
        call = SolveOptions(Deadline.after(100), threads=1)
        found = programmes.relax(programmes.build(call.deadline, 2 * graph.base_cost), call)
        with monkeypatch.context() as patch:
            if undecided:
                patch.setattr(stage_programmes, "solve_programme", lambda *_: nothing)
                patch.setattr(StageProgrammes, "_branch", lambda *_: (None, False))
            solution, decided = programmes.solve(found, call)
        assert decided
        assert solution is None or programmes.schedules(solution)
        values.append(programmes.value)
    assert values[0] == values[1]


def test_deadline_leaves_a_valid_bound() -> None:
    relaxation = StageRelaxation(Problem(training_graph(3, 8), "60%"), [8, 10], slim=True)
    relaxation.build()
    assert StageMeeting(relaxation, np.zeros(2)).run(1, 100, Deadline.after(0)) == (1, None)
