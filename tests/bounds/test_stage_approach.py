"""Limits of the cost close to the bound: variables fixed by the first event keep all solutions within the limit."""

import math
import random

import pytest
from generators import graph_with_chains
from test_stage_reduction import optimum

from remat.bounds import stage_programmes
from remat.bounds.stage_programmes import StageProgrammes
from remat.bounds.stage_solvers import by_cp_sat
from remat.graphs.zoo.transformers import gpt
from remat.problem import Problem
from remat.runtime.deadline import Deadline
from remat.runtime.solve_options import SolveOptions, Status


def with_first_event(problem: Problem) -> StageProgrammes:
    """Return programmes with the first event solved, and no others."""
    programmes, call = StageProgrammes(problem), SolveOptions(Deadline(), threads=1)
    programmes.solve(programmes.relax(programmes.build(call.deadline), call), call)
    return programmes


def test_limits_are_refuted_exactly_below_the_optimum() -> None:
    fixed = refuted = found = 0
    for seed in range(40):
        rng = random.Random(seed)
        graph = graph_with_chains(seed, rng, 6, 12)
        least, most = graph.structural_bound.peak, graph.reference_peak
        problem = Problem(graph, int(least + (0.2 + 0.5 * rng.random()) * (most - least)))
        programmes = with_first_event(problem)
        if programmes.first < 0 or programmes.infeasible:
            continue
        programmes.events |= set(rng.sample(range(len(graph.ops)), 2))
        best = optimum(problem, sorted(programmes.events))
        if best is None or len(programmes.events) == 1:
            continue
        for limit in (best, best + 1, best + rng.randrange(2, 20)):
            if limit <= programmes.value:
                continue
            model = programmes.build(Deadline(), limit)
            small = programmes._within_limit(model, Deadline())
            call = SolveOptions(Deadline(), threads=1)
            raw = by_cp_sat(programmes.relaxation, small.model, call, math.inf)
            assert (raw.status is Status.INFEASIBLE) == (limit <= best), (seed, limit, best)
            fixed += small.model.num_vars < model.num_vars
            refuted += limit <= best
            found += limit > best
    assert min(fixed, found) > 5
    assert refuted > 1


def test_approach_raises_the_bound_and_finds_a_schedule(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = Problem(gpt(layers=3), "90%")
    programmes, call = with_first_event(problem), SolveOptions(Deadline(), threads=1)
    programmes.events.add(programmes.first + 5)
    programmes.build(Deadline(), int(1.01 * programmes.value))
    assert not programmes.approachable
    monkeypatch.setattr(stage_programmes, "MOST_VARIABLES", 10)
    assert programmes.approachable
    before = programmes.value
    schedules = programmes.approach(call)
    assert schedules
    assert before <= programmes.value <= problem.simulate(schedules[0]).cost
    assert not programmes.approachable
