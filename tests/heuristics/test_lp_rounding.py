"""LP rounding: certified schedules, lower bounds, published results."""

import math
from dataclasses import replace

import pytest
from helpers import ONE, judged

from remat import Problem, read_graph, simulate, solve, validate
from remat.backends.highs import Highs
from remat.graphs.families import unit_chain
from remat.graphs.zoo import ZOO
from remat.heuristics import HeuristicRun
from remat.heuristics.lp_rounding import LpRounding, LpRoundingOptions
from remat.problem.scope import Scope
from remat.runtime.deadline import Deadline
from remat.runtime.solve_options import SolveOptions, StopReason
from remat.schedule import OrderRule
from remat.testing import optimum, random_budget, random_graph

#: As in the paper: one relaxation, one threshold, no improvement.
PAPER = LpRoundingOptions("checkmate", allowances=(0.1,), thresholds=(0.5,), samples=0, mend=False)
FEW = LpRoundingOptions(allowances=(0.0, 0.1), thresholds=(0.5, 0.2), samples=3)


def run(problem, options=None, start=None, on_schedule=None, **other):
    heuristic = LpRounding(options)
    return heuristic, heuristic.run(problem, HeuristicRun(SolveOptions(threads=1, **other), start, on_schedule))


@pytest.mark.parametrize(("budget", "cost"), [(4, 26), (5, 22), (6, 21), (7, 20), (8, 19), (10, 17)])
def test_chain(budget, cost):
    problem = Problem(unit_chain(8), budget)
    heuristic, schedule = run(problem)
    certificate = judged(problem, schedule)
    assert certificate.accepted
    assert heuristic.bound <= cost <= certificate.cost <= cost + 2
    assert heuristic.scope == Scope(OrderRule.FIXED, True, None, heuristic.scope.notes)


@pytest.mark.parametrize("formulation", ["stages", "checkmate"])
@pytest.mark.parametrize("seed", range(12))
def test_random_graphs(seed, formulation):
    """Valid schedules, bounds below optima; buffers, several outputs, limits of computes."""
    graph = random_graph(seed, 6, plain=seed % 3 == 0, buffers=seed % 2 == 0)
    problem = Problem(graph, random_budget(graph, seed))
    heuristic, schedule = run(problem, replace(FEW, formulation=formulation))
    best = optimum(problem, Scope(OrderRule.FIXED, staged=True))
    if heuristic.bound is not None and best is not None:
        assert heuristic.bound <= best.cost
    if schedule is None:
        return
    certificate = validate(graph, schedule, problem.rules)
    assert certificate.accepted or certificate.peak > problem.budget_bytes
    if certificate.accepted:
        assert certificate.cost >= best.cost
        assert min(found.cost for found in heuristic.tried if found.fits) == certificate.cost
    for found in heuristic.tried:
        assert found.fits == (found.peak <= problem.budget_bytes)


def test_solve_reports_bound_and_scope():
    problem = Problem(unit_chain(8), 5)
    heuristic, _ = run(problem, FEW)
    result = solve(problem, "lp-rounding", method_options=FEW, stop=60, options=ONE)
    assert result.bound == heuristic.bound == 22
    assert result.scope == heuristic.scope
    assert result.certificate.accepted


def test_equal_seeds_give_equal_roundings():
    problem = Problem(unit_chain(8), 4)
    options = replace(FEW, samples=10, mend=False)
    first, again, other = (run(problem, options, seed=seed)[0].tried for seed in (1, 1, 2))
    assert first == again
    assert any(found.threshold is None for found in first)
    assert {found.threshold for found in other} == {found.threshold for found in first}


def test_options_of_the_paper_make_one_rounding():
    problem = Problem(ZOO["vgg16"](), "90%")
    heuristic, schedule = run(problem, PAPER)
    assert len(heuristic.tried) == 1
    assert heuristic.bound is None  # a relaxation below the budget gives no bound
    assert schedule.source == "lp-rounding"
    assert simulate(problem.graph, schedule).cost == heuristic.tried[0].cost


def test_repair_brings_roundings_within_the_budget():
    problem = Problem(ZOO["fcn8"](), "80%")
    options = replace(FEW, allowances=(0.0,), thresholds=(0.5,), samples=0)
    plain, _ = run(problem, replace(options, mend=False))
    improved, schedule = run(problem, options)
    assert not any(found.fits for found in plain.tried)
    assert any(found.fits for found in improved.tried)
    assert schedule.source == "lp-rounding, improved"


def test_suboptimal_interior_point_is_rounded(monkeypatch):
    """With costs as large as these, HiGHS's interior-point method stops with status "other"; no optimum is needed."""
    ended, relax = [], Highs.relax
    monkeypatch.setattr("remat.backends.highs.relaxation.MOST_COST", math.inf)
    monkeypatch.setattr(Highs, "relax", lambda *arguments: ended.append(relax(*arguments)) or ended[-1])
    problem = Problem(ZOO["vgg16"](), "90%")
    options = LpRoundingOptions(allowances=(0.0,), thresholds=(0.5,), samples=0, algorithm="ipm")
    heuristic, schedule = run(problem, options)
    assert [found.stop for found in ended] == [StopReason.OTHER]
    certificate = judged(problem, schedule)
    assert certificate.accepted
    assert heuristic.bound <= certificate.cost < 1.02 * problem.graph.base_cost


def test_stops_at_proof_deadline_or_callback():
    problem = Problem(unit_chain(8), "100%")
    heuristic, schedule = run(problem)
    assert heuristic.bound == simulate(problem.graph, schedule).cost == problem.graph.base_cost
    assert len(heuristic.tried) == 1
    heuristic, schedule = run(problem, deadline=Deadline.after(0))
    assert heuristic.tried == []
    assert schedule is None
    reported = []
    tight = Problem(unit_chain(8), 5)
    heuristic, _ = run(tight, on_schedule=lambda schedule: reported.append(schedule) or True)
    assert len(reported) == 1
    assert heuristic.tried[-1].fits
    assert not any(found.fits for found in heuristic.tried[:-1])


@pytest.mark.slow
@pytest.mark.parametrize(("budget", "optimal"), [("90%", 10_278_354_943_616), ("80%", 10_289_323_652_736)])
def test_fcn8_budgets_that_the_published_code_misses(budget, optimal):
    problem = Problem(ZOO["fcn8"](), budget)
    for mend in (False, True):
        heuristic, schedule = run(problem, LpRoundingOptions(mend=mend))
        certificate = judged(problem, schedule)
        assert certificate.accepted
        assert heuristic.bound <= optimal <= certificate.cost
        assert certificate.overhead < 0.2


@pytest.mark.slow
@pytest.mark.shared
@pytest.mark.parametrize(("budget", "published"), [("90%", 1.161), ("80%", 3.129)])
def test_unet_at_most_published_overhead(shared, budget, published):
    graph = read_graph(shared / "data/graphs/checkmate_unet_profile.json")
    problem = Problem(graph, budget)
    _, schedule = run(problem, LpRoundingOptions(mend=False))
    certificate = validate(graph, schedule, problem.rules)
    assert certificate.accepted
    assert round(certificate.overhead, 3) <= published
