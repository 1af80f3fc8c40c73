"""The default method asks for an order that fits before it recomputes anything."""

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
from remat.solving.auto import Auto
from remat.solving.session import Session

#: 60 ops. Orders without recomputation need 52.2 % of the reference peak, and the structural bound is 39.9 %.
GRAPH = layered(60, 0.3, 5)


@pytest.fixture(autouse=True, scope="module")
def compiled():
    assert Portfolio().prepared()


def made(problem):
    return Auto(Session(problem, SolveOptions(Deadline.after(20), threads=1), "auto", solver=CpSat()))


def test_an_order_that_fits_is_the_answer():
    """Before anything else ran; it was annealing that came upon it."""
    result = solve(Problem(GRAPH, "53%", "free"), stop=30, options=ONE)
    assert (result.status, result.overhead, result.schedule.num_computes) == (Status.OPTIMAL, 0, 60)
    assert [step.name for step in result.steps] == ["order"]
    assert result.source in {Portfolio.name, *(rule.name for rule in RULES)}


def test_where_none_fits_it_is_a_start():
    auto = made(Problem(GRAPH, "50%", "free"))
    auto.find_order(auto.clock)
    found = auto.session.incumbents
    assert found.best is None
    assert not auto.session.infeasible
    assert found.least_peak.certificate.peak == 23_020
    assert auto.warm_start is found.least_peak.schedule
    result = solve(Problem(GRAPH, "50%", "free"), stop=1, options=ONE)
    assert "order" in [step.name for step in result.steps]


def test_where_nothing_is_recomputed_it_is_a_proof():
    result = solve(Problem(GRAPH, "50%", "free", 1), stop=30, options=ONE)
    assert result.status is Status.INFEASIBLE
    assert f"(by {Portfolio.name})" in str(result)


def test_for_other_questions_there_is_nothing_to_do():
    for problem in (Problem(GRAPH, "50%"), Problem(GRAPH, None, "free")):
        assert not made(problem).pending


def test_what_is_not_compiled_is_not_waited_for(monkeypatch):
    """The rules alone, and the search when its code is there."""
    auto = made(Problem(GRAPH, "53%", "free"))
    with monkeypatch.context() as cold:
        cold.setattr(Portfolio, "compiled", lambda *_: False)
        auto.find_order(auto.clock)
    assert auto.pending
    assert auto.warm_start is not None
    monkeypatch.setattr(remat.solving.auto, "RULES", ())
    auto.try_again()
    assert not auto.pending
    assert auto.session.incumbents.best.certificate.cost == GRAPH.base_cost


class Wrong(OrderSearch):
    name = "wrong"

    def search(self, instance, *, deadline=None, seed=0, upper=None, on_order=None):
        return Ordering(instance.reference, 5)


def test_a_peak_that_is_wrong_is_an_error():
    auto = made(Problem(unit_chain(8), 5, "free"))
    auto.search = Wrong()
    with refused("backend.wrong-peak"):
        auto.find_order(auto.clock)
