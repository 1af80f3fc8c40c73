"""Live search: optima and feasibility of tiny graphs by an independent search."""

import signal
import threading
from dataclasses import replace

import pytest

from remat.graphs import ComputeGraph, Op, Tensor, layered
from remat.graphs.families import unit_chain
from remat.ordering import live_search
from remat.ordering.best_first import Aim, explore
from remat.ordering.live_search import ENDLESS, KERNELS, LiveSearch
from remat.problem import Problem
from remat.runtime.deadline import Deadline
from remat.schedule import OrderRule
from remat.testing.graphs import random_graph

#: Above any cost.
LIMIT = 10**9


def budgets(problem: Problem) -> list[int]:
    low, high = problem.graph.structural_bound.peak, problem.reference_peak
    return sorted({low, low + (high - low) // 4, (low + high) // 2, high - 1} - set(range(low)))


@pytest.fixture(autouse=True, scope="module")
def _compiled() -> None:
    assert KERNELS.ready()


def with_tiny_tensors(graph: ComputeGraph) -> ComputeGraph:
    """Return the graph with every third tensor of some bytes, and a thousand times the size of the others."""
    tensors = [
        replace(tensor, size=min(tensor.size, 3) if k % 3 == 0 else 1000 * tensor.size)
        for k, tensor in enumerate(graph.tensors)
    ]
    return replace(graph, tensors=tensors)


def check(seeds: range, order: OrderRule, most_ops: int) -> tuple[int, int]:
    """Compare with the best-first search; return how many budgets are feasible, and infeasible."""
    feasible = infeasible = 0
    for seed in seeds:
        graph = random_graph(seed, most_ops=most_ops, plain=seed % 2 == 0)
        if seed % 3 == 0:
            graph = with_tiny_tensors(graph)
        for budget in budgets(Problem(graph)):
            problem = Problem(graph, budget, order=order)
            if not LiveSearch.applies(problem):
                continue
            known = explore(problem, Aim.COST, limit=LIMIT, peak=budget)
            assert known is not None
            found = LiveSearch(problem).run()
            some = LiveSearch(problem).any_schedule().schedule
            assert (some is None) is (known.schedule is None), (seed, budget)
            assert some is None or replace(problem, order=OrderRule.FREE).validate(some).accepted, (seed, budget)
            if known.schedule is None:
                assert (found.schedule, found.bound) == (None, ENDLESS), (seed, budget)
                infeasible += 1
                continue
            assert found.bound == known.bound, (seed, budget)
            assert found.schedule is not None
            certificate = problem.validate(found.schedule)
            assert (certificate.accepted, certificate.cost) == (True, known.bound), (seed, budget)
            below = LiveSearch(problem).run(known.bound)
            assert (below.schedule, below.bound) == (None, known.bound), (seed, budget)
            assert finds(problem, known.bound), (seed, budget)
            feasible += 1
    return feasible, infeasible


@pytest.mark.parametrize("order", OrderRule)
def test_cost_and_feasibility_equal_those_of_another_search(order: OrderRule) -> None:
    """Among the graphs are several outputs, workspace, tensors to keep, dead ends, graph inputs and tiny tensors."""
    feasible, infeasible = check(range(36, 45), order, 7)
    assert feasible > 5
    assert infeasible > 0


@pytest.mark.slow
@pytest.mark.parametrize("order", OrderRule)
def test_cost_and_feasibility_equal_those_of_another_search_on_many_graphs(order: OrderRule) -> None:
    feasible, infeasible = check(range(45, 200), order, 9)
    assert feasible > 100
    assert infeasible > 4


def finds(problem: Problem, optimum: int) -> bool:
    """Return True if the search finds a schedule within a limit that any bound too high by 1 would meet."""
    found = LiveSearch(problem).run(optimum + 1)
    return found.bound == optimum and found.schedule is not None and problem.validate(found.schedule).cost == optimum


@pytest.mark.parametrize("order", OrderRule)
@pytest.mark.parametrize("ops", [14, 16])
def test_bounds_until_a_first_run_do_not_exceed_the_optimum(ops: int, order: OrderRule) -> None:
    """Both graphs need further runs before the last op. The optimum is that of a search in the other direction."""
    problem = Problem(layered(ops, seed=4), "75%", order=order)
    known = explore(problem, Aim.COST, limit=LIMIT, peak=problem.budget_bytes)
    assert known is not None
    assert known.bound > problem.graph.base_cost
    assert finds(problem, known.bound)


@pytest.mark.parametrize("order", OrderRule)
def test_shared_inputs_of_further_runs_count_once(order: OrderRule) -> None:
    """While `wide` runs nothing else is live, so `left` and `right` run again, and `both` for the two of them."""
    sizes = {"large": 100, "a": 10, "b": 10, "after a": 0, "after b": 0, "w": 1, "result": 0}
    ops = [
        Op("both", outputs=("large",), cost=10),
        Op("left", inputs=("large",), outputs=("a", "after a"), cost=10),
        Op("right", inputs=("large",), outputs=("b", "after b"), cost=10),
        Op("wide", inputs=("after a", "after b"), outputs=("w",), workspace=120),
        Op("end", inputs=("a", "b", "w"), outputs=("result",)),
    ]
    graph = ComputeGraph("shared", [Tensor(name, size) for name, size in sizes.items()], ops)
    assert finds(Problem(graph, 121, order=order), 60)


def test_deadlines_and_memory_leave_bounds() -> None:
    problem = Problem(layered(40, seed=0), "80%")
    late = LiveSearch(problem).run(deadline=Deadline.after(0))
    assert late.schedule is None
    assert problem.graph.base_cost <= late.bound < 25709  # the optimum is 19 % above the cost of each op once
    full = LiveSearch(problem, memory=0).run()
    assert full.schedule is None
    assert late.bound < full.bound < 25709


def test_more_room_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The states, and the order in which they are expanded, are the same in every run and for every table."""
    problem = Problem(layered(40, seed=0), "80%")
    found = LiveSearch(problem).run()
    monkeypatch.setattr(live_search, "FIRST", 100)
    again = LiveSearch(problem).run()
    assert found.bound == 25709
    assert found == again


def test_ctrl_c_stops_the_kernel() -> None:
    problem = Problem(layered(60, seed=0), "60%")
    timer = threading.Timer(0.1, signal.raise_signal, [signal.SIGINT])
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        LiveSearch(problem).run(deadline=Deadline.after(60))
    timer.join()


def test_more_than_64_tensors() -> None:
    """Empty tensors change nothing."""
    chain = unit_chain(8)
    names = [f"empty{k}" for k in range(64)]
    first, *others, last = chain.ops
    first = replace(first, outputs=(*first.outputs, *names))
    last = replace(last, inputs=(*last.inputs, *names))
    tensors = (*chain.tensors, *(Tensor(name, 0) for name in names))
    graph = replace(chain, tensors=tensors, ops=[first, *others, last])
    assert LiveSearch(Problem(graph, 4)).run().bound == 26
