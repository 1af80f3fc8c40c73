"""State search: optima of tiny graphs by an independent search, bounds at limits, and suffix cuts."""

import numpy as np
import pytest

from remat.bounds.suffix_cuts import suffix_cut
from remat.graphs import layered
from remat.graphs.families import unit_chain
from remat.ordering.best_first import Aim, explore
from remat.ordering.state_search import ENDLESS, KERNELS, StateSearch
from remat.problem import Problem
from remat.runtime.deadline import Deadline
from remat.schedule import OrderRule, Schedule
from remat.testing.graphs import random_graph

#: Memory of the search in these tests, in bytes.
SMALL = 1 << 20
#: Above any cost.
LIMIT = 10**9


@pytest.fixture(scope="module", autouse=True)
def compiled() -> None:
    assert KERNELS.ready()


def budgets(problem: Problem) -> list[int]:
    low, high = problem.graph.structural_bound.peak, problem.reference_peak
    return sorted({low, low + (high - low) // 4, (low + high) // 2, high - 1} - set(range(low)))


def check(seeds: range, order: OrderRule, most_ops: int) -> int:
    """Compare with the best-first search; return how many budgets are infeasible."""
    infeasible = 0
    for seed in seeds:
        graph = random_graph(seed, most_ops=most_ops, plain=seed % 2 == 0)
        for budget in budgets(Problem(graph)):
            problem = Problem(graph, budget, order=order)
            known = explore(problem, Aim.COST, limit=LIMIT, peak=budget)
            found = StateSearch(problem, memory=SMALL).run()
            if known.schedule is None:
                assert (found.schedule, found.bound) == (None, ENDLESS), (seed, budget)
                infeasible += 1
                continue
            assert found.bound == known.bound, (seed, budget)
            certificate = problem.validate(found.schedule)
            assert (certificate.accepted, certificate.cost) == (True, known.bound), (seed, budget)
            below = StateSearch(problem, memory=SMALL).run(known.bound)
            assert (below.schedule, below.bound) == (None, known.bound), (seed, budget)
    return infeasible


@pytest.mark.parametrize("order", OrderRule)
def test_cost_equals_that_of_another_search(order: OrderRule) -> None:
    """Several outputs, workspace, kept tensors, graph inputs, and ops that run only once are among the graphs."""
    assert check(range(25, 41), order, 7) > 0


@pytest.mark.slow
@pytest.mark.parametrize("order", OrderRule)
def test_cost_equals_that_of_another_search_on_many_graphs(order: OrderRule) -> None:
    assert check(range(1000, 1400), order, 8) > 0


@pytest.mark.parametrize(("budget", "cost"), [(3, 45), (4, 26), (5, 22)])
def test_unit_chain(budget: int, cost: int) -> None:
    """REVOLVE's optimum."""
    assert StateSearch(Problem(unit_chain(8), budget), memory=SMALL).run().bound == cost


def test_full_levels_and_deadlines_leave_bounds() -> None:
    """A level is full, or time is over."""
    problem = Problem(layered(25, seed=1), "80%", order=OrderRule.FREE)
    full = StateSearch(problem, memory=SMALL).run()
    late = StateSearch(problem, memory=SMALL).run(deadline=Deadline.after(0))
    assert full.schedule is None
    assert problem.graph.base_cost <= late.bound < full.bound < ENDLESS


def test_beams_give_schedules() -> None:
    problem = Problem(layered(25, seed=0), "90%")
    schedule = StateSearch(problem).beam(50)
    assert problem.validate(schedule).accepted


def test_problems_that_it_cannot_state() -> None:
    graph = layered(25, seed=0)
    assert StateSearch.applies(Problem(graph, "90%", max_computes=1))
    assert not StateSearch.applies(Problem(graph))
    assert not StateSearch.applies(Problem(graph, "90%", max_computes=2))
    assert not StateSearch.applies(Problem(layered(70), "90%"))
    assert not StateSearch.applies(Problem(random_graph(1, buffers=True), "90%"))


def test_suffix_cuts_hold_for_cheapest_continuations() -> None:
    """Along an optimal schedule, no cut exceeds what is still recomputed; elsewhere cuts are zero or negative."""
    tight = 0
    for seed in range(60, 90, 2):
        graph = random_graph(seed, most_ops=8, plain=True)
        for budget in budgets(Problem(graph)):
            problem = Problem(graph, budget)
            best = explore(problem, Aim.COST, limit=LIMIT, peak=budget).schedule
            if best is None:
                continue
            for event, live, later in continuations(problem, best):
                cut = suffix_cut(problem, range(event, len(graph.ops)), live)
                if cut is None:
                    continue
                value = cut.constant + cut.slope[live].sum()
                assert value <= later + 1e-6, (seed, budget, event)
                tight += later > 0 and value > later - 1e-6
    assert tight > 10


def continuations(problem: Problem, schedule: Schedule):
    """Yield, for each first compute, its position, the tensors live after it, and the cost of later recomputations."""
    graph = problem.graph
    computes = [graph.op_index[name] for name in schedule.computes()]
    first = {op: computes.index(op) for op in computes}
    for position, op in enumerate(graph.arrays.order.tolist()[:-1]):
        at = first[op]
        rest = computes[at + 1 :]
        live = np.zeros(len(graph.tensors), dtype=np.bool_)
        for tensor in {t for done in computes[: at + 1] for t in graph.arrays.op_outputs[done].tolist()}:
            readers = graph.arrays.consumers[tensor].tolist()
            writer = graph.arrays.producers[tensor].tolist()[0]
            use = next((k for k, other in enumerate(rest) if other in readers or other == writer), None)
            live[tensor] = use is not None and rest[use] != writer
        again = [other for k, other in enumerate(rest, at + 1) if first[other] < k]
        yield position, live, sum(graph.ops[other].cost for other in again)
