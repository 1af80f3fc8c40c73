"""Live search as a heuristic: what it proves, starts, limits and refusals."""

import pytest
from helpers import ONE
from refusals import refused

from remat.graphs import layered
from remat.graphs.families import unit_chain
from remat.heuristics.base import HeuristicRun
from remat.heuristics.live_search import CheapestByLiveSearch, LiveSearchOptions
from remat.problem import Problem
from remat.runtime.solve_options import Status
from remat.schedule import OrderRule
from remat.solving.solve import solve

#: Its single steps fit into 60 % of its memory, but no schedule does.
TIGHT = layered(40, seed=1)


@pytest.fixture(autouse=True, scope="module")
def _compiled() -> None:
    assert CheapestByLiveSearch().prepared()


@pytest.mark.parametrize("order", OrderRule)
@pytest.mark.parametrize("method", ["live-search", "auto"])
def test_optima_and_infeasibility_are_proved(order: OrderRule, method: str) -> None:
    some = solve(Problem(TIGHT, "70%", order), method, stop=60, options=ONE)
    assert (some.status, some.bound) == (Status.OPTIMAL, some.objective)
    none = solve(Problem(TIGHT, "60%", order), method, stop=60, options=ONE)
    assert none.status is Status.INFEASIBLE
    assert none.message.startswith("no schedule exists (by live-search); ")


def test_cheapest_start_is_returned() -> None:
    problem, search = Problem(unit_chain(8), 4), CheapestByLiveSearch()
    best = search.run(problem, HeuristicRun(ONE))
    assert search.run(problem, HeuristicRun(ONE, start=best)) is best
    assert search.bound == problem.validate(best).cost


def test_little_memory_leaves_a_bound() -> None:
    problem, search = Problem(layered(60, seed=0), "60%"), CheapestByLiveSearch(LiveSearchOptions(memory=1))
    assert search.run(problem, HeuristicRun(ONE)) is None
    assert problem.graph.base_cost < search.bound
    assert not search.infeasible


@pytest.mark.parametrize("problem", [Problem(layered(140, seed=0), "90%"), Problem(TIGHT, "90%", max_computes=2)])
def test_unsuitable_problems_are_refused(problem: Problem) -> None:
    with refused("problem.live-search", culprit="live-search"):
        CheapestByLiveSearch().run(problem, HeuristicRun(ONE))
