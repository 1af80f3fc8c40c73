"""The default method searches for a feasible order before it recomputes."""

import pytest
from helpers import ONE
from refusals import refused

import remat.solving.auto
from remat import Problem, solve
from remat.backends.cp_sat import CpSat
from remat.graphs.families import unit_chain
from remat.graphs.layered import layered
from remat.ordering.base import Ordering, OrderSearch
from remat.ordering.rules import RULES
from remat.ordering.valley import Portfolio
from remat.runtime.deadline import Deadline
from remat.runtime.solve_options import SolveOptions, Status
from remat.solving.auto import LeastCostSearch
from remat.solving.portfolio import Stage
from remat.solving.session import Session

#: 60 ops. Least peak of orders: 52.2 % of the reference peak; structural bound: 39.9 %.
GRAPH = layered(60, 0.3, 5)


@pytest.fixture(autouse=True, scope="module")
def compiled():
    assert Portfolio().prepared()


def made(problem):
    return LeastCostSearch(Session(problem, SolveOptions(Deadline.after(20), threads=1), "auto", solver=CpSat()))


def test_feasible_order_is_the_answer():
    result = solve(Problem(GRAPH, "53%", "free"), stop=30, options=ONE)
    assert (result.status, result.overhead, result.schedule.num_computes) == (Status.OPTIMAL, 0, 60)
    assert [step.name for step in result.steps] == ["order"]
    assert result.source in {Portfolio.name, *(rule.name for rule in RULES)}


def test_infeasible_order_is_a_start():
    auto = made(Problem(GRAPH, "50%", "free"))
    auto.order(auto.clock)
    found = auto.session.incumbents
    assert found.best is None
    assert not auto.session.infeasible
    assert found.least_peak.certificate.peak == 23_020
    assert auto.warm_start is found.least_peak.schedule
    result = solve(Problem(GRAPH, "50%", "free"), stop=1, options=ONE)
    assert "order" in [step.name for step in result.steps]


def test_order_search_proves_infeasibility_without_recomputation():
    result = solve(Problem(GRAPH, "50%", "free", 1), stop=30, options=ONE)
    assert result.status is Status.INFEASIBLE
    assert f"(by {Portfolio.name})" in str(result)


def test_no_order_search_for_fixed_orders_and_without_budget():
    for problem in (Problem(GRAPH, "50%"), Problem(GRAPH, None, "free")):
        auto = made(problem)
        auto.order(auto.clock)
        assert auto.warm_start is None and not auto.session.steps


def test_rules_replace_an_uncompiled_search(monkeypatch):
    """The search runs later, when it is compiled."""
    auto = made(Problem(GRAPH, "53%", "free"))
    with monkeypatch.context() as cold:
        cold.setattr(Portfolio, "compiled", lambda *_: False)
        auto.run_stage(Stage("order"))
    assert auto.skipped_order is not None
    assert auto.warm_start is not None
    monkeypatch.setattr(remat.solving.auto, "RULES", ())
    auto.try_again()
    assert auto.skipped_order is None
    assert auto.session.incumbents.best.certificate.cost == GRAPH.base_cost


class Wrong(OrderSearch):
    name = "wrong"

    def search(self, instance, *, deadline=None, seed=0, upper=None, on_order=None):
        return Ordering(instance.reference, 5)


def test_wrong_peak_is_an_error():
    auto = made(Problem(unit_chain(8), 5, "free"))
    auto.orders = Wrong()
    with refused("backend.wrong-peak"):
        auto.order(auto.clock)
