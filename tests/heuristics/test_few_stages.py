"""Few stages: bounds, starts, and training steps decided by one memory event."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from generators import saving_blocks
from helpers import judged

from remat import solve
from remat.bounds import stage_bound
from remat.bounds.stage_programmes import StageProgrammes
from remat.bounds.stage_solvers import holding_less
from remat.graphs.families import unit_chain
from remat.graphs.graph import ComputeGraph
from remat.graphs.io import load_graph
from remat.graphs.zoo import gpt
from remat.heuristics.base import HeuristicRun
from remat.heuristics.drops import Drops
from remat.heuristics.few_stages import SEVERAL, FewStages, FewStagesOptions
from remat.problem import Problem
from remat.runtime.deadline import Deadline
from remat.runtime.solve_options import SolveOptions, Status
from remat.schedule import OrderRule


def run(deadline: float = 30.0, **more: object) -> HeuristicRun:
    return HeuristicRun(SolveOptions(Deadline.after(deadline), threads=1, **more))  # type: ignore[arg-type]


def layers(count: int) -> ComputeGraph:
    """Return layers that save a cheap and an expensive tensor of similar size."""
    return saving_blocks(count, lambda k: (30, 100 + k, 20 + k % 3, 7 + k % 5), loss=400, gradient=20)


def test_proof_for_a_training_step_with_one_event() -> None:
    """The knapsack of tensors saved for the loss."""
    problem = Problem(layers(12), "80%")
    heuristic = FewStages()
    schedule = heuristic.run(problem, run(60))
    assert schedule is not None and heuristic.bound is not None
    cost, base = judged(problem, schedule).cost, problem.graph.base_cost
    assert base < heuristic.bound == cost
    assert heuristic.scope is not None and heuristic.scope.order is OrderRule.FIXED


def test_large_graphs_begin_with_minimum_cuts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The stage bound is the same as of the linear programme, and needs no solver."""
    problem = Problem(layers(60), "80%")
    linear = stage_bound(problem, integer=False, deadline=60).value
    monkeypatch.setattr("remat.bounds.stage_programmes.CUT_OPS", 50)
    monkeypatch.setattr("remat.backends.highs.Highs.relax", None)
    monkeypatch.setattr("remat.backends.highs.Highs.solve", None)
    heuristic = FewStages()
    schedule = heuristic.run(problem, run(60))
    assert schedule is not None and heuristic.bound is not None
    assert heuristic.bound == linear == stage_bound(problem, deadline=60).value
    assert linear <= judged(problem, schedule).cost <= 1.01 * linear


def test_programmes_are_small_by_their_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    programmes = StageProgrammes(Problem(unit_chain(8), 4))
    assert not programmes.small
    one = programmes.build(Deadline()).num_vars
    monkeypatch.setattr("remat.bounds.stage_programmes.SMALL", one)
    assert programmes.small
    programmes.events.add(min(programmes.events) + 1)
    assert programmes.build(Deadline()).num_vars > one
    assert not programmes.small


@pytest.mark.parametrize(
    "patch", [None, ("remat.bounds.stage_programmes.SMALL", 0), (f"{FewStages.__module__}.HOPELESS", 1)]
)
def test_short_runs_load_drops_only_if_programmes_are_large_or_hopeless(
    monkeypatch: pytest.MonkeyPatch, patch: tuple[str, int] | None
) -> None:
    problem, asked = Problem(unit_chain(16), "40%"), []
    if patch is not None:
        monkeypatch.setattr(*patch)
    monkeypatch.setattr(Drops, "prepared", lambda *_: asked.append(1))
    heuristic = FewStages()
    schedule = heuristic.run(problem, run(SEVERAL - 1))
    if patch is None:
        assert schedule is not None and judged(problem, schedule).cost == heuristic.bound == 44
        assert not asked
    else:
        assert schedule is None
        assert asked


def test_later_runs_solve_large_programmes_for_the_cost_that_drops_found(monkeypatch: pytest.MonkeyPatch) -> None:
    problem, heuristic = Problem(unit_chain(16), "40%"), FewStages()
    monkeypatch.setattr("remat.bounds.stage_programmes.SMALL", 0)
    assert Drops().prepared()
    first = heuristic.run(problem, run(SEVERAL - 1))
    assert first is not None and judged(problem, first).cost == 45
    later = heuristic.run(problem, replace(run(), start=first))
    assert later is not None and judged(problem, later).cost == heuristic.bound == 44


@pytest.mark.slow
@pytest.mark.parametrize("budget", ["80%", "50%", "20%"])
def test_gpt_of_100_000_ops_within_a_hundredth_of_a_percent(budget: str) -> None:
    problem = Problem(gpt(layers=3_330), budget)
    result = solve(problem, stop=120, options=SolveOptions(threads=1, relative_gap=1e-4))
    assert len(problem.graph.ops) == 99_915
    assert result.bound is not None and result.objective is not None
    assert problem.graph.base_cost < result.bound <= result.objective <= 1.0001 * result.bound


def test_auto_proves_optimality_with_few_stages() -> None:
    """The graph is too large for models."""
    result = solve(Problem(layers(12), "80%"), stop=60, options=SolveOptions(threads=1))
    assert result.status is Status.OPTIMAL
    assert "few-stages" in [step.name for step in result.steps]


@pytest.mark.slow
def test_another_solution_of_the_same_cost_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first solution with two events exceeds the budget by 5 to 8 %, and costs as little as the bound."""
    problem, searches = Problem(load_graph("t5"), "25%"), []

    def counted(*given: Any) -> Any:
        searches.append(given)
        return holding_less(*given)

    monkeypatch.setattr("remat.bounds.stage_programmes.holding_less", counted)
    heuristic = FewStages()
    schedule = heuristic.run(problem, run(60))
    assert schedule is not None and judged(problem, schedule).cost == heuristic.bound
    assert len(searches) == 1


def test_start_is_returned_unless_improved() -> None:
    problem = Problem(layers(6), "80%")
    best = FewStages().run(problem, run())
    again = FewStages().run(problem, HeuristicRun(SolveOptions(Deadline.after(30), threads=1), best))
    assert best is not None and again is not None
    cost = judged(problem, best).cost
    assert problem.graph.base_cost < judged(problem, again).cost <= cost


def test_free_order_gets_a_schedule_without_bound() -> None:
    problem, heuristic = Problem(layers(6), "80%", OrderRule.FREE), FewStages()
    schedule = heuristic.run(problem, run())
    assert schedule is not None and judged(problem, schedule).accepted
    assert heuristic.bound is None


def test_too_large_programmes_are_skipped() -> None:
    problem, heuristic = Problem(layers(6), "80%"), FewStages(FewStagesOptions(variables=3))
    assert heuristic.run(problem, run()) is None and heuristic.bound is None
