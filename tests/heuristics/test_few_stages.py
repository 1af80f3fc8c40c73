"""Few stages: optima of small problems, claims that hold, and training steps that one event decides."""

from __future__ import annotations

from helpers import judged

from remat import solve
from remat.graphs import GraphBuilder
from remat.graphs.graph import ComputeGraph
from remat.heuristics.base import HeuristicRun
from remat.heuristics.few_stages import FewStages, FewStagesOptions
from remat.problem import Problem
from remat.runtime.deadline import Deadline
from remat.runtime.solve_options import SolveOptions
from remat.runtime.status import Status
from remat.schedule import OrderRule


def run(deadline: float = 30.0, **more: object) -> HeuristicRun:
    return HeuristicRun(SolveOptions(Deadline.after(deadline), threads=1, **more))  # type: ignore[arg-type]


def layers(count: int) -> ComputeGraph:
    """Layers that save something cheap and something expensive, and a loss that takes most of the memory."""
    b = GraphBuilder("layers")
    above: list[str] = []
    for k in range(count):
        b.op(f"product{k}", inputs=above, size=30, cost=100 + k, phase="forward")
        b.op(f"cheap{k}", inputs=[f"product{k}"], size=20 + k % 3, cost=7 + k % 5, phase="forward")
        above = [f"cheap{k}"]
    b.op("loss", inputs=above, size=400, cost=50, phase="loss")
    gradient = "loss"
    for k in reversed(range(count)):
        b.op(f"back{k}", inputs=[gradient, f"product{k}", f"cheap{k}"], size=20, cost=200, phase="backward")
        gradient = f"back{k}"
    return b.build()


def test_one_event_decides_a_training_step() -> None:
    """The knapsack of what is saved for the loss: found and proved within a few programmes, with gaps of 1e-4."""
    problem = Problem(layers(12), "80%")
    heuristic = FewStages()
    schedule = heuristic.run(problem, run(60))
    assert schedule is not None and heuristic.bound is not None
    cost, base = judged(problem, schedule).cost, problem.graph.base_cost
    assert base < heuristic.bound <= cost <= base + 1.001 * (heuristic.bound - base)
    assert heuristic.scope is not None and heuristic.scope.order is OrderRule.FIXED


def test_auto_proves_it() -> None:
    """Without the models, which are for smaller graphs: auto has the step, and it ends with the proof."""
    result = solve(Problem(layers(12), "80%"), stop=60, options=SolveOptions(threads=1))
    assert result.status is Status.OPTIMAL
    assert "few-stages" in [step.name for step in result.steps]


def test_a_start_is_kept_unless_something_is_cheaper() -> None:
    problem = Problem(layers(6), "80%")
    best = FewStages().run(problem, run())
    again = FewStages().run(problem, HeuristicRun(SolveOptions(Deadline.after(30), threads=1), best))
    assert best is not None and again is not None
    cost = judged(problem, best).cost
    assert problem.graph.base_cost < judged(problem, again).cost <= cost


def test_a_free_order_has_its_schedule_and_not_its_bound() -> None:
    problem, heuristic = Problem(layers(6), "80%", OrderRule.FREE), FewStages()
    schedule = heuristic.run(problem, run())
    assert schedule is not None and judged(problem, schedule).accepted
    assert heuristic.bound is None


def test_a_programme_may_be_too_large() -> None:
    problem, heuristic = Problem(layers(6), "80%"), FewStages(FewStagesOptions(variables=3))
    assert heuristic.run(problem, run()) is None and heuristic.bound is None
