"""Eviction: schedules within the budget or none, least budgets of training graphs, all rules."""

from dataclasses import replace

import pytest
from helpers import ONE, RUN, accepted, judged

from remat import GraphBuilder, Problem, Schedule, solve
from remat.graphs.families import unit_chain
from remat.graphs.zoo import ZOO
from remat.heuristics import HeuristicRun
from remat.heuristics.eviction import Eviction, EvictionOptions, Machine
from remat.runtime.deadline import Deadline, OverdueError
from remat.runtime.solve_options import SolveOptions
from remat.testing.graphs import random_graph


@pytest.mark.parametrize("order", ["fixed", "free"])
@pytest.mark.parametrize("limit", [None, 1, 2])
def test_schedules_are_valid(order: str, limit: int | None) -> None:
    """Several outputs, workspace, buffers, kept tensors, ops that run once."""
    again = []
    for seed in range(40):
        graph = random_graph(seed, plain=False, buffers=seed % 2 == 1, most_ops=8)
        kept = next(t.name for t in graph.tensors if t.name not in graph.inputs)
        problem = Problem(graph, order=order, max_computes=limit, keep=[kept])
        reference = judged(problem, Schedule.reference(graph)).peak
        for budget in [*range(graph.structural_bound.peak, reference, 3), reference]:
            one = replace(problem, budget=budget)
            schedule = Eviction().run(one, RUN)
            assert schedule is not None or budget < reference, seed
            if schedule is not None:
                again.append(accepted(one, schedule).recomputations)
        assert Eviction().run(problem, RUN) == Schedule.reference(graph)
    assert len(again) >= 20
    assert any(again) == (limit != 1)


@pytest.mark.parametrize("name", ["vgg16", "vgg19", "fcn8", "segnet", "mobilenet"])
def test_training_graphs_at_the_structural_bound(name: str) -> None:
    graph = ZOO[name]()
    result = solve(Problem(graph, graph.structural_bound.peak), "eviction")
    assert result.certificate.accepted
    assert result.certificate.peak == graph.structural_bound.peak
    assert result.source == "eviction"


def test_free_order_follows_the_start() -> None:
    builder = GraphBuilder("two ways")
    builder.op("sum", inputs=[builder.op("a", size=1), builder.op("b", size=2)], size=1)
    graph = builder.build()
    start = Schedule.of_computes(graph, [graph.op_index[name] for name in ("b", "a", "sum")])
    free = Eviction().run(Problem(graph, order="free"), HeuristicRun(ONE, start=start))
    fixed = Eviction().run(Problem(graph, order="fixed"), HeuristicRun(ONE, start=start))
    assert (free, fixed) == (start, Schedule.reference(graph))


def test_no_schedule_beyond_limits() -> None:
    problem = Problem(unit_chain(30), 3)
    assert Eviction(EvictionOptions(most_computes=2)).run(problem, RUN) is None
    assert Eviction(EvictionOptions(most_computes=9)).run(problem, RUN) is not None
    assert Eviction().run(replace(problem, budget=2), RUN) is None
    assert Eviction().run(problem, HeuristicRun(SolveOptions(Deadline.after(0), threads=1))) is None


def test_deadline_is_checked_while_tables_are_built() -> None:
    """Tables of 20,000 ops take half a second."""
    problem = Problem(unit_chain(300), "50%")
    order = problem.graph.arrays.order.tolist()
    with pytest.raises(OverdueError):
        Machine(problem, order, 1000, Deadline.after(0))
    assert Eviction().run(problem, HeuristicRun(replace(ONE, deadline=Deadline.after(0)))) is None
