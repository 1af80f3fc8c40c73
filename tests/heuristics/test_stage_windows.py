"""Windows: schedules restated as held tensors, and better schedules close to a given one."""

from __future__ import annotations

import random

import numpy as np
import pytest
from generators import graph_with_chains, saving_blocks
from helpers import judged

from remat import solve
from remat.bounds.stage_programmes import StageProgrammes, held_by
from remat.graphs import GraphBuilder
from remat.graphs.graph import ComputeGraph
from remat.heuristics.base import HeuristicRun
from remat.heuristics.greedy import Greedy
from remat.heuristics.stage_windows import StageWindows
from remat.problem import Problem
from remat.runtime.deadline import Deadline
from remat.runtime.solve_options import SolveOptions, Status
from remat.schedule import Schedule


def limits() -> SolveOptions:
    return SolveOptions(Deadline.after(60), threads=1, relative_gap=0)


def relaxed(problem: Problem, cost: int) -> StageProgrammes:
    """Return programmes whose first one has been solved, for schedules of at most a cost."""
    programmes, call = StageProgrammes(problem), limits()
    if programmes.events:
        programmes.relax(programmes.build(call.deadline, cost + 1), call)
    return programmes


@pytest.mark.parametrize("block", [0, *(pytest.param(block, marks=pytest.mark.slow) for block in range(1, 30))])
def test_schedules_are_solutions_of_programmes_around_them(block: int) -> None:
    """If all tensors stay as they are, what follows costs as much as the schedule, or less."""
    tested = merged = 0
    for seed in range(10 * block, 10 * block + 10):
        rng = random.Random(seed)
        graph = graph_with_chains(seed, rng, 5, 9)
        least, most = graph.structural_bound.peak, graph.reference_peak
        problem = Problem(graph, int(least + rng.random() * (most - least)))
        schedule = Greedy().run(problem, HeuristicRun(limits()))
        if schedule is None or not problem.validate(schedule).accepted:
            continue
        cost = judged(problem, schedule).cost
        programmes = relaxed(problem, cost)
        if not programmes.solved or programmes.value > cost:
            continue
        around = programmes.with_events(rng.sample(range(len(graph.ops)), 3))
        nothing = np.zeros(len(graph.tensors), dtype=np.bool_)
        found = around.around(around.build(Deadline(), cost + 1), schedule, nothing, limits())
        assert found and min(problem.simulate(each).cost for each in found) <= cost
        tested += 1
        merged += len(around.relaxation.problem.graph.ops) < len(graph.ops)
    assert tested and merged


def blocks(count: int) -> ComputeGraph:
    """Return blocks that save tensors of different size and cost."""
    return saving_blocks(
        count, lambda k: (30 + 7 * k % 5, 90 + 13 * k % 29, 9 + k % 3, 11 + 5 * k % 7), loss=150, gradient=40
    )


def test_windows_lead_from_a_poor_schedule_to_an_optimum() -> None:
    """Wider and wider windows end at the optimum of an independent model."""
    problem = Problem(blocks(6), "65%")
    best = Greedy().run(problem, HeuristicRun(limits()))
    exact = solve(problem, "stages", stop=60)
    assert best is not None and exact.cost is not None and exact.status is Status.OPTIMAL
    first = cost = judged(problem, best).cost
    windows = StageWindows(relaxed(problem, cost), 10_000, seed=0)
    for _ in range(200):
        before = cost
        for schedule in windows.schedules(best, cost, limits()):
            certificate = problem.validate(schedule)
            if certificate.accepted and certificate.cost < cost:
                best, cost = schedule, certificate.cost
        windows.learn(better=cost < before)
        if cost == exact.cost:
            break
    assert cost == exact.cost < first
    assert windows.tired  # the first, narrow ones do not suffice


def test_outside_a_window_tensors_stay_as_they_are() -> None:
    problem = Problem(blocks(6), "55%")
    start = Greedy().run(problem, HeuristicRun(limits()))
    assert start is not None
    cost = judged(problem, start).cost
    programmes = relaxed(problem, cost).with_events([])
    free = np.zeros(len(problem.graph.tensors), dtype=np.bool_)
    free[:6] = True
    found = programmes.around(programmes.build(Deadline(), cost + 1), start, free, limits())
    held = [held_by(problem, schedule, [programmes.first]) for schedule in (found[0], start)]
    assert (held[0] == held[1])[:, ~free].all()


def test_windows_need_the_order_of_the_programmes() -> None:
    b = GraphBuilder("two chains")
    for name in ("left", "right"):
        b.op(f"{name}0", size=4, cost=3, phase="forward")
        b.op(f"{name}1", inputs=[f"{name}0"], size=9, cost=2, phase="forward")
    b.op("last", inputs=["left0", "left1", "right1"], size=1, cost=1, phase="backward")
    problem = Problem(b.build(), 25)
    reference = Schedule.reference(problem.graph)
    other = Schedule.of_computes(problem.graph, np.array([2, 3, 0, 1, 4]))
    programmes = relaxed(problem, 100)
    assert StageWindows.applies(programmes, reference) and not StageWindows.applies(programmes, other)
    assert not StageWindows.applies(StageProgrammes(problem), reference)
